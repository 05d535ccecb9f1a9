"""What one turn of the sweeper must do, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from model.model import LEASE_S, LONGEST_ASIDE_S, LONGEST_BACKOFF_S, STOP_SLACK_S, Lease, Model, Run
from model.tables import STOPPING


@dataclass(frozen=True)
class Effect:
    """One unit of work of a sweep: on one run, wholly there or not at all."""

    run: Run
    apply: Callable[[], None]


def begin(model: Model, wall: float, mono: float) -> None:
    """A committed tick. One that begins a new window gives every live lease and stop its full time again.

    What waits for an hour that the clock has gone back from need not wait for it again.
    """
    if model.window.tick(wall, mono):
        for lease in model.live():
            lease.expires_at = wall + LEASE_S
        for host in model.hosts:
            if host.aside_until is not None:
                host.aside_until = min(host.aside_until, wall + LONGEST_ASIDE_S)
        for run in model.runs.values():
            if run.stop_deadline is not None:
                run.stop_deadline = wall + LEASE_S + STOP_SLACK_S + run.grace_s
            if run.state == "held" and run.not_before is not None:
                run.not_before = min(run.not_before, wall + LONGEST_BACKOFF_S)


def effects(model: Model, wall: float, mono: float) -> Iterator[Effect]:
    """In the order in which they are due. Each looks at what those before it left."""
    seen_s = model.window.seen_s(mono)
    if seen_s >= LEASE_S:
        for lease in sorted(model.live(), key=lambda x: (x.expires_at, x.rank, x.id)):
            if lease.state == "live" and lease.expires_at <= wall:
                yield Effect(lease.run, lambda lease=lease: _expire(model, lease, wall))  # type: ignore[misc]
        yield from _stops(model, wall)
        yield from _stalls(model, wall)
    for lease in model.live():
        run = lease.run
        if run.state == "running" and run.wall_s is not None:
            ran_s = run.ran_s + wall - max(lease.granted_at, wall - seen_s)
            if ran_s >= run.wall_s:
                yield _stop(model, run, "halt", "wall_limit", wall)
    for run in list(model.runs.values()):
        if run.state == "held" and run.not_before is not None and run.not_before <= wall:
            yield Effect(run, lambda run=run: release(run))  # type: ignore[misc]


def _expire(model: Model, lease: Lease, wall: float) -> None:
    model.take_away(lease, "released" if lease.beaten_at is None else "host_lost", wall)


def _stops(model: Model, wall: float) -> Iterator[Effect]:
    for run in list(model.runs.values()):
        if run.state in STOPPING and run.stop_deadline is not None and run.stop_deadline <= wall:
            yield Effect(run, lambda run=run: _force(model, run, wall))  # type: ignore[misc]


def _force(model: Model, run: Run, wall: float) -> None:
    *_, last = live = model.live(run=run)
    for lease in live:
        lease.state = "closed"
    # Of several ranks the last one's time counts.
    run.ran_s += last.count()
    model.settle(run, "stop_deadline")


def _stalls(model: Model, wall: float) -> Iterator[Effect]:
    for lease in model.live():
        run = lease.run
        if run.state == "running" and run.stall_s is not None and lease.active_at + run.stall_s <= wall:
            event = "preempt" if run.may_retry("stalled") else "halt"
            yield _stop(model, run, event, "stalled", wall)


def _stop(model: Model, run: Run, event: str, reason: str, wall: float) -> Effect:
    return Effect(run, lambda: model.ask_to_stop(run, event, reason, wall))


def release(run: Run) -> None:
    run.move("release")
    run.not_before = None
