"""Finds the server and the token that goes with it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from corral.client.hosts.identity import read_identity
from corral.client.http.connection import check_url
from corral.client.http.own_server import refuse_stranger
from corral.client.http.trust import context, pinned_ca, read_ca
from corral.domain.errors import FieldError, InvalidInput, ServerUnreachable, Unauthenticated
from corral.domain.tokens import split_pin


@dataclass(frozen=True)
class ServerAddress:
    """`ca` is the authority to trust, as PEM; None for plain HTTP, or the system's own."""

    url: str
    ca: str | None = None
    token: str | None = None

    @property
    def tls(self) -> ssl.SSLContext | None:
        return tls_for(self.url, self.ca)


def tls_for(url: str, ca: str | None, client_pem: Path | None = None) -> ssl.SSLContext | None:
    return context(ca, client_pem) if url.startswith("https://") and (ca or client_pem) else None


def discover(
    *, url: str | None, token: str | None, home: Path, ca: Path | None = None, plain_http: bool = False
) -> ServerAddress:
    """What was given explicitly wins; the rest is read from the files that a server here has written.

    `plain_http` allows a token to travel in clear to another machine. Raises ServerUnreachable when there is
    no address or its server is gone, Unauthenticated when there is no token for it, InvalidInput when the
    token would travel in clear.
    """
    if url is not None:
        check_url(url)
    local = local_server(home)
    if ca is not None:
        trusted: str | None = read_ca(ca)
    else:
        trusted = local.ca if local is not None and (url is None or _same(url, local.url)) else None
    found = url or (local.url if local else None)
    if found is None:
        raise _unknown(home)
    if url is None:
        local = own_server(home)
    elif token and not plain_http and (local is None or not _same(url, local.url)):
        refuse_plain_http(url)
    if token:
        shown, pin = split_pin(token)
        if pin is not None and trusted is None and found.startswith("https://"):
            trusted = pinned_ca(found, pin, home / "trusted")
        return ServerAddress(found, trusted, shown)
    # This machine's operator token is for this machine's server, not for whatever CORRAL_URL names.
    if url is not None and (local is None or not _same(url, local.url)):
        raise Unauthenticated(
            f"CORRAL_URL is {url}, but CORRAL_TOKEN is not set",
            hint="Set CORRAL_TOKEN to a token of that server (`corral tokens create` makes one there).",
        )
    own_server(home)
    return ServerAddress(found, trusted, _operator_token(home / "operator.token"))


def _unknown(home: Path) -> ServerUnreachable:
    host = read_identity(home / "worker")
    if host is not None and host.url is not None:
        return ServerUnreachable(
            f"no server is known: CORRAL_URL is not set, and {home} is the home of a host of {host.url}",
            hint=f"Set CORRAL_URL={host.url} and CORRAL_TOKEN to a token of yours; "
            "`corral host status` says how the host stands.",
        )
    return ServerUnreachable(f"no server is known: CORRAL_URL is not set and {home} holds no server.json")


def refuse_plain_http(url: str) -> None:
    """InvalidInput where a token would travel in clear to another machine."""
    if not is_plain_http(url):
        return
    raise InvalidInput(
        f"{url} is plain http:// to another machine: whoever is on the way there could read the token",
        hint="Write https://. If a tunnel or a network of your own protects it, set CORRAL_PLAIN_HTTP=allow.",
        fields=[FieldError("CORRAL_URL", "is plain http:// to another machine")],
    )


def is_plain_http(url: str) -> bool:
    return url.lower().startswith("http://") and not _is_here(url)


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def local_url(home: Path) -> str | None:
    """Where the server of this home listens, or last did; None when none ever was."""
    found = local_server(home)
    return found.url if found else None


def own_server(home: Path) -> ServerAddress | None:
    """The server of this home, which runs: to it a token may be sent. ServerUnreachable if it is gone."""
    path = home / "server.json"
    described = _described(path)
    if described is None:
        return None
    found = _address(path, described)
    if not found.url.startswith("https://"):
        refuse_stranger(path, described)
    return found


def refuse_stranger_at(home: Path, url: str) -> None:
    """For a client that lives on: ServerUnreachable unless the server of this home runs, and is at `url`."""
    if url.startswith("https://"):
        return
    found = own_server(home)
    if found is None or not _same(found.url, url):
        raise ServerUnreachable(
            f"the server of {home} is not at {url} any more, and nothing is sent to what may be there now",
            hint="Start it with `corral up --detach`; if it runs elsewhere, set CORRAL_URL and CORRAL_TOKEN.",
        )


def local_server(home: Path) -> ServerAddress | None:
    """What a server of this home said last of where it is, whether or not it still runs."""
    path = home / "server.json"
    described = _described(path)
    return None if described is None else _address(path, described)


def _described(path: Path) -> dict[str, Any] | None:
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        return described if isinstance(described, dict) else {}
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from error


def _address(path: Path, described: Mapping[str, Any]) -> ServerAddress:
    try:
        ca = described.get("ca")
        return ServerAddress(str(described["url"]), read_ca(Path(ca)) if ca else None)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ServerUnreachable:
    return ServerUnreachable(
        f"{path} cannot be read: {error}", hint="Run `corral down`, then `corral up --detach`."
    )


def _operator_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise Unauthenticated(f"CORRAL_TOKEN is not set and {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Unauthenticated(f"{path} cannot be read: {error}", hint="Set CORRAL_TOKEN.") from error
    if not token:
        raise Unauthenticated(f"{path} is empty", hint="Set CORRAL_TOKEN, or restart the server.")
    return token
