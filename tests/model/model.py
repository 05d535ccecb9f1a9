"""What the promises say should be there: plain Python, no store, no clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from model.tables import FINAL, LEASED, PAYS, RUN, STOPPING

LEASE_S = 30.0
FIRST_BEAT_S = 10.0
STOP_SLACK_S = 15.0
LONGEST_BACKOFF_S = 60.0
# Ticks further apart than half a lease, or clocks that part by more, are a break.
LONGEST_GAP_S = LEASE_S / 2
TOLERANCE_S = 2.0
SEEN_EVERY_S = 10.0
AWAY_S = 90.0
PREFER_S = 120.0
AGAIN_S = 30.0
STRIKES, QUICK_S, FIRST_ASIDE_S, LONGEST_ASIDE_S = 3, 20.0, 60.0, 3600.0
LIKE_THE_HOST = frozenset({"code_error", "environment", "unknown", "bad_output"})


@dataclass
class Host:
    id: str
    name: str
    token: str
    slots: int
    gpus: int
    labels: tuple[str, ...]
    # By how much its clock is wrong: what it says of times must have no effect but on what is shown.
    skew_s: float = 0.0
    boot: int = 0
    draining: bool = False
    revoked: bool = False
    # What an operator declared of it: at most so many runs at once, and only of these projects.
    most: int | None = None
    projects: tuple[str, ...] | None = None
    seen_at: float | None = None
    seen_boot: int | None = None
    # What is held against it (FL-D33), and until when it gets nothing for it.
    strikes: int = 0
    lost_at: float | None = None
    works: set[str] = field(default_factory=set)
    aside_until: float | None = None
    # Runs that it gave back unstarted a moment ago: it need not be given them again.
    gave_back: dict[str, float] = field(default_factory=dict)

    @property
    def boot_id(self) -> str:
        return f"boot-{self.name}-{self.boot}"

    def fits(self, shape: str) -> bool:
        return {"gpu": self.gpus > 0, "big": "big" in self.labels}.get(shape, True)

    @property
    def room(self) -> int:
        return self.slots if self.most is None else min(self.slots, self.most)

    def admits(self, project: str) -> bool:
        return self.projects is None or project in self.projects

    def seen(self, now: float) -> None:
        if self.seen_at is None or self.seen_boot != self.boot or now - self.seen_at > SEEN_EVERY_S:
            self.seen_at, self.seen_boot = now, self.boot

    def works_at(self, now: float) -> bool:
        aside = self.aside_until is not None and now < self.aside_until
        return not self.draining and not self.revoked and not aside

    def here(self, now: float) -> bool:
        return self.seen_at is not None and now - self.seen_at <= AWAY_S and self.works_at(now)

    def forgive(self) -> None:
        self.strikes, self.lost_at, self.works, self.aside_until = 0, None, set(), None


@dataclass
class Group:
    """At most so many of its runs are queued, with a host or between two tries; the others wait in order."""

    most: int
    id: str = ""
    runs: list[Run] = field(default_factory=list)

    def placed(self) -> int:
        return sum(run.has_place for run in self.runs)

    @property
    def is_full(self) -> bool:
        return sum(run.state in LEASED for run in self.runs) >= self.most

    def let_in(self) -> None:
        waiting = [run for run in self.runs if run.state == "held" and run.held_for == "group"]
        room = max(0, self.most - self.placed())
        for index, run in enumerate(sorted(waiting, key=lambda run: run.age)[:room]):
            run.look()
            run.ready_at += index * 1e-6

    def limit(self, most: int) -> None:
        """What runs goes on; of those that are queued the youngest wait again."""
        self.most = most
        queued = sorted((run for run in self.runs if run.state == "queued"), key=lambda run: run.age)
        over = max(0, self.placed() - most)
        for run in queued[max(0, len(queued) - over) :]:
            run.wait_for_place()
        self.let_in()


@dataclass
class Run:
    id: str
    project: str
    shape: str
    priority: int
    budgets: dict[str, int]
    wall_s: float | None
    stall_s: float | None
    grace_s: float
    ready_at: float
    generation: int = 1
    state: str = "queued"
    epoch: int = 0
    attempt: int = 0
    used: dict[str, int] = field(default_factory=lambda: {"infrastructure": 0, "memory": 0, "code": 0})
    # Type and state of every event; None where an event is no transition.
    history: list[tuple[str, str | None]] = field(default_factory=lambda: [("submit", "queued")])
    ran_s: float = 0.0
    stop_reason: str | None = None
    stop_deadline: float | None = None
    not_before: float | None = None
    result: str | None = None
    logs: list[tuple[int, str]] = field(default_factory=list)
    # The runs that it comes after, each with what becomes of it if that one does not succeed.
    parents: list[tuple[Run, str]] = field(default_factory=list)
    children: list[Run] = field(default_factory=list)
    # "parents", "somebody", "group", or None where only time holds it.
    held_for: str | None = None
    group: Group | None = field(default=None, repr=False)
    waits: tuple[str, int] | None = None
    # How many ranks it has: all start together, and the first that ends takes the others along.
    size: int = 1
    clock: Callable[[], float] = field(default=lambda: 0.0, repr=False)

    def comes_after(self, parents: list[tuple[Run, str]]) -> None:
        """As it is born: held, and settled at once if no parent is to come."""
        self.parents = sorted(parents, key=lambda one: one[0].id)
        for parent, _ in self.parents:
            parent.children.append(self)
        self.state, self.held_for = "held", "parents"
        self.history = [("submit", "held")]
        self.waits = self._waits() or self.waits
        self.look()

    def _waits(self) -> tuple[str, int] | None:
        to_come = [parent.id for parent, _ in self.parents if parent.state not in FINAL]
        return (to_come[0], len(to_come)) if to_come else None

    def look(self) -> None:
        """A parent ended, or somebody let it go: end with them, go on waiting, or be queued (FL-D06)."""
        for parent, on_failure in self.parents:
            if parent.state in ("failed", "cancelled") and on_failure != "run":
                self._step("fail" if on_failure == "fail" else "cancel")
                return
        waits = self._waits()
        if waits is None and self.group is not None and self.group.placed() >= self.group.most:
            if self.held_for != "group":
                self.history.append(("hold", "held"))
            self.held_for = "group"
        elif waits is None:
            self.ready_at = self.clock()
            self.held_for = None
            self._step("release")
        elif waits != self.waits or self.held_for != "parents":
            self.history.append(("hold", "held"))
        self.waits = waits
        if waits is not None:
            self.held_for = "parents"

    def hold(self) -> bool:
        """By somebody; False if it is too late."""
        had = self.has_place
        if self.state == "queued":
            self.move("hold")
        elif self.state != "held":
            return False
        elif self.held_for != "somebody":
            self.history.append(("hold", "held"))
        self.held_for, self.not_before, self.waits = "somebody", None, None
        if had and self.group is not None:
            self.group.let_in()
        return True

    @property
    def has_place(self) -> bool:
        """A retry keeps its place, also between two tries."""
        return self.state not in FINAL and (self.state != "held" or self.held_for is None)

    def wait_for_place(self) -> None:
        self.move("hold")
        self.held_for = "group"

    def joins(self, group: Group) -> None:
        """As it is born."""
        if group.placed() >= group.most:
            self.state, self.held_for = "held", "group"
            self.history = [("submit", "held")]
        self.group = group
        group.runs.append(self)

    @property
    def age(self) -> tuple[float, str]:
        return (self.ready_at, self.id)

    def move(self, event: str) -> None:
        self._step(event)
        if self.state in FINAL:
            self.settle_children()
            if self.group is not None:
                self.group.let_in()

    def settle_children(self) -> None:
        """Children, then theirs where they ended with it; of one parent by their ids."""
        todo = [self]
        for ended in todo:
            for child in sorted(ended.children, key=lambda run: run.id):
                if child.state == "held" and child.held_for == "parents":
                    child.look()
                    todo += [child] if child.state in FINAL else []

    def _step(self, event: str) -> None:
        self.state = RUN[self.state][event]
        self.history.append((event, self.state))

    def note(self, kind: str) -> None:
        self.history.append((kind, None))

    def charge(self, reason: str, amount: int = 1) -> None:
        budget = PAYS[reason]
        if budget in self.used:
            self.used[budget] += amount

    def may_retry(self, reason: str) -> bool:
        budget = PAYS[reason]
        return budget is None or (budget != "never" and self.used[budget] < self.budgets[budget])


@dataclass
class Lease:
    id: str
    run: Run
    host: Host
    boot_id: str
    request_id: str
    attempt: int
    epoch: int
    rank: int
    gpus: int
    granted_at: float
    expires_at: float
    active_at: float
    state: str = "live"
    beaten_at: float | None = None
    seq: int = 0
    counted_s: float = 0.0
    # Its host was lost with it, for all that is known.
    lost: bool = False
    # What its running out was charged as, to be given back should it return.
    charged: str | None = None
    # The path and body of what closed it, and the answer it got.
    outcome: tuple[str, dict[str, Any], Any] | None = None
    outputs: list[str] = field(default_factory=list)
    # It was taken away because another rank's host was lost, which may still bring it back.
    fenced: bool = False
    # The other ranks of the same attempt.
    others: list[Lease] = field(default_factory=list, repr=False)

    @property
    def is_done(self) -> bool:
        return self.outcome is not None and self.outcome[0] == "finish"

    def count(self) -> float:
        """How long it is known to have run: to its last beat. Nothing later proves anything."""
        self.counted_s = max(0.0, (self.beaten_at or self.granted_at) - self.granted_at)
        return self.counted_s

    @property
    def may_return(self) -> bool:
        newest = self.run.attempt == self.attempt and self.run.state == "queued"
        whole = all((other.state == "expired" and other.fenced) or other.is_done for other in self.others)
        return self.state == "expired" and not self.fenced and newest and whole

    @property
    def usable(self) -> bool:
        return self.state == "live" or self.may_return


@dataclass
class Window:
    """Promise 6: how long the server has seen without a break."""

    began: float | None = None
    last: tuple[float, float] = (0.0, 0.0)

    def tick(self, wall: float, mono: float) -> bool:
        gap = mono - self.last[1]
        parted = abs(wall - self.last[0] - gap)
        self.last = (wall, mono)
        if self.began is None or gap > LONGEST_GAP_S or parted > TOLERANCE_S:
            self.began = mono
            return True
        return False

    def seen_s(self, mono: float) -> float:
        return 0.0 if self.began is None else mono - self.began


class Model:
    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self.runs: dict[str, Run] = {}
        self.groups: list[Group] = []
        self.leases: dict[str, Lease] = {}
        self.window = Window()

    def live(self, *, run: Run | None = None, host: Host | None = None) -> list[Lease]:
        return [
            lease
            for lease in self.leases.values()
            if lease.state == "live"
            and (run is None or lease.run is run)
            and (host is None or lease.host is host)
        ]

    def takeable(self, host: Host, now: float) -> list[Run]:
        """Queued runs that this host could be given now, whatever their order."""
        if not host.works_at(now) or len(self.live(host=host)) >= host.room:
            return []
        free = self.free_gpus(host)
        return [
            run
            for run in self.runs.values()
            if run.state == "queued"
            and run.size == 1
            and host.fits(run.shape)
            and host.admits(run.project)
            and (run.group is None or not run.group.is_full)
            and (run.shape != "gpu" or free > 0)
            and (run.shape != "cuda" or free > 0 or not self.first_refusal(run, now))
        ]

    def free_gpus(self, host: Host) -> int:
        return host.gpus - sum(lease.gpus for lease in self.live(host=host))

    def first_refusal(self, run: Run, now: float) -> bool:
        """FL-D34: for a stated time from when it became ready, if there is a host that it prefers."""
        return run.ready_at <= now < run.ready_at + PREFER_S and any(
            host.gpus > 0 and host.here(now) for host in self.hosts
        )

    def claim(self, run: Run, lease_id: str, host: Host, request_id: str, now: float) -> Lease:
        wanted = run.shape in ("gpu", "cuda") and self.free_gpus(host) > 0
        run.attempt += 1
        run.move("claim")
        run.result = None
        return self._lease(run, lease_id, host, request_id, now, gpus=int(wanted))

    def claim_gang(self, run: Run, found: list[tuple[str, Host, str]], now: float) -> None:
        """All its ranks, in their order: the lease, its host, and the request that got it."""
        run.attempt += 1
        run.move("claim")
        run.result = None
        made = [
            self._lease(run, lease_id, host, request_id, now, rank=rank)
            for rank, (lease_id, host, request_id) in enumerate(found)
        ]
        for lease in made:
            lease.others = [other for other in made if other is not lease]

    def _lease(
        self,
        run: Run,
        lease_id: str,
        host: Host,
        request_id: str,
        now: float,
        *,
        rank: int = 0,
        gpus: int = 0,
    ) -> Lease:
        run.epoch += 1
        lease = Lease(
            id=lease_id,
            run=run,
            host=host,
            boot_id=host.boot_id,
            request_id=request_id,
            attempt=run.attempt,
            epoch=run.epoch,
            rank=rank,
            gpus=gpus,
            granted_at=now,
            expires_at=now + FIRST_BEAT_S,
            active_at=now,
        )
        self.leases[lease_id] = lease
        return lease

    def touch(self, lease: Lease, now: float) -> None:
        """A fenced call of a lease that is usable: one that ran out returns, and is given back its charge."""
        if lease.state == "live":
            return
        lease.state, lease.beaten_at, lease.expires_at = "live", now, now + LEASE_S
        lease.run.ran_s = max(0.0, lease.run.ran_s - lease.counted_s)
        if lease.charged is not None:
            lease.run.charge(lease.charged, -1)
        if lease.lost:
            lease.lost = False
            lease.host.forgive()
        for other in lease.others:
            if other.fenced:
                other.state, other.fenced, other.expires_at = "live", False, now + LEASE_S
        lease.run.move("reattach")

    def beat(self, lease: Lease, now: float, active_s_ago: float | None) -> str:
        if not lease.usable:
            if lease.fenced:
                # Its worker knows now, and its child is killed: nobody brings it back.
                lease.state, lease.fenced = "closed", False
            return "lost"
        self.touch(lease, now)
        lease.beaten_at, lease.expires_at = now, now + LEASE_S
        if active_s_ago is not None:
            lease.active_at = now - active_s_ago
        return "stop" if lease.run.state in STOPPING else "continue"

    def take_away(self, lease: Lease, reason: str, now: float) -> None:
        lease.state = "expired"
        lease.lost = reason == "host_lost"
        lease.charged = None
        if lease.run.state in STOPPING:
            if self._rank_stopped(lease, lease.count()):
                lease.charged = self.settle(lease.run, "lease_expired")
        else:
            for other in self._live_others(lease):
                other.state, other.fenced = "expired", True
            lease.run.ran_s += lease.count()
            # Of many hosts that work at once, some are lost whatever they run.
            poison = lease.lost and len(self.lost_hosts(lease.run)) >= 3 + lease.run.size - 1
            lease.charged = self.retry_or_fail(lease.run, "poison" if poison else reason, now)
        if lease.lost and (lease.host.lost_at is None or now - lease.host.lost_at > LEASE_S):
            lease.host.lost_at = now
            self.strike(lease.host, lease.run, now)

    def _live_others(self, lease: Lease) -> list[Lease]:
        return [other for other in lease.others if other.state == "live"]

    def _rank_stopped(self, lease: Lease, ran_s: float) -> bool:
        """A rank of a run that was told to stop has ended; True if it was the last."""
        if self._live_others(lease):
            lease.run.note("rank_stopped")
            return False
        lease.run.ran_s += ran_s
        return True

    def lost_hosts(self, run: Run) -> set[str]:
        return {lease.host.id for lease in self.leases.values() if lease.run is run and lease.lost}

    def strike(self, host: Host, run: Run, now: float) -> None:
        """FL-D33: three in a row that look like the host's own fault set it aside, longer each time."""
        host.strikes += 1
        if host.strikes >= STRIKES:
            host.aside_until = now + min(LONGEST_ASIDE_S, FIRST_ASIDE_S * 2.0 ** (host.strikes - STRIKES))
            run.note("host_set_aside")

    def failed_at_once(self, host: Host, run: Run, now: float) -> None:
        others = any(other is not host and other.here(now) for other in self.hosts)
        # All runs are of one submitter, who alone cannot set a host aside.
        if not host.works and (host.strikes + 1 < STRIKES or others):
            host.works.add(run.project)
            self.strike(host, run, now)

    def settle(self, run: Run, event: str) -> str | None:
        """What a stop comes to; the reason that was charged, if any."""
        reason = run.stop_reason or "unknown"
        yielding = run.state == "yielding"
        if yielding:
            run.charge(reason)
        run.move(event)
        run.stop_reason = run.stop_deadline = run.result = None
        return reason if yielding else None

    def retry_or_fail(self, run: Run, reason: str, now: float) -> str | None:
        if (run.wall_s is not None and run.ran_s >= run.wall_s) or not run.may_retry(reason):
            run.result = None
            run.move("fail")
            return None
        run.charge(reason)
        run.move("requeue")
        if PAYS[reason] == "code":
            run.move("hold")
            run.not_before = now + min(LONGEST_BACKOFF_S, 2.0 ** (run.used["code"] - 1))
        return reason

    def ask_to_stop(self, run: Run, event: str, reason: str, now: float) -> None:
        run.move(event)
        run.stop_reason = reason
        run.stop_deadline = now + LEASE_S + run.grace_s + STOP_SLACK_S

    def cancel(self, run: Run, now: float) -> bool:
        """False if it is final; a second wish to stop changes nothing."""
        if run.state in FINAL:
            return False
        if run.state in ("running", "yielding"):
            self.ask_to_stop(run, "cancel", "cancelled", now)
        elif run.state not in ("stopping", "halting"):
            run.move("cancel")
        return True

    def end(self, lease: Lease, kind: str, body: dict[str, Any], now: float) -> dict[str, str]:
        """The outcome of a usable lease, and the answer that it must always have."""
        self.touch(lease, now)
        run = lease.run
        lease.state = "closed"
        if kind == "finish":
            self._finish(lease, body)
            lease.host.forgive()
        elif kind == "fail":
            if run.state in STOPPING:
                if self._rank_stopped(lease, body["ran_s"]):
                    self.settle(run, "fail")
            else:
                if body["reason"] == "host_fault":
                    lease.host.gave_back[run.id] = now
                self._fence(lease, body["ran_s"])
                self.retry_or_fail(run, body["reason"], now)
                if body["reason"] in LIKE_THE_HOST and body["ran_s"] <= QUICK_S:
                    self.failed_at_once(lease.host, run, now)
        else:
            if run.state == "running" and body["reason"] == "released" and not body["ran_s"]:
                lease.host.gave_back[run.id] = now
            self._stopped(lease, body, now)
        return {"run_state": run.state, "rank_state": "done" if kind == "finish" else "ended"}

    def _finish(self, lease: Lease, body: dict[str, Any]) -> None:
        run = lease.run
        live = self._live_others(lease)
        if not live:
            run.ran_s += body["ran_s"]
        if lease.rank == 0:
            run.result = body.get("artifact_id")
        if all(other.is_done for other in lease.others):
            run.move("finish")
            run.stop_deadline = run.stop_reason = None
        elif run.state in STOPPING and not live:
            self.settle(run, "stopped")
        else:
            run.note("rank_done")

    def _fence(self, lease: Lease, ran_s: float) -> None:
        """The first rank that ends takes the others' leases."""
        for other in self._live_others(lease):
            other.state = "closed"
        lease.run.ran_s += ran_s

    def _stopped(self, lease: Lease, body: dict[str, Any], now: float) -> None:
        run, reason = lease.run, body["reason"]
        over = reason in ("wall_limit", "money_limit")
        if run.state == "running" and over and self._live_others(lease):
            self.ask_to_stop(run, "halt", reason, now)
        elif run.state == "running":
            if not over:
                for other in self._live_others(lease):
                    other.state = "closed"
            run.move("halt" if over else "preempt")
            run.stop_reason = reason if over else "released"
        if self._rank_stopped(lease, body["ran_s"]):
            self.settle(run, "stopped")

    def new_boot(self, host: Host, holding: set[str], now: float) -> list[str]:
        gone = [x for x in self.live(host=host) if x.boot_id != host.boot_id and x.id not in holding]
        released = []
        for lease in sorted(gone, key=lambda x: (x.granted_at, x.rank)):
            # Another rank of the same gang may have taken it along.
            if lease.state == "live":
                self.take_away(lease, "released", now)
                released.append(lease.id)
        return released

    def check_consistent(self) -> None:
        """The model's own promises, so that it cannot agree with a wrong server by being wrong too."""
        for run in self.runs.values():
            live = self.live(run=run)
            assert (len(live) > 0) == (run.state in LEASED), (run, live)
            assert len({lease.rank for lease in live}) == len(live) <= run.size
            assert all(run.epoch - run.size < lease.epoch <= run.epoch for lease in live)
            assert all(run.used[b] <= run.budgets[b] for b in run.used), run
