"""Giving a worker leases on runs that fit its host."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.core.hosts import faults
from corral.core.hosts.prices import price_per_hour
from corral.core.leases.fence import release_boot
from corral.core.logs import left_bytes
from corral.core.policy import ServerPolicy
from corral.core.queue.choose import Board, Choice, Chooser
from corral.core.queue.free_capacity import HostCapacity
from corral.core.queue.lanes import Candidate
from corral.core.queue.one_run import OneRunChooser
from corral.core.runs.dependencies import move
from corral.domain.artifacts import Artifact
from corral.domain.canonical import canonical, digest_of
from corral.domain.errors import Forbidden, NotFound, found
from corral.domain.hosts.capability import RamNow
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId, LeaseId, RunId, new_lease_id
from corral.domain.leases import Lease, LeaseState
from corral.domain.runs.queue import LeaseHolding
from corral.domain.runs.runs import Attempt, Rank, Run
from corral.domain.runs.states import LEASED, RankEvent, RankState, RunEvent
from corral.store.transaction import Tx

SEEN_EVERY_S = 10.0


class ClaimTerms(NamedTuple):
    host_id: HostId
    boot_id: str
    request_id: str
    slots: int
    max_leases: int
    draining: bool
    capability: str | None
    holding: tuple[str, ...] | None
    # The one run that the worker may be given; None for any.
    only: RunId | None = None
    # Slots of instances whose calls wait for other calls, which may need them.
    lent_slots: int = 0
    # What the worker sees of its host's memory.
    ram: RamNow | None = None


class Grant(NamedTuple):
    """A lease and what its worker must know to begin."""

    lease: Lease
    run: Run
    spec: str
    resume: Artifact | None
    log_left_bytes: int

    @property
    def wall_left_s(self) -> float | None:
        return None if self.run.wall_limit_s is None else max(0.0, self.run.wall_limit_s - self.run.ran_s)


class ClaimResult(NamedTuple):
    grants: tuple[Grant, ...]
    released: tuple[LeaseId, ...]


@dataclass
class Claim:
    """A unit of work. It may run again after a lost race, so it gives back what its last try took."""

    board: Board
    policy: ServerPolicy
    ask: ClaimTerms
    now: Callable[[], float]
    taken: list[Candidate] = field(default_factory=list)
    host: Host | None = None
    # What the host had left afterwards; None if it was not looked at.
    free: HostCapacity | None = None

    def __call__(self, tx: Tx) -> ClaimResult:
        self.undo()
        now = self.now()
        host = self.host = self._host(tx, now)
        released: tuple[LeaseId, ...] = ()
        if self.ask.holding is not None:
            shares, boot_id = self.board.shares, self.ask.boot_id
            released = release_boot(tx, host, boot_id, self.ask.holding, now=now, shares=shares)
        held = tx.leases.held(host.id)
        earlier = [item.lease_id for item in held if item.request_id == self.ask.request_id]
        if earlier:
            return ClaimResult(tuple(self._render(tx, lease_id) for lease_id in earlier), released)
        return ClaimResult(tuple(self._grants(tx, host, held, now)), released)

    def undo(self) -> None:
        self.board.lanes.put_back(self.taken)
        self.taken = []

    def _host(self, tx: Tx, now: float) -> Host:
        # Held against another claim of the same host, or both would count the same free slots.
        host_id, hint = self.ask.host_id, "Enrol the host again."
        host = found(tx.hosts.lock(host_id), f"there is no host {host_id}", hint=hint)
        if host.revoked_at is not None:
            # It was let in before it was revoked, and has waited since.
            raise Forbidden(f"host {host.name} is revoked", hint=hint)
        new = host._replace(slots=self.ask.slots, boot_id=self.ask.boot_id)
        if self.ask.capability is not None:
            new = _with_report(new, self.ask.capability, now)
        if new != host:
            new = new._replace(last_seen_at=now)
            tx.hosts.save(new)
        elif host.last_seen_at is None or now - host.last_seen_at > SEEN_EVERY_S:
            new = new._replace(last_seen_at=now)
            tx.hosts.seen(host.id, now)
        self.board.roster.saw(new, self.ask.ram)
        return new

    def _grants(self, tx: Tx, host: Host, held: list[LeaseHolding], now: float) -> list[Grant]:
        if self.ask.draining or host.capability is None or not host.takes_work(now):
            return []
        chooser = self._chooser(tx, host, held, now)
        self.free = chooser.free
        chooser.free.slots += self.ask.lent_slots
        grants: list[Grant] = []
        while len(grants) < self.ask.max_leases and (choice := chooser.next()) is not None:
            lease, run = self._lease(tx, host, choice, now)
            chooser.granted(lease, self.board.shapes.get(tx, run.shape))
            grants.append(Grant(lease, run, choice.spec, _resume(tx, run), left_bytes(tx, run, self.policy)))
        return grants

    def _chooser(self, tx: Tx, host: Host, held: list[LeaseHolding], now: float) -> Chooser:
        if self.ask.only is None:
            return Chooser(self.board, self.policy, tx, host, held, now, self.taken)
        return OneRunChooser(self.board, self.policy, tx, host, held, now, self.taken, only=self.ask.only)

    def _lease(self, tx: Tx, host: Host, choice: Choice, now: float) -> tuple[Lease, Run]:
        run, gpus = choice.run, choice.gpus
        lease_id = new_lease_id()
        rank = _claim_rank(tx, run, lease_id, now)
        lease = Lease(
            id=lease_id,
            run_id=run.id,
            project=run.project,
            attempt=rank.attempt,
            rank=rank.rank,
            epoch=rank.epoch,
            host_id=host.id,
            boot_id=self.ask.boot_id,
            request_id=self.ask.request_id,
            gpus=canonical(gpus),
            state=LeaseState.LIVE,
            granted_at=now,
            beaten_at=None,
            expires_at=now + self.policy.first_beat_s,
            active_at=now,
            gpu_bytes=choice.gpu_bytes,
            price_per_hour=price_per_hour(host, gpus, choice.gpu_bytes),
        )
        tx.leases.insert(lease)
        run = move(
            tx,
            run,
            RunEvent.CLAIM,
            at=now,
            actor=f"host:{host.id}",
            data={
                "attempt": lease.attempt,
                "rank": lease.rank,
                "epoch": lease.epoch,
                "lease": lease.id,
                **_cards(host, gpus),
            },
            attempt=lease.attempt,
            epoch=lease.epoch,
            started_at=run.started_at if run.started_at is not None else now,
            last_host=host.id,
            reason=None,
            detail=None,
        )
        self.board.shares.claimed(run.project, len(gpus))
        return lease, run

    def _render(self, tx: Tx, lease_id: LeaseId) -> Grant:
        """The answer anew: it is never stored, so that it cannot be out of date."""
        lease = tx.leases.get(lease_id)
        run = None if lease is None else tx.runs.get(lease.run_id)
        if lease is None or run is None or run.state not in LEASED:
            raise NotFound(f"lease {lease_id} has no running run")
        return Grant(lease, run, tx.runs.spec(run.id), _resume(tx, run), left_bytes(tx, run, self.policy))


def _with_report(host: Host, capability: str, now: float) -> Host:
    report = json.loads(capability)
    host = faults.reported(host, report.get("fault"), now=now)
    if capability == host.capability:
        return host
    return host._replace(capability=capability, capability_digest=digest_of(report))


def _cards(host: Host, gpus: tuple[int, ...]) -> dict[str, list[str]]:
    """Which GPUs it got, for whoever asks later what a result was made on."""
    if not gpus:
        return {}
    known = {gpu["index"]: gpu["name"] for gpu in json.loads(host.capability or "{}").get("gpus") or ()}
    return {"gpus": [f"{index}: {known.get(index, 'unknown')}" for index in gpus]}


def _resume(tx: Tx, run: Run) -> Artifact | None:
    return tx.artifacts.newest_checkpoint(run.id) if run.attempt > 1 else None


def _claim_rank(tx: Tx, run: Run, lease_id: LeaseId, now: float) -> Rank:
    """The first rank that waits becomes the lease's; if none does, the next attempt is opened."""
    ranks = tx.attempts.ranks(run.id, run.attempt) if run.attempt else []
    waiting = next((rank for rank in ranks if rank.state is RankState.WAITING), None)
    if waiting is not None:
        rank = _taken(waiting, run.epoch + 1, lease_id)
        tx.attempts.save_rank(rank)
        return rank
    if run.attempt:
        tx.attempts.close(run.id, run.attempt, now)
    number = run.attempt + 1
    tx.attempts.open(Attempt(run.id, number, now, None))
    made = [Rank(run.id, number, rank) for rank in range(run.world_size)]
    made[0] = _taken(made[0], run.epoch + 1, lease_id)
    for rank in made:
        tx.attempts.insert_rank(rank)
    return made[0]


def _taken(rank: Rank, epoch: int, lease_id: LeaseId) -> Rank:
    return rank.stepped(RankEvent.CLAIM)._replace(epoch=epoch, lease_id=lease_id, reason=None)
