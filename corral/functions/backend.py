"""Where calls go: a server over HTTP, or inside an instance its own channel. A program has one backend."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from corral.errors import FunctionError
from corral.functions.member import Member
from corral.functions.pickle_names import pickle_as
from corral.functions.serialize import Pieces

# A value as it travels: its format, and its bytes.
Payload: TypeAlias = tuple[str, bytes | memoryview]


@dataclass(frozen=True)
class EndpointTarget:
    """What is called: an endpoint of a project. `version` 0 is whichever serves.

    `module` is what its instances import, where that is known.
    """

    project: str
    endpoint: str
    version: int = 0
    module: str | None = None


@dataclass(frozen=True)
class OutgoingCall:
    """One call as it is sent; `params` are those of the class, already bytes."""

    function: str
    format: str
    args: bytes | Pieces
    params: tuple[str, bytes] | None = None
    key: str | None = None
    priority: int = 0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CallStatus:
    """A call as it was last seen; it has a `result` once it succeeded."""

    id: str
    state: str
    result: Payload | None = None
    error: dict[str, Any] | None = None
    # What the call waits for, as long as it has not begun; known only where one call was asked for.
    waiting: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled", "expired")


class VolumeFile(NamedTuple):
    """A file of a volume: its path, size, and the SHA-256 of its bytes."""

    path: str
    size: int
    sha256: str


pickle_as("corral.functions.protocol", Target=EndpointTarget, Seen=CallStatus, VolumeFile=VolumeFile)


class Backend(Protocol):
    def find(self, member: Member) -> EndpointTarget:
        """Where the member is served; one that is not deployed is made ready to be called."""
        ...

    def look_up(self, project: str | None, name: str) -> tuple[EndpointTarget, dict[str, Any], str]:
        """The endpoint of that name, its functions as they were deployed, and no method.

        If there is none, the same for the name without its last part, which is the method then.
        """
        ...

    def forget(self, target: EndpointTarget) -> None:
        """The endpoint was removed meanwhile; `find` makes it ready again."""
        ...

    def make(
        self, target: EndpointTarget, asks: Sequence[OutgoingCall], wait_s: float
    ) -> list[CallStatus]: ...

    def collect(self, call_ids: Sequence[str], wait_s: float) -> list[CallStatus]: ...

    def get(self, call_id: str, wait_s: float, within_s: float | None = None) -> CallStatus:
        """`wait_s` is how long its end is waited for, `within_s` how long a server that does not answer."""
        ...

    def chunks(
        self, call_id: str, after: int, wait_s: float
    ) -> tuple[dict[int, Payload], bool, dict[str, Any] | None]:
        """By number what a generator gave after `after`; whether that was all; the error that ended it."""
        ...

    def cancel(self, call_id: str) -> None: ...

    def logs(self, call_id: str) -> Iterator[str]: ...

    def volume(self, name: str, project: str | None, what: str, given: dict[str, Any]) -> dict[str, Any]:
        """Do one of the things that a volume can: path, commit, reload, put, get, ls, rm."""
        ...


_lock = threading.Lock()
_backend: Backend | None = None


def backend() -> Backend:
    """The program's backend; HTTP unless `set_backend` gave another."""
    global _backend
    with _lock:
        if _backend is None:
            _backend = _over_http()
        return _backend


def _over_http() -> Backend:
    # The one module here that needs the client. An instance may have none, and never comes here.
    try:
        module = importlib.import_module("corral.functions.http_backend")
    except ImportError as error:
        raise FunctionError(f"this Python cannot reach a server: {error}") from error
    found: Backend = module.HttpBackend.from_settings()
    return found


def set_backend(made: Backend | None) -> Backend | None:
    """Use another backend, and give the one before."""
    global _backend
    with _lock:
        before, _backend = _backend, made
    return before
