"""Giving a worker leases on runs that fit its host."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.core.hosts import faults
from corral.core.leases.fence import release_boot
from corral.core.logs import left_bytes
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.choose import Choice, Chooser
from corral.core.queue.free_capacity import HostCapacity
from corral.core.queue.grants import ASSIGNED, Grant, Granting, place_of
from corral.core.queue.grow import Grower
from corral.core.queue.lanes import Candidate
from corral.core.queue.one_run import OneRunChooser
from corral.core.queue.rooms import Room
from corral.domain.artifacts import Artifact
from corral.domain.canonical import digest_of
from corral.domain.errors import Forbidden, NotFound, found
from corral.domain.hosts.capability import RamNow
from corral.domain.hosts.hosts import NO_WORKER, Host
from corral.domain.ids import HostId, LeaseId, RunId
from corral.domain.leases import Lease
from corral.domain.runs.queue import LeaseHolding
from corral.domain.runs.runs import Run
from corral.domain.runs.states import LEASED
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
    # When it asked; a claim that waits looks again and again, and what it asked for may be out of date.
    asked_at: float = 0.0


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
        boot_id = NO_WORKER if self.ask.draining else self.ask.boot_id
        new = host._replace(slots=self.ask.slots, boot_id=boot_id)
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
            self.board.rooms.gone(host.id)
            return []
        ask = self.ask
        chooser = self._chooser(tx, host, held, now)
        self.free = chooser.free
        chooser.free.slots += ask.lent_slots
        granting = Granting(tx, self.board, self.policy, host.id, ask.boot_id, ask.request_id, now)
        grants = self._taken_up(tx, held)
        most, asked_at = self._last_ask()
        while (left := most - len(grants)) > 0 and (choice := chooser.next(left)) is not None:
            for lease, run in _made(granting, choice):
                chooser.granted(lease, self.board.shapes.get(tx, run.shape))
                if lease.host_id == host.id:
                    grants.append(self._grant(tx, lease, run, choice.spec))
        if (left := most - len(grants)) > 0:
            grants += [self._grant(tx, *grown) for grown in self._grown(Grower(granting, chooser), left)]
        # One that asks for nothing reports news, and says nothing of its room.
        if ask.only is None and ask.max_leases:
            self.board.rooms.saw(Room(host, chooser.free, most - len(grants), now, asked_at))
        return grants

    def _grown(self, grower: Grower, most: int) -> Iterator[tuple[Lease, Run, str]]:
        if self.ask.only is not None:
            return grower.join(self.ask.only)
        return grower.grow(most) if self.board.growth else iter(())

    def _last_ask(self) -> tuple[int, float]:
        """How many leases the worker asks for, and since when."""
        ask = self.ask
        if ask.only is not None or not ask.max_leases:
            return ask.max_leases, ask.asked_at
        return self.board.rooms.last_ask(ask.host_id, ask.max_leases, ask.asked_at)

    def _taken_up(self, tx: Tx, held: list[LeaseHolding]) -> list[Grant]:
        """What was assigned to the host while its claim waited, which may have asked for less than that."""
        if not self.ask.max_leases:
            return []
        assigned = [item.lease_id for item in held if item.request_id == ASSIGNED]
        for lease_id in assigned:
            tx.leases.take_up(lease_id, request_id=self.ask.request_id, boot_id=self.ask.boot_id)
        return [self._render(tx, lease_id) for lease_id in assigned]

    def _chooser(self, tx: Tx, host: Host, held: list[LeaseHolding], now: float) -> Chooser:
        if self.ask.only is None:
            return Chooser(self.board, self.policy, tx, host, held, now, self.taken)
        return OneRunChooser(self.board, self.policy, tx, host, held, now, self.taken, only=self.ask.only)

    def _grant(self, tx: Tx, lease: Lease, run: Run, spec: str) -> Grant:
        left = left_bytes(tx, run, self.policy)
        return Grant(lease, run, spec, _resume(tx, run, lease.rank), left, place_of(tx, run, lease))

    def _render(self, tx: Tx, lease_id: LeaseId) -> Grant:
        """The answer anew: it is never stored, so that it cannot be out of date."""
        lease = tx.leases.get(lease_id)
        run = None if lease is None else tx.runs.get(lease.run_id)
        if lease is None or run is None or run.state not in LEASED:
            raise NotFound(f"lease {lease_id} has no running run")
        return self._grant(tx, lease, run, tx.runs.spec(run.id))


def _made(granting: Granting, choice: Choice) -> list[tuple[Lease, Run]]:
    if choice.run.world_size == 1:
        return [granting.alone(choice.run, choice.seats[0], choice.gpu_bytes)]
    leases, run = granting.gang(choice.run, choice.seats, choice.gpu_bytes)
    return [(lease, run) for lease in leases]


def _with_report(host: Host, capability: str, now: float) -> Host:
    report = json.loads(capability)
    host = faults.reported(host, report.get("fault"), now=now)
    if capability == host.capability:
        return host
    return host._replace(capability=capability, capability_digest=digest_of(report))


def _resume(tx: Tx, run: Run, rank: int) -> Artifact | None:
    """The newest checkpoint, for an attempt after the first, or for a rank that joins one that goes on.

    Replicas that train apart each have one of their own, and meet where no checkpoint is needed.
    """
    if run.attempt == 1 and not run.elastic:
        return None
    if run.kind == "train" and run.world_size > 1:
        return tx.artifacts.newest_checkpoint_of_rank(run.id, rank)
    return tx.artifacts.newest_checkpoint(run.id)
