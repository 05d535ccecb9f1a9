"""Whether the server is well, and what `fsck` says."""

from __future__ import annotations

from corral.wire.base import Answer


class Health(Answer):
    ok: bool
    version: str
    api: str = "v1"
    detail: str = ""
    # The server's clock, for a host that wants to know how far its own is off.
    now: float | None = None


class FsckLine(Answer):
    """One line of the NDJSON stream that `POST /v1/fsck` answers with; the last has `done`."""

    check: str
    checked: int = 0
    problem: str | None = None
    done: bool = False
