"""Where a run could run: each host, eligible or every reason why not."""

from __future__ import annotations

from typing import NamedTuple

from corral.core.policy import Policy
from corral.core.shapes import verdict
from corral.domain.capability import Requirements
from corral.domain.host import Host
from corral.domain.run import Run
from corral.domain.states import FINAL, RunState
from corral.ports.store import Tx


class Standing(NamedTuple):
    host: Host
    eligible: bool
    reasons: tuple[str, ...]
    note: str


def standings(tx: Tx, need: Requirements, *, now: float, policy: Policy) -> list[Standing]:
    busy = dict(tx.hosts.busy())
    return [
        _standing(need, host, busy.get(host.id, 0), now=now, policy=policy)
        for host in tx.hosts.page(None, 10_000)
    ]


def _standing(need: Requirements, host: Host, busy: int, *, now: float, policy: Policy) -> Standing:
    reasons = list(verdict(need, host).shortfalls)
    if host.draining:
        reasons.append("the host is being drained")
    if host.last_seen_at is None or now - host.last_seen_at > policy.away_s:
        ago = "never" if host.last_seen_at is None else f"{now - host.last_seen_at:.0f} s ago"
        reasons.append(f"the host is away (last seen {ago})")
    note = f"{busy} of {host.slots} slots busy" if host.slots else "no slots"
    return Standing(host, not reasons, tuple(reasons), note)


def summary(run: Run, hosts: list[Standing], *, now: float) -> str:
    """One sentence: what the run waits for, or why it is where it is."""
    if run.state in FINAL:
        return f"the run has ended: {run.state}" + (f" ({run.reason})" if run.reason else "")
    if run.state is RunState.HELD:
        left = f", {max(0.0, run.not_before - now):.0f} s left" if run.not_before is not None else ""
        return f"held: {run.hold_reason or 'not ready'}{left}"
    if run.state is not RunState.QUEUED:
        return f"the run is {run.state} on {run.last_host}"
    if not hosts:
        return "queued: no host has ever joined; start one with `corral up`"
    eligible = [s for s in hosts if s.eligible]
    if not eligible:
        return f"queued: no host of {len(hosts)} can take it; the reasons are below"
    word = "host" if len(eligible) == 1 else "hosts"
    return f"queued: {len(eligible)} {word} of {len(hosts)} can take it once a slot is free"
