"""A gang that all hosts together could never hold is refused when it is submitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corral.core.queue.eligibility import policy_refusals, verdict
from corral.core.queue.free_capacity import HostCapacity
from corral.domain.errors import FieldError, InvalidInput
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx

_PAGE = 100
# Of what hosts lack, so many are told.
_TOLD = 5


def too_many_ranks(tx: Tx, run: Run, need: Requirements, *, prefix: str = "") -> InvalidInput | None:
    """Counted by what hosts have in all, whether they are busy or away; None where none has joined yet."""
    # What a cluster could hold, it says itself when it is asked.
    if not need.is_gang or need.executors:
        return None
    places, lacking = 0, []
    for host in _joined(tx):
        here, why = _places(host, run, need, need.ranks - places)
        places += here
        if places >= need.ranks:
            return None
        lacking.append(f"{host.name} holds {here}{f' ({why})' if why else ''}")
    if not lacking:
        return None
    problem = (
        f"asks for {need.ranks} ranks at once; all hosts together hold {places}: {_told(sorted(lacking))}"
    )
    return InvalidInput(
        f"`{prefix}replicas` {problem}",
        hint="Lower `replicas` or `[resources]`, which each rank has to itself, or let more hosts join.",
        fields=[FieldError(f"{prefix}replicas", problem)],
    )


def _joined(tx: Tx) -> Iterator[Host]:
    """A page after the other: of many hosts the first few are enough for most gangs."""
    after: HostId | None = None
    while page := tx.hosts.joined(after, _PAGE):
        yield from (host for host in page if host.capability is not None and host.revoked_at is None)
        after = page[-1].id


def _places(host: Host, run: Run, need: Requirements, most: int) -> tuple[int, str]:
    """How many ranks the host holds while it does nothing else, and why it holds none."""
    reasons = (*verdict(need, host).shortfalls, *policy_refusals(need, host, run))
    return (0, "; ".join(reasons)) if reasons else (HostCapacity(host, ()).places(need, most), "")


def _told(lacking: Sequence[str]) -> str:
    more = len(lacking) - _TOLD
    return ", ".join(lacking[:_TOLD]) + (f", and {more} more hosts" if more > 0 else "")
