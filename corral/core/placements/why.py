"""What a run waits for whose workers an executor brings up; for people."""

from __future__ import annotations

import json
from collections.abc import Sequence

from corral.core.placements.wanted import spelled_out, usable
from corral.core.policy import ServerPolicy
from corral.domain.hosts.capability import CHEAPEST, OWN_HOSTS, Requirements
from corral.domain.placements.orders import SightState
from corral.domain.placements.placements import Placement, PlacementState
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunState
from corral.store.transaction import Tx

# Of the ranks that the cluster tells something of, so many are named.
_NAMED = 3


def placement_summary(tx: Tx, run: Run, need: Requirements, *, now: float) -> str | None:
    """In one sentence; None for a run that waits for no executor."""
    if not need.executors or run.state not in (RunState.QUEUED, RunState.PLACING):
        return None
    current = [one for one in tx.placements.of_run(run.id) if one.state is not PlacementState.CLOSED]
    if run.state is RunState.QUEUED or not current:
        if need.executors[0] in OWN_HOSTS:
            return None
        there = usable(tx)
        if not set(spelled_out(need.executors, there)) & set(there):
            gone = ", ".join(need.executors)
            return f"queued: of the executors that it names ({gone}) none is there; `corral executors add`"
        return f"queued: next {_asked(need.executors)}"
    placement = current[-1]
    asked = f"placing: executor {placement.executor}"
    if placement.state is PlacementState.INTENDED:
        trouble = f", which failed {placement.tries} times: {placement.why}" if placement.tries else ""
        return f"{asked} is asked for {_workers(placement.ranks)}{trouble}"
    # Whose workers have called since.
    here = tx.tokens.seen_of_run(run.id, placement.created_at)
    told = _told(placement)
    return (
        f"{asked} was asked for {_workers(placement.ranks)} {now - placement.created_at:.0f} s ago;"
        f" {here} {'has' if here == 1 else 'have'} come{f'; it says: {told}' if told else ''}"
    )


def placement_notes(tx: Tx, run: Run, need: Requirements, *, policy: ServerPolicy) -> list[str]:
    """What came of earlier placements, and when own hosts are waited for no longer."""
    notes = [
        f"executor {one.executor} did not serve it: {one.why}"
        for one in tx.placements.of_run(run.id)
        if one.lost
    ][-5:]
    current = [one for one in tx.placements.of_run(run.id) if one.chosen and not one.lost][-1:]
    notes += [f"executor {one.executor} was chosen: {one.chosen}" for one in current]
    others = [name for name in need.executors if name not in OWN_HOSTS]
    if others and need.executors[0] in OWN_HOSTS and run.state is RunState.QUEUED:
        notes.append(
            f"where no host that has joined takes it within {policy.own_hosts_s(need):.0f} s,"
            f" {_asked(others)}"
        )
    return notes


def _asked(names: Sequence[str]) -> str:
    if list(names) == [CHEAPEST]:
        return "the cheapest executor that can hold it is asked"
    return f"the executors {', '.join(names)} are asked, in this order"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _told(placement: Placement) -> str:
    """In the cluster's own words."""
    seen = json.loads(placement.seen or "{}")
    ranks: Sequence[dict[str, object]] = seen.get("ranks", ())
    waiting = [one for one in ranks if one["state"] != SightState.RUNNING and (one["detail"] or one["cause"])]
    by_words: dict[str, list[str]] = {}
    for one in waiting:
        by_words.setdefault(str(one["detail"] or one["cause"]), []).append(str(one["rank"]))
    said = [
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}: {words}"
        for words, ranks in by_words.items()
    ]
    return "; ".join(said[:_NAMED])
