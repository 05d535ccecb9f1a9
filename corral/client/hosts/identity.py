"""Who a host is, as files in its worker's folder.

`token` alone decides; `host.json` says what goes with it, `client.pem` is a key and its certificate, and
`ca.pem` the authority of the server that it joined. A local server's worker has `token` and `host.json` only.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from corral.domain.errors import CorralError
from corral.files.atomic import write_private

TOKEN, ABOUT, CLIENT, CA = "token", "host.json", "client.pem", "ca.pem"


class BadIdentity(CorralError):
    code = "bad_identity"
    hint = (
        "Enrol again with `corral host enroll`; for this machine's own server, remove the worker's folder "
        "and start the server again: it writes a new identity."
    )


@dataclass(frozen=True)
class HostIdentity:
    """`url` is the server that the host joined; None for this home's own. Times are of this host's clock."""

    host_id: str
    name: str
    token: str
    url: str | None = None
    labels: tuple[str, ...] = ()
    slots: int | None = None
    issued_at: float | None = None
    expires_at: float | None = None


def read_identity(worker_home: Path) -> HostIdentity | None:
    """None while there is none; BadIdentity if it cannot be understood."""
    try:
        token = (worker_home / TOKEN).read_text(encoding="utf-8").strip()
        said = (worker_home / ABOUT).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        described = json.loads(said)
        return HostIdentity(
            host_id=str(described["host_id"]),
            name=str(described["name"]),
            token=token,
            url=described.get("url"),
            labels=tuple(str(label) for label in described.get("labels", ())),
            slots=described.get("slots"),
            issued_at=described.get("issued_at"),
            expires_at=described.get("expires_at"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadIdentity(f"{worker_home / ABOUT} is not an identity: {error}") from error


def write_identity(worker_home: Path, identity: HostIdentity, *, client_pem: str | None) -> None:
    """A new one. The token is removed first and written last: it never lies beside another's identity."""
    (worker_home / TOKEN).unlink(missing_ok=True)
    (worker_home / CLIENT).unlink(missing_ok=True)
    if client_pem is not None:
        write_private(worker_home / CLIENT, client_pem)
    _write_about(worker_home, identity)
    write_private(worker_home / TOKEN, identity.token + "\n")


def write_rotated(worker_home: Path, identity: HostIdentity, *, client_pem: str | None) -> None:
    """Another credential of the same host.

    When it ends comes last: a kill before makes for one rotation more, the other order would make for none.
    """
    if client_pem is not None:
        write_private(worker_home / CLIENT, client_pem)
    write_private(worker_home / TOKEN, identity.token + "\n")
    _write_about(worker_home, identity)


def _write_about(worker_home: Path, identity: HostIdentity) -> None:
    about = {key: value for key, value in asdict(identity).items() if key != "token"}
    write_private(worker_home / ABOUT, json.dumps(about) + "\n")


def remove_identity(worker_home: Path) -> None:
    for name in (TOKEN, ABOUT, CLIENT, CA):
        (worker_home / name).unlink(missing_ok=True)


def machine_name() -> str:
    """This machine's own name, as far as a host can be called that."""
    kept = "".join(c if c.isalnum() and c.isascii() else "-" for c in socket.gethostname()).strip("-")
    return kept[:64].strip("-") or "this-machine"
