"""Adding and removing executors, and holding runs to those that there are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from corral.core.audit import Author, note
from corral.core.hosts.enroll import end_credentials
from corral.core.placements.close import end_close, is_needed
from corral.domain.errors import Conflict, FieldError, InvalidInput, NotFound
from corral.domain.hosts.capability import CHEAPEST, OWN_HOSTS, Requirements
from corral.domain.placements.placements import ExecutorKind, ExecutorRecord, Placement, PlacementState
from corral.store.transaction import Tx


def add(
    tx: Tx, name: str, kind: ExecutorKind, options: Mapping[str, object], *, by: Author
) -> ExecutorRecord:
    if name in OWN_HOSTS or name == CHEAPEST:
        stands_for = "the cheapest executor" if name == CHEAPEST else "the hosts that have joined"
        raise InvalidInput(
            f"no executor can be called {name}: that stands for {stands_for}",
            hint="Choose another with `--name`.",
        )
    if (known := tx.executors.get(name)) is not None:
        leaving = known.removed_at is not None
        raise Conflict(
            f"executor {name} {'is being removed' if leaving else 'is there already'}",
            hint="Wait until its workers are gone."
            if leaving
            else f"Remove it first with `corral executors rm {name}`, or choose another name.",
        )
    record = ExecutorRecord(name, kind, json.dumps(options, sort_keys=True), by.now, by.actor)
    tx.executors.insert(record)
    note(tx, "executor.add", f"executor:{name}", by, kind=kind)
    return record


def find(tx: Tx, name: str) -> ExecutorRecord:
    record = tx.executors.get(name)
    if record is None:
        raise NotFound(f"there is no executor {name[:80]!r}", hint="List them with `corral executors ls`.")
    return record


def remove(tx: Tx, name: str, *, by: Author, force: bool) -> Sequence[Placement]:
    """It gets nothing more, and is gone when nothing of it runs; with `force` what runs is ended too. With
    `force` once more, what its cluster does not answer for is forgotten."""
    record = find(tx, name)
    if force and record.removed_at is not None:
        _forget_unanswered(tx, name, now=by.now)
    open_ones = tx.placements.open(name)
    # Those of runs that have ended, or that are closed already, are about to be taken away.
    ending = [one for one in open_ones if one.state is PlacementState.CLOSING]
    still = [one for one in open_ones if one not in ending and is_needed(tx, one)]
    if still and not force:
        runs = list(dict.fromkeys(one.run_id for one in still))
        raise Conflict(
            f"executor {name} has workers for {len(runs)} run{'s' if len(runs) > 1 else ''}: "
            f"{', '.join(runs[:5])}",
            hint="Cancel them or wait until they have ended; with `--force` their workers are ended now, and "
            "the runs wait for another executor.",
        )
    note(tx, "executor.remove", f"executor:{name}", by, force=force)
    if open_ones:
        tx.executors.save(record._replace(removed_at=by.now))
    else:
        tx.executors.delete(name)
    return still


def _forget_unanswered(tx: Tx, name: str, *, now: float) -> None:
    """Their workers have no rights any more: should some be left, they can do nothing, and end."""
    for one in tx.placements.open(name):
        if one.state is PlacementState.CLOSING and one.tries:
            for token in tx.tokens.of_run(one.run_id):
                if token.name.startswith(one.launch_key) and token.host_id is not None:
                    end_credentials(tx, token.host_id, now=now)
            end_close(tx, one.id, now=now)


def unknown_executors(tx: Tx, need: Requirements, *, prefix: str = "") -> InvalidInput | None:
    """A run that names what is not there is refused when it is submitted."""
    known = [one.name for one in tx.executors.all() if one.removed_at is None]
    # Without any executor there is no cheapest one.
    reserved = OWN_HOSTS | {CHEAPEST} if known else OWN_HOSTS
    wrong = [name for name in need.executors if name not in known and name not in reserved]
    if not wrong:
        return None
    problem = f"names {', '.join(wrong)}; there {'are' if len(known) > 1 else 'is'} {_listed(known)}"
    return InvalidInput(
        f"`{prefix}placement.executors` {problem}",
        hint="List executors with `corral executors ls`; an operator adds one with `corral executors add`.",
        fields=[FieldError(f"{prefix}placement.executors", problem)],
    )


def _listed(known: Sequence[str]) -> str:
    return ", ".join([*known, "fleet"]) if known else "no executor but `fleet`, the hosts that have joined"
