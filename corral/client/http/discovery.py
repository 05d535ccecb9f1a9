"""Finds the server and the token that goes with it."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from pathlib import Path

from corral.client.http.trust import context, pinned_ca, read_ca
from corral.domain.errors import ServerUnreachable, Unauthenticated
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


def discover(*, url: str | None, token: str | None, home: Path, ca: Path | None = None) -> ServerAddress:
    """What was given explicitly wins; the rest is read from the files that a server here has written.

    Raises ServerUnreachable when there is no address, Unauthenticated when there is no token for it.
    """
    local = local_server(home)
    if ca is not None:
        trusted: str | None = read_ca(ca)
    else:
        trusted = local.ca if local is not None and (url is None or _same(url, local.url)) else None
    found = url or (local.url if local else None)
    if found is None:
        raise ServerUnreachable(f"no server is known: CORRAL_URL is not set and {home} holds no server.json")
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
    return ServerAddress(found, trusted, _operator_token(home / "operator.token"))


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def local_url(home: Path) -> str | None:
    """Where the server of this home listens, or last did; None when none ever was."""
    found = local_server(home)
    return found.url if found else None


def local_server(home: Path) -> ServerAddress | None:
    path = home / "server.json"
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        ca = described.get("ca")
        return ServerAddress(str(described["url"]), read_ca(Path(ca)) if ca else None)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ServerUnreachable(
            f"{path} cannot be read: {error}", hint="Run `corral down`, then `corral up --detach`."
        ) from error


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
