"""What a cluster tells of a launch, as it is kept and as people read it."""

from __future__ import annotations

from collections.abc import Mapping

from corral.domain.placements.orders import RankSighting, SightCause, Sighting
from corral.domain.runs.reasons import Reason

# A cluster may say as much as it likes; so much of it is kept.
MOST_CHARS = 2000


def rendered(sighting: Sighting) -> Mapping[str, object]:
    return {
        "ended": sighting.ended,
        "detail": sighting.detail[:MOST_CHARS],
        "ranks": [_short(rank)._asdict() for rank in sighting.ranks],
    }


def _short(rank: RankSighting) -> RankSighting:
    return rank if len(rank.detail) <= MOST_CHARS else rank._replace(detail=rank.detail[:MOST_CHARS])


def reason_of(sighting: Sighting | None) -> Reason:
    """Why a run has lost its workers."""
    ranks = () if sighting is None else sighting.ranks
    killed = any(rank.cause is SightCause.OUT_OF_MEMORY for rank in ranks)
    return Reason.OUT_OF_MEMORY if killed else Reason.PLACEMENT_LOST


def why_ended(sighting: Sighting | None) -> str:
    """In the cluster's words, as far as it told any."""
    if sighting is None:
        return "the cluster knows nothing of it any more"
    told = [
        f"rank {rank.rank}: {_in_words(rank)}"
        for rank in sighting.ranks
        if rank.cause not in (None, SightCause.UNKNOWN) or rank.detail
    ]
    return "; ".join(dict.fromkeys([sighting.detail, *told[:5]] if sighting.detail else told[:5])) or (
        "its workers have ended, and the cluster does not say why"
    )


def _in_words(rank: RankSighting) -> str:
    """The cluster's words, after a cause that was read from elsewhere: "Killed" says nothing of memory."""
    if rank.cause is SightCause.OUT_OF_MEMORY and rank.detail:
        return f"out of memory ({rank.detail})"
    return str(rank.detail or rank.cause)
