"""Making leases: of a run's one rank, of all ranks of a gang at once, of one more rank of an elastic run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from corral.core.hosts.prices import price_per_hour
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.cohorts import Seat
from corral.core.queue.eligibility import effective_of
from corral.core.runs.dependencies import move
from corral.core.runs.transitions import ready_key, record
from corral.core.topics import TOPIC_ASSIGNED, TOPIC_GROW
from corral.domain.artifacts import Artifact
from corral.domain.canonical import canonical
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId, new_lease_id
from corral.domain.leases import Lease, LeaseState
from corral.domain.runs.runs import Attempt, Rank, Run
from corral.domain.runs.states import RankEvent, RankState, RunEvent
from corral.store.transaction import Tx

# The request id of a lease that its host was assigned and has not taken up; no worker can send it.
ASSIGNED = ""
_LOOPBACK = "127.0.0.1"


class RankPlace(NamedTuple):
    """Where a rank is among the others: of those on its host, and where rank 0 is found.

    `local_gpus` are those of all ranks on the host, in their order, where each has one to itself.
    """

    local_rank: int
    local_world_size: int
    master_addr: str
    local_gpus: tuple[int, ...]


class Grant(NamedTuple):
    """A lease and what its worker must know to begin."""

    lease: Lease
    run: Run
    spec: str
    resume: Artifact | None
    log_left_bytes: int
    place: RankPlace | None = None

    @property
    def wall_left_s(self) -> float | None:
        return None if self.run.wall_limit_s is None else max(0.0, self.run.wall_limit_s - self.run.ran_s)


@dataclass(frozen=True)
class Granting:
    """On behalf of the host that asks: what is for others is assigned, and they are woken."""

    tx: Tx
    board: Board
    policy: ServerPolicy
    host_id: HostId
    boot_id: str
    request_id: str
    now: float

    def alone(self, run: Run, seat: Seat, gpu_bytes: int | None) -> tuple[Lease, Run]:
        """A run of one rank."""
        (rank,) = _next_attempt(self.tx, run, self.now)
        lease, rank = self._lease(run, rank, seat, gpu_bytes, epoch=run.epoch + 1)
        self.tx.attempts.insert_rank(rank)
        data = {"rank": 0, "epoch": lease.epoch, "lease": lease.id, **_cards(seat.host, seat.gpus)}
        return lease, self._started(run, lease, epoch=lease.epoch, data=data)

    def gang(self, run: Run, seats: Sequence[Seat], gpu_bytes: int | None) -> tuple[list[Lease], Run]:
        """As many ranks as there are seats, all at once; those that are left of an elastic run wait."""
        ranks = _next_attempt(self.tx, run, self.now)
        leases: list[Lease] = []
        for number, (rank, seat) in enumerate(zip(ranks, seats, strict=False)):
            lease, taken = self._lease(run, rank, seat, gpu_bytes, epoch=run.epoch + 1 + number)
            leases.append(lease)
            ranks[number] = taken
        for rank in ranks:
            self.tx.attempts.insert_rank(rank)
        hosts: dict[str, list[int]] = {}
        for lease, seat in zip(leases, seats, strict=True):
            hosts.setdefault(seat.host.name, []).append(lease.rank)
        data = {"ranks": len(leases), "epoch": leases[-1].epoch, "lease": leases[0].id, "hosts": hosts}
        run = self._started(run, leases[0], epoch=leases[-1].epoch, data=data)
        for host_id in sorted({lease.host_id for lease in leases if lease.host_id != self.host_id}):
            self.board.rooms.gone(host_id)
            self.tx.announce(TOPIC_ASSIGNED, host_id)
        if len(leases) < run.world_size:
            self.tx.announce(TOPIC_GROW, ready_key(run))
        return leases, run

    def one_more(self, run: Run, rank: Rank, seat: Seat, gpu_bytes: int | None) -> tuple[Lease, Run]:
        """A rank of an elastic run that has none, on the host that asks."""
        if rank.state is RankState.ENDED:
            rank = rank.stepped(RankEvent.RESTART)._replace(restarts=rank.restarts + 1, exit_code=None)
        lease, rank = self._lease(run, rank, seat, gpu_bytes, epoch=run.epoch + 1)
        self.tx.attempts.save_rank(rank)
        data = {"rank": rank.rank, "epoch": lease.epoch, "lease": lease.id, **_cards(seat.host, seat.gpus)}
        run, actor = run._replace(epoch=lease.epoch), f"host:{self.host_id}"
        return lease, record(self.tx, run, "rank_claimed", at=self.now, actor=actor, data=data)

    def _lease(
        self, run: Run, rank: Rank, seat: Seat, gpu_bytes: int | None, *, epoch: int
    ) -> tuple[Lease, Rank]:
        mine = seat.host.id == self.host_id
        lease = Lease(
            id=new_lease_id(),
            run_id=run.id,
            project=run.project,
            attempt=rank.attempt,
            rank=rank.rank,
            epoch=epoch,
            host_id=seat.host.id,
            boot_id=self.boot_id if mine else seat.host.boot_id or "",
            request_id=self.request_id if mine else ASSIGNED,
            gpus=canonical(seat.gpus),
            state=LeaseState.LIVE,
            granted_at=self.now,
            beaten_at=None,
            expires_at=self.now + self.policy.first_beat_s,
            active_at=self.now,
            gpu_bytes=gpu_bytes if seat.gpus else None,
            price_per_hour=price_per_hour(seat.host, seat.gpus, gpu_bytes if seat.gpus else None),
        )
        self.tx.leases.insert(lease)
        self.board.shares.claimed(run.project, len(seat.gpus))
        taken = rank.stepped(RankEvent.CLAIM)._replace(epoch=epoch, lease_id=lease.id, reason=None)
        return lease, taken

    def _started(self, run: Run, first: Lease, *, epoch: int, data: dict[str, object]) -> Run:
        return move(
            self.tx,
            run,
            RunEvent.CLAIM,
            at=self.now,
            actor=f"host:{first.host_id}",
            data={"attempt": first.attempt, **data},
            attempt=first.attempt,
            epoch=epoch,
            started_at=run.started_at if run.started_at is not None else self.now,
            last_host=first.host_id,
            reason=None,
            detail=None,
            # What rank 0 left of an attempt that another rank ended is no result.
            artifact_id=None,
        )


def _next_attempt(tx: Tx, run: Run, now: float) -> list[Rank]:
    """Opens it, and gives its ranks, which are not stored yet. Those that began before say how often."""
    begun: dict[int, int] = {}
    if run.attempt:
        tx.attempts.close(run.id, run.attempt, now)
        before = tx.attempts.ranks(run.id, run.attempt)
        begun = {rank.rank: rank.restarts + (rank.lease_id is not None) for rank in before}
    number = run.attempt + 1
    tx.attempts.open(Attempt(run.id, number, now, None))
    return [Rank(run.id, number, rank, restarts=begun.get(rank, 0)) for rank in range(run.world_size)]


def _cards(host: Host, gpus: tuple[int, ...]) -> dict[str, object]:
    """Which GPUs it got, for whoever asks later what a result was made on."""
    if not gpus:
        return {}
    known = {gpu["index"]: gpu["name"] for gpu in json.loads(host.capability or "{}").get("gpus") or ()}
    return {"gpus": [f"{index}: {known.get(index, 'unknown')}" for index in gpus]}


def place_of(tx: Tx, run: Run, lease: Lease) -> RankPlace | None:
    """None for a run of one rank."""
    if run.world_size == 1:
        return None
    leases = tx.leases.of_attempt(run.id, lease.attempt)
    if run.elastic:
        leases = [one for one in leases if one.state is LeaseState.LIVE]
    here = [one for one in leases if one.host_id == lease.host_id]
    gpus = [tuple(json.loads(one.gpus)) for one in here]
    each_has_one = not run.elastic and lease.gpu_bytes is None and all(len(one) == 1 for one in gpus)
    return RankPlace(
        local_rank=[one.id for one in here].index(lease.id),
        local_world_size=len(here),
        master_addr=_master(tx, run, leases, here),
        local_gpus=tuple(one[0] for one in gpus) if each_has_one else (),
    )


def _master(tx: Tx, run: Run, leases: Sequence[Lease], here: Sequence[Lease]) -> str:
    """Rank 0's host as the others reach it. Those of an elastic run may be anywhere later."""
    if len(here) == len(leases) and not run.elastic:
        return _LOOPBACK
    first = next((one for one in leases if one.rank == 0), None)
    host = None if first is None else tx.hosts.get(first.host_id)
    return _LOOPBACK if host is None else effective_of(host).address or _LOOPBACK
