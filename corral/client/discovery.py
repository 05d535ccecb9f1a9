"""Finds the server and the token that goes with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from corral.domain.errors import ServerUnreachable, Unauthenticated


@dataclass(frozen=True)
class Address:
    url: str
    token: str


def discover(*, url: str | None, token: str | None, home: Path) -> Address:
    """What was given explicitly wins; the rest is read from the files that a server here has written.

    Raises ServerUnreachable when there is no address, Unauthenticated when there is no token for it.
    """
    local = local_url(home)
    found = url or local
    if found is None:
        raise ServerUnreachable(f"no server is known: CORRAL_URL is not set and {home} holds no server.json")
    if token:
        return Address(found, token)
    # This machine's operator token is for this machine's server, not for whatever CORRAL_URL names.
    if url is not None and url.rstrip("/") != (local or "").rstrip("/"):
        raise Unauthenticated(
            f"CORRAL_URL is {url}, but CORRAL_TOKEN is not set",
            hint="Set CORRAL_TOKEN to a token of that server (`corral tokens create` makes one there).",
        )
    return Address(found, _operator_token(home / "operator.token"))


def local_url(home: Path) -> str | None:
    """Where the server of this home listens, or last did; None when none ever was."""
    path = home / "server.json"
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        return str(described["url"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError) as error:
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
