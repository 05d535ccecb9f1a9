"""`corral requeue`: runs that have ended once more, by id or all that a filter finds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson, FollowIt
from corral.cli.runs import bulk
from corral.cli.runs.changed_runs import ChangedRuns, ChangedSelection
from corral.cli.runs.follow import follow
from corral.cli.runs.submit import tell_if_stuck
from corral.domain.errors import InvalidInput
from corral.domain.runs.states import RunState
from corral.wire.runs import SubmitAnswer


def requeue(
    run: bulk.RunIds = None,
    group: bulk.Group = None,
    label: bulk.Label = None,
    name: bulk.Name = None,
    project: bulk.Project = None,
    schedule: bulk.Schedule = None,
    state: bulk.States = None,
    failed: Annotated[bool, typer.Option("--failed", help="Those that failed; with a filter.")] = False,
    everything: bulk.All = False,
    with_children: Annotated[
        bool, typer.Option("--with-children", help="Also the runs that ended because this one did.")
    ] = False,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE, as `params.lr=3e-4`: a new run that differs; repeat."),
    ] = None,
    code: Annotated[
        Path | None,
        typer.Option(help="Ship this folder in place of the run's code: a new run that differs in it."),
    ] = None,
    priority: Annotated[int | None, typer.Option(min=-1000, max=1000, help="Another priority.")] = None,
    follow_it: FollowIt = False,
    yes: bulk.Yes = False,
    dry: bulk.DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run something that has ended once more; prints the new run's id.

    With --set, --code or --priority it is a run of its own that differs in that, otherwise the next
    generation.
    """
    states = [*(state or []), *([RunState.FAILED] if failed else [])]
    filters = {"group": group, "label": label, "name": name, "project": project, "schedule": schedule}
    asked = bulk.selection(run, states=states, everything=everything, **filters)
    changes = [*(override or []), *([] if priority is None else [f"priority={priority}"])]
    with connect() as corral:
        changed = ChangedRuns(corral, changes, code)
        if dry and asked is None and changed:
            _try_changes(changed, bulk.named(run))
            return
        which = bulk.by_ids(corral, run) if dry and asked is None else bulk.of_one_group(corral, asked)
        if which is not None:
            if follow_it and not dry:
                raise InvalidInput("--follow is for a single run")
            act = ChangedSelection(changed, which).act if changed else partial(corral.runs.requeue_all, which)
            bulk.act_on_all(act, verb="queue again", done="queued again", yes=yes, dry=dry, as_json=as_json)
            return
        if with_children and changed:
            raise InvalidInput(
                "--with-children makes the same runs again; --set, --code and --priority a new one"
            )
        given = bulk.named(run)
        if follow_it and len(given) > 1:
            raise InvalidInput("--follow follows one run", hint="Name one run.")
        again = partial(_requeue_one, changed, with_children=with_children)

        def show(answers: list[SubmitAnswer]) -> None:
            if as_json:
                render.show_json(_as_one(answers))
            elif not follow_it:
                render.say("\n".join(run_id for answer in answers for run_id in answer.ids))
            if follow_it:
                raise typer.Exit(follow(corral, answers[0].ids[0]))
            tell_if_stuck(corral, answers[0].ids[0])

        bulk.act_on_each(given, again, "queue again", show=show)


def _try_changes(changed: ChangedRuns, runs: Sequence[str]) -> None:
    """Have the server check the changed runs; nothing is stored or sent."""
    words = [*changed.changes, *([] if changed.code is None else [f"the code of {changed.code}"])]
    for one in runs:
        before = changed.corral.runs.get(one)
        changed.corral.runs.try_out([changed.checked(before)])
        render.say(f"{before.id} would be queued again with {', '.join(words)}")


def _as_one(answers: list[SubmitAnswer]) -> SubmitAnswer:
    return SubmitAnswer(
        ids=[run_id for answer in answers for run_id in answer.ids], group_id=answers[0].group_id
    )


def _requeue_one(changed: ChangedRuns, run: str, *, with_children: bool) -> SubmitAnswer:
    # Changes that leave the spec as it was make no new run of it.
    spec = changed.made(changed.corral.runs.get(run)) if changed else None
    if spec is None:
        return changed.corral.runs.requeue(run, with_children=with_children)
    return changed.corral.runs.submit([spec])
