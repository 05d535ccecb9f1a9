"""What Modal tells of the end of a sandbox, as what is seen of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from corral.domain.placements.orders import RankSighting, SightCause, Sighting, SightState

_SIGNALS = range(129, 129 + 64)
_CAUSES = {
    "TIMEOUT": SightCause.DEADLINE,
    "IDLE_TIMEOUT": SightCause.DEADLINE,
    "KERNEL_OOM_KILL": SightCause.OUT_OF_MEMORY,
    "MEMORY_THRASHING_EVICTION": SightCause.OUT_OF_MEMORY,
    "MEMORY_MANAGER_EVICTION": SightCause.EVICTED,
    "INIT_FAILURE": SightCause.UNKNOWN,
    "INTERNAL_FAILURE": SightCause.UNKNOWN,
    "TERMINATED": SightCause.UNKNOWN,
}


class SandboxEnd(NamedTuple):
    """`status` is Modal's own word for it; empty if it is not known. `asked` says that we ended it."""

    status: str
    exit_code: int | None
    words: str = ""
    asked: bool = False


def ended_rank(rank: int, end: SandboxEnd, sandbox: str) -> RankSighting:
    told = ": ".join(word for word in (end.status, end.words) if word)
    if end.status == "TERMINATED" and end.asked:
        return RankSighting(rank, SightState.FAILED, SightCause.CANCELLED, told, node=sandbox)
    if end.status in _CAUSES:
        # The codes that the SDK has for these are its own.
        return RankSighting(rank, SightState.FAILED, _CAUSES[end.status], told, node=sandbox)
    if end.exit_code == 0:
        return RankSighting(rank, SightState.SUCCEEDED, exit_code=0, node=sandbox)
    code = end.exit_code
    cause = SightCause.UNKNOWN if code is None else SightCause.EXITED
    number = code - 128 if code is not None and code in _SIGNALS else None
    return RankSighting(
        rank, SightState.FAILED, cause, end.words, exit_code=code, signal=number, node=sandbox
    )


def launch_sighting(ranks: Sequence[RankSighting]) -> Sighting:
    over = (SightState.SUCCEEDED, SightState.FAILED, SightState.GONE)
    return Sighting(all(one.state in over for one in ranks), tuple(ranks))


def is_broken(ranks: Sequence[RankSighting], min_ranks: int) -> bool:
    """Fewer than it must have can ever work together: what is left of it waits for nothing."""
    lost = sum(1 for one in ranks if one.state in (SightState.FAILED, SightState.GONE))
    return len(ranks) - lost < min_ranks
