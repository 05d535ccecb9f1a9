"""`corral rm`: removes runs that have ended, by id or all that a filter finds, for good."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson, duration_s
from corral.cli.runs import bulk
from corral.client.corral import Corral
from corral.domain.errors import Conflict
from corral.domain.runs.states import FINAL
from corral.wire.runs import RemovedRun, RunSelection


def rm(
    run: bulk.RunIds = None,
    group: bulk.Group = None,
    label: bulk.Label = None,
    name: bulk.Name = None,
    project: bulk.Project = None,
    state: bulk.States = None,
    older: Annotated[
        str | None, typer.Option("--older-than", help='Only what ended so long ago, as "30d".')
    ] = None,
    everything: bulk.All = False,
    now: Annotated[
        bool, typer.Option("--now", help="Free the space at once; otherwise it takes up to an hour or so.")
    ] = False,
    yes: bulk.Yes = False,
    dry: bulk.DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove runs that have ended, with their logs and the artifacts that no other run uses."""
    filters = {"group": group, "label": label, "name": name, "project": project}
    asked = bulk.selection(run, states=state or [], everything=everything or bool(older), **filters)
    with connect() as corral:
        which = bulk.by_ids(corral, run) if dry and asked is None else asked
        if which is not None:
            _remove_all(corral, which, older, yes=yes, dry=dry, as_json=as_json)
        else:
            _remove_each(corral, run, yes=yes, as_json=as_json)
        if now and not dry:
            done = corral.disk.collect()
            render.note(
                f"{render.count(done.blobs, 'file')} and {render.count(done.logs, 'log')} are deleted"
            )


def _remove_all(
    corral: Corral, which: RunSelection, older: str | None, *, yes: bool, dry: bool, as_json: bool
) -> None:
    age_s = duration_s(older, "--older-than")
    act = partial(corral.runs.remove_all, which, older_than_s=age_s)
    if not as_json:
        found = act(dry_run=True)
        render.note(f"they take {render.size(sum(one.bytes or 0 for one in found.done))}")
    bulk.act_on_all(act, verb="remove", done="removed", yes=yes, dry=dry, as_json=as_json)


def _refuse_running(corral: Corral, ids: Sequence[str]) -> None:
    for run in map(corral.runs.get, ids):
        if run.state not in FINAL:
            raise Conflict(
                f"run {run.id} is {run.state}, and only runs that have ended can be removed",
                hint=f"Cancel it first: `corral cancel {run.id}`.",
            )


def _remove_each(corral: Corral, run: bulk.RunIds, *, yes: bool, as_json: bool) -> None:
    ids = [corral.runs.resolve(one) for one in bulk.named(run)]
    if not yes:
        # Nobody is asked about what cannot be done.
        _refuse_running(corral, ids)
    bulk.ask(f"remove {ids[0] if len(ids) == 1 else f'{len(ids)} runs'} for good", yes=yes)
    bulk.act_on_each(ids, corral.runs.remove, "remove", show=partial(_show_removed, as_json=as_json))


def _show_removed(removed: Sequence[RemovedRun], *, as_json: bool) -> None:
    if as_json:
        render.show_json(removed)
        return
    for one in removed:
        kept = f"; kept, as others use them: {', '.join(one.kept)}" if one.kept else ""
        render.say(f"{one.id} is removed, with {render.count(one.artifacts, 'artifact')}{kept}")
