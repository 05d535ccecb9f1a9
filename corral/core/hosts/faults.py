"""Hosts that fail run after run are set aside for a while; a run that loses host after host is stopped.

A strike against a host is a lease that it lost (those lost within one lease time of each other are one
strike), or a run that failed within seconds of its start, counted once for each submitter and each work
(project and name) that was not among the strikes before: whatever one user submits, by themselves or by
schedules, it takes others to set a host aside for it. A finished run clears them. At the third strike the
host is set aside, for longer each time. The last host that could take work is never set aside for what runs
did: that would help nobody.

A fault of its own that the host's worker reports (a full disk, a broken Python) sets it aside at once, until
the worker says that it is gone. The run that met it is queued again free of charge, though not for ever.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from corral.core.audit import by_corral, note
from corral.core.policy import ServerPolicy
from corral.core.runs.transitions import record
from corral.core.topics import TOPIC_HOST
from corral.domain.canonical import canonical
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId, ScheduleId
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import Run
from corral.domain.schedules import BY_SCHEDULE
from corral.store.transaction import Tx

STRIKES = 3
POISON_HOSTS = 3
QUICK_S = 20.0
FIRST_S = 60.0
LONGEST_S = 3600.0
# A worker with a fault says so every few seconds; what one said that is gone since counts this long.
FAULT_S = 120.0
MOST_FAULTS = 10
_REPORTED = "its worker found a fault: "

# How a good run fails on a broken host: a missing program, a full disk, a missing driver.
_LIKE_THE_HOST = frozenset({Reason.CODE_ERROR, Reason.ENVIRONMENT, Reason.UNKNOWN, Reason.BAD_OUTPUT})


class Strikes(NamedTuple):
    """Those since the last run that finished: when a lease was last lost, which works failed, and whose."""

    lost_at: float | None = None
    works: tuple[str, ...] = ()
    submitters: tuple[str, ...] = ()


def lost(tx: Tx, host_id: HostId, run: Run, *, now: float, policy: ServerPolicy) -> Run:
    """A lease of the host ran out."""
    host = tx.hosts.lock(host_id)
    if host is None:
        return run
    before = _read(host)
    if before.lost_at is not None and now - before.lost_at <= policy.lease_s:
        return run
    why = f"the host was lost while it ran {run.id}"
    return _strike(tx, host, before._replace(lost_at=now), run, why, now=now)


def failed(
    tx: Tx, host_id: HostId, run: Run, reason: Reason, *, ran_s: float, now: float, policy: ServerPolicy
) -> Run:
    """A run failed there. It tells against the host only if it did so at once, and others can take over."""
    if reason not in _LIKE_THE_HOST or ran_s > QUICK_S:
        return run
    host = tx.hosts.lock(host_id)
    if host is None:
        return run
    work, before = f"{run.project}/{run.name}", _read(host)
    submitter = _submitter(tx, run)
    if submitter is None or work in before.works or submitter in before.submitters:
        return run
    if host.strikes + 1 >= STRIKES and not _others(tx, host, now=now, policy=policy):
        return run
    why = f"{run.id} failed within {QUICK_S:g} s ({reason})"
    after = before._replace(works=(*before.works, work), submitters=(*before.submitters, submitter))
    return _strike(tx, host, after, run, why, now=now)


def _submitter(tx: Tx, run: Run) -> str | None:
    """Who stands behind the run: of one that a schedule made, who made the schedule. None if that is gone."""
    if not run.submitted_by.startswith(BY_SCHEDULE):
        return run.submitted_by
    schedule = tx.schedules.get(ScheduleId(run.schedule_id)) if run.schedule_id else None
    return None if schedule is None else schedule.created_by


def reported(host: Host, fault: str | None, *, now: float) -> Host:
    """What its worker says of itself: a fault sets it aside until the worker says that there is none."""
    if fault is not None:
        why = f"{_REPORTED}{fault}; it comes back by itself when that is gone"
        return host._replace(set_aside_until=now + FAULT_S, set_aside_why=why)
    if not (host.set_aside_why or "").startswith(_REPORTED):
        return host
    return host._replace(set_aside_until=None, set_aside_why=None)


def met_too_many(tx: Tx, run: Run) -> int | None:
    """How often hosts could not run it for a fault of their own, once that is too often to be their doing."""
    met = sum(
        rank.reason is Reason.HOST_FAULT
        for attempt in tx.attempts.of_run(run.id)
        for rank in tx.attempts.ranks(run.id, attempt.number)
    )
    return met if met >= MOST_FAULTS else None


def returned(tx: Tx, host_id: HostId) -> None:
    """It finished a run, or came back with one that was thought lost."""
    if tx.hosts.forgive(host_id):
        tx.announce(TOPIC_HOST, host_id)


def forgiven(host: Host) -> Host:
    return host._replace(strikes=0, struck_by=None, set_aside_until=None, set_aside_why=None)


def lost_hosts(tx: Tx, run: Run) -> set[HostId]:
    leases = [
        tx.leases.get(rank.lease_id)
        for attempt in tx.attempts.of_run(run.id)
        for rank in tx.attempts.ranks(run.id, attempt.number)
        if rank.reason is Reason.HOST_LOST and rank.lease_id is not None
    ]
    return {lease.host_id for lease in leases if lease is not None}


def _read(host: Host) -> Strikes:
    if not host.struck_by:
        return Strikes()
    # Older servers did not note the submitters.
    lost_at, works, *submitters = json.loads(host.struck_by)
    return Strikes(lost_at, tuple(works), tuple(*submitters))


def _strike(tx: Tx, host: Host, strikes: Strikes, run: Run, why: str, *, now: float) -> Run:
    host = host._replace(strikes=host.strikes + 1, struck_by=canonical(strikes))
    if host.strikes < STRIKES:
        tx.hosts.save(host)
        return run
    for_s = min(LONGEST_S, FIRST_S * 2.0 ** min(10, host.strikes - STRIKES))
    said = f"{host.strikes} failures in a row that look like its own; the last: {why}"
    tx.hosts.save(host._replace(set_aside_until=now + for_s, set_aside_why=said))
    data: dict[str, object] = {"for_s": for_s, "why": said}
    note(tx, "host.set_aside", f"host:{host.name}", by_corral(now), **data)
    return record(tx, run, "host_set_aside", at=now, actor="corral", data={"host": host.name, **data})


def _others(tx: Tx, host: Host, *, now: float, policy: ServerPolicy) -> bool:
    """Whether another host could take work now."""
    others = (other for other in tx.hosts.page(None, 10_000) if other.id != host.id)
    return any(other.takes_work(now) and not other.is_away(now, policy.away_s) for other in others)
