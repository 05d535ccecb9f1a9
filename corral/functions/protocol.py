"""What a backend of calls is: a server over HTTP, or the channel of an instance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from corral.functions.codec import Pieces
from corral.functions.member import Member


@dataclass(frozen=True)
class EndpointTarget:
    """What is called: an endpoint of a project. `version` 0 is whichever serves."""

    project: str
    endpoint: str
    version: int = 0


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
    """A call as it was last seen; `result` is (format, bytes) once it succeeded."""

    id: str
    state: str
    result: tuple[str, bytes | memoryview] | None = None
    error: dict[str, Any] | None = None
    attempt: int = 0
    # What it waits for, as long as it has not begun; only where one call was asked for.
    waiting: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled", "expired")


@dataclass(frozen=True)
class StreamChunk:
    """What a generator gave: its number, format and bytes."""

    n: int
    format: str
    data: bytes | memoryview


class VolumeFile(NamedTuple):
    """A file of a volume: its path, size, and the SHA-256 of its bytes."""

    path: str
    size: int
    sha256: str


class Backend(Protocol):
    def find(self, member: Member) -> EndpointTarget:
        """Where the member is served; one that is not deployed is made ready to be called."""
        ...

    def look_up(self, project: str | None, name: str) -> tuple[EndpointTarget, dict[str, Any], str]:
        """The endpoint of that name, its functions as they were deployed, and no method; or else of the name
        without its last part, which is a method then."""
        ...

    def forget(self, target: EndpointTarget) -> None:
        """It was removed meanwhile; `find` makes it ready again."""
        ...

    def make(
        self, target: EndpointTarget, asks: Sequence[OutgoingCall], wait_s: float
    ) -> list[CallStatus]: ...

    def collect(self, call_ids: Sequence[str], wait_s: float) -> list[CallStatus]: ...

    def get(self, call_id: str, wait_s: float) -> CallStatus: ...

    def chunks(
        self, call_id: str, after: int, wait_s: float
    ) -> tuple[list[StreamChunk], bool, dict[str, Any] | None]:
        """What came after that number, whether that was all, and the error that ended it."""
        ...

    def cancel(self, call_id: str) -> None: ...

    def logs(self, call_id: str) -> Iterator[tuple[float, str, str]]: ...

    def volume(self, name: str, project: str | None, what: str, given: dict[str, Any]) -> dict[str, Any]:
        """Do one of the things that a volume can: path, commit, reload, put, get, ls, rm."""
        ...
