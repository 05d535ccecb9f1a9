"""Making room for a gang: on as many hosts as it takes, or nobody is asked at all."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from corral.core.queue.free_capacity import HostCapacity
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId, LeaseId, RunId
from corral.domain.runs.queue import LeaseHolding


class HostVictims(NamedTuple):
    """What a host holds, and whom of it may be asked to yield, in the order in which that is done."""

    host: Host
    held: Sequence[LeaseHolding]
    victims: Sequence[tuple[LeaseId, RunId]]


class GangRoom(NamedTuple):
    """The host that each rank would have, and who must yield on them."""

    hosts: tuple[HostId, ...]
    victims: tuple[RunId, ...]


class _Place(NamedTuple):
    """Room for one rank more: how many more must yield for it than for the place before, and who in all."""

    cost: int
    host_id: HostId
    number: int
    yields: tuple[RunId, ...]


def room_for_gang(hosts: Sequence[HostVictims], need: Requirements) -> GangRoom | None:
    """Where the fewest must yield; None if it fits as it is, or not even if all do."""
    places = [_places(one, need) for one in hosts]
    coming = [(first, index) for index, mine in enumerate(places) if (first := next(mine, None))]
    heapq.heapify(coming)
    chosen: list[_Place] = []
    while coming and len(chosen) < need.ranks:
        place, index = heapq.heappop(coming)
        chosen.append(place)
        if (following := next(places[index], None)) is not None:
            heapq.heappush(coming, (following, index))
    victims = tuple(dict.fromkeys(run_id for place in chosen for run_id in place.yields))
    if len(chosen) < need.ranks or not victims:
        return None
    return GangRoom(tuple(place.host_id for place in chosen), victims)


def _places(one: HostVictims, need: Requirements) -> Iterator[_Place]:
    """Those that are there, then those that each further victim makes."""
    held, gone, number, paid = list(one.held), list[RunId](), 0, 0
    for lease_id, run_id in [(None, None), *one.victims]:
        if run_id is not None:
            held = [item for item in held if item.lease_id != lease_id]
            gone.append(run_id)
        for _ in range(HostCapacity(one.host, held).places(need, need.ranks) - number):
            number += 1
            yield _Place(len(gone) - paid, one.host.id, number, tuple(gone))
            paid = len(gone)
