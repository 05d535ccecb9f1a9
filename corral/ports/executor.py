"""An executor brings workers up next to hardware, and takes them away; the workers do the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from corral.domain.errors import Conflict, CorralError
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import Capacity, Launched, LaunchOrder, PreflightCheck, Sighting
from corral.domain.placements.placements import ExecutorKind, ExecutorRecord


class ExecutorUnreachable(CorralError):
    """The cluster did not answer, or the answer was lost. Nothing is known; try again."""

    code = "executor_unreachable"
    hint = "Corral tries again by itself; `corral executors check NAME` says what is missing."


class LaunchRefused(Conflict):
    """The cluster will never take this order as it is. Its own words are in the message."""

    code = "launch_refused"


class Executor(Protocol):
    """Calls block, and may be made from any thread. Each either holds or raises; a call that raised
    ExecutorUnreachable may have been carried out, and can be repeated."""

    def preflight(self) -> Sequence[PreflightCheck]:
        """All that a launch needs, each with what to do if it is missing. Changes nothing."""
        ...

    def capacities(self) -> Sequence[Capacity]:
        """The kinds of machines there are, as far as the cluster tells."""
        ...

    def refusals(self, need: Requirements, ranks: int) -> Sequence[str]:
        """Every reason why this could never run here; empty if it could, or if that is not known."""
        ...

    def launch(self, order: LaunchOrder) -> str:
        """The handle. The same key again gives the same handle: never two launches of one key, not even
        after an answer was lost or another process asked at the same time. LaunchRefused for good."""
        ...

    def observe(self, handles: Sequence[str]) -> Mapping[str, Sighting]:
        """All of them with as few requests as the cluster allows, one if it can. A handle that is not in
        the answer is unknown to the cluster: it has ended, and nobody knows how."""
        ...

    def logs(self, handle: str, rank: int, *, most_bytes: int) -> str:
        """The end of what a worker itself wrote, for when it never came up."""
        ...

    def cancel(self, handle: str) -> None:
        """Returns when the cluster has taken it in; nothing of it is left a while later. One that has
        ended, or that nobody knows, is no error."""
        ...

    def launched(self, installation: str) -> Sequence[Launched]:
        """Everything there that carries the mark of an installation and has not ended."""
        ...

    def close(self) -> None: ...


class ExecutorFactory(Protocol):
    """Makes executors of every kind that this server was built with."""

    def checked(self, kind: ExecutorKind, options: Mapping[str, object]) -> dict[str, object]:
        """The options as they are kept, with defaults filled in. InvalidInput names each that is wrong."""
        ...

    def open(self, record: ExecutorRecord) -> Executor:
        """Asks nothing of the cluster yet. CorralError if what it needs is not installed here."""
        ...
