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
from corral.cli.runs.follow import follow
from corral.cli.runs.submit import run_preparer
from corral.client.corral import Corral
from corral.client.submit.run_file import edited
from corral.domain.errors import InvalidInput
from corral.domain.runs.states import RunState
from corral.wire.runs import SubmitAnswer
from corral.wire.spec.run_file import RunSpec


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
        if dry and asked is None and (changes or code):
            _try_changes(corral, bulk.named(run), changes, code)
            return
        which = bulk.by_ids(corral, run) if dry and asked is None else bulk.of_one_group(corral, asked)
        if which is not None:
            if changes or code or (follow_it and not dry):
                raise InvalidInput("--set, --code, --priority and --follow are for a single run")
            act, done = partial(corral.runs.requeue_all, which), "queued again"
            bulk.act_on_all(act, verb="queue again", done=done, yes=yes, dry=dry, as_json=as_json)
            return
        if with_children and (changes or code):
            raise InvalidInput(
                "--with-children makes the same runs again; --set, --code and --priority a new one"
            )
        given = bulk.named(run)
        if follow_it and len(given) > 1:
            raise InvalidInput("--follow follows one run", hint="Name one run.")
        again = partial(_requeue_one, corral, changes=changes, code=code, with_children=with_children)
        answers = bulk.act_on_each(given, again, "queue again")
        if as_json:
            render.show_json(_as_one(answers))
        elif not follow_it:
            render.say("\n".join(run_id for answer in answers for run_id in answer.ids))
        if follow_it:
            raise typer.Exit(follow(corral, answers[0].ids[0]))


def _try_changes(corral: Corral, runs: Sequence[str], changes: list[str], code: Path | None) -> None:
    """Have the server check the changed runs; nothing is stored or sent."""
    words = [*changes, *([] if code is None else [f"the code of {code}"])]
    for one in runs:
        before = corral.runs.get(one)
        corral.runs.try_out([edited(before.spec, changes) or before.spec])
        render.say(f"{before.id} would be queued again with {', '.join(words)}")


def _as_one(answers: list[SubmitAnswer]) -> SubmitAnswer:
    return SubmitAnswer(
        ids=[run_id for answer in answers for run_id in answer.ids], group_id=answers[0].group_id
    )


def _requeue_one(
    corral: Corral, run: str, *, changes: list[str], code: Path | None, with_children: bool
) -> SubmitAnswer:
    # Changes that leave the spec as it was make no new run of it.
    before = corral.runs.get(run).spec if changes or code else None
    spec = edited(before, changes) if before and changes else None
    if before is not None and code is not None:
        spec = _with_code(corral, spec or before, code)
    if spec is None or spec == before:
        return corral.runs.requeue(run, with_children=with_children)
    return corral.runs.submit([spec])


def _with_code(corral: Corral, spec: RunSpec, folder: Path) -> RunSpec:
    with run_preparer(corral, Path.cwd()) as preparer:
        artifact_id, digest = preparer.ship_code(spec.project, folder)
    return spec.model_copy(update={"code": artifact_id, "code_digest": digest})
