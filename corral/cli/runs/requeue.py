"""`corral requeue`: runs that have ended once more, by id or all that a filter finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson, FollowIt
from corral.cli.runs.bulk import act_on_all, act_on_each
from corral.cli.runs.follow import follow
from corral.cli.runs.selection import (
    AllOption,
    Dry,
    GroupOption,
    LabelOption,
    NameOption,
    ProjectOption,
    RunIds,
    ScheduleOption,
    StateOption,
    Yes,
    named,
    selection,
)
from corral.client.corral import Corral
from corral.client.submit.run_file import edited
from corral.domain.errors import InvalidInput
from corral.domain.runs.states import RunState
from corral.wire.runs import SubmitAnswer


def requeue(
    run: RunIds = None,
    group: GroupOption = None,
    label: LabelOption = None,
    name: NameOption = None,
    project: ProjectOption = None,
    schedule: ScheduleOption = None,
    state: StateOption = None,
    failed: Annotated[bool, typer.Option("--failed", help="Those that failed; with a filter.")] = False,
    everything: AllOption = False,
    with_children: Annotated[
        bool, typer.Option("--with-children", help="Also the runs that ended because this one did.")
    ] = False,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE, as `params.lr=3e-4`: a new run that differs; repeat."),
    ] = None,
    priority: Annotated[int | None, typer.Option(min=-1000, max=1000, help="Another priority.")] = None,
    follow_it: FollowIt = False,
    yes: Yes = False,
    dry: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Run something that has ended once more; prints the new run's id.

    With --set or --priority it is a run of its own that differs in that; otherwise the next generation.
    """
    states = [*(state or []), *([RunState.FAILED] if failed else [])]
    filters = {"group": group, "label": label, "name": name, "project": project, "schedule": schedule}
    which = selection(run, states=states, everything=everything, **filters)
    changes = [*(override or []), *([] if priority is None else [f"priority={priority}"])]
    with connect() as corral:
        if which is not None:
            if changes or follow_it:
                raise InvalidInput("--set, --priority and --follow are for a single run")
            act_on_all(
                lambda dry_run, told: corral.runs.requeue_all(which, dry_run=dry_run, told=told),
                verb="queue again",
                done="queued again",
                yes=yes,
                dry=dry,
                as_json=as_json,
            )
            return
        if with_children and changes:
            raise InvalidInput("--with-children makes the same runs again; --set and --priority a new one")
        if follow_it and len(named(run)) > 1:
            raise InvalidInput("--follow follows one run", hint="Name one run.")
        answers = _requeue_each(corral, named(run), changes, with_children=with_children)
        if as_json:
            render.show_json(answers[0] if len(answers) == 1 else answers)
        elif not follow_it:
            typer.echo("\n".join(run_id for answer in answers for run_id in answer.ids))
        if follow_it:
            raise typer.Exit(follow(corral, answers[0].ids[0]))


def _requeue_each(
    corral: Corral, runs: Sequence[str], changes: Sequence[str], *, with_children: bool
) -> list[SubmitAnswer]:
    def requeue_one(one: str) -> SubmitAnswer:
        spec = edited(corral.runs.get(one).spec, changes) if changes else None
        if spec is None:
            return corral.runs.requeue(one, with_children=with_children)
        return corral.runs.submit([spec])

    return act_on_each(runs, requeue_one, "queue again")
