"""Cancel, queue again, hold, release and remove runs: by id, or all that a filter finds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.bars import count_bar
from corral.cli.runs.follow import follow
from corral.client.corral import Corral
from corral.client.runs import RunsDone
from corral.client.submit.edit_spec import edited
from corral.domain.errors import InvalidInput
from corral.domain.states import RunState
from corral.wire.base import explain
from corral.wire.runs import ManyAnswer, RunSelection, RunView, SubmitAnswer

T = TypeVar("T")
app = typer.Typer(add_completion=False, rich_markup_mode=None)

Run = Annotated[
    str,
    typer.Argument(help="Run id, a unique prefix of it, or `latest`.", autocompletion=complete.runs),
]
Runs = Annotated[
    list[str] | None, typer.Argument(help="Run ids or unique prefixes.", autocompletion=complete.runs)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
GroupOption = Annotated[
    str | None,
    typer.Option("--group", help="All of this group (id or name).", autocompletion=complete.groups),
]
LabelOption = Annotated[str | None, typer.Option("--label", help="All with this KEY=VALUE.")]
NameOption = Annotated[str | None, typer.Option("--name", help="All with this name.")]
ProjectOption = Annotated[str | None, typer.Option("--project", help="All of this project.")]
ScheduleOption = Annotated[
    str | None,
    typer.Option("--schedule", help="All that this schedule made.", autocompletion=complete.schedules),
]
StateOption = Annotated[list[RunState] | None, typer.Option("--state", help="Only in this state; repeat.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every run.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]


@app.command()
def cancel(
    run: Runs = None,
    group: GroupOption = None,
    label: LabelOption = None,
    name: NameOption = None,
    project: ProjectOption = None,
    schedule: ScheduleOption = None,
    state: StateOption = None,
    everything: AllOption = False,
    reason: Annotated[str, typer.Option(help="Shown in the run's events.")] = "cancelled from the CLI",
    yes: Yes = False,
    dry: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Cancel runs; their workers stop them at once. By id, or all that the options find."""
    which = _which(
        run,
        project=project,
        group=group,
        name=name,
        label=label,
        schedule=schedule,
        states=state,
        everything=everything,
    )
    with connect() as corral:
        if which is not None:
            _all_of_them(
                lambda dry_run, told: corral.runs.cancel_all(
                    which, reason=reason, dry_run=dry_run, told=told
                ),
                verb="cancel",
                done="cancelled, or told to stop",
                yes=yes,
                dry=dry,
                as_json=as_json,
            )
            return
        if dry:
            raise InvalidInput("--dry-run is for a filter", hint="Give --group, --label or another filter.")
        done = _each(run or [], lambda one: corral.runs.cancel(one, reason=reason), "cancel")
        _show(done, as_json=as_json)


@app.command()
def requeue(
    run: Runs = None,
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
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="Follow it; exit with its code.")] = False,
    yes: Yes = False,
    dry: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Run something that has ended once more; prints the new run's id.

    With --set or --priority it is a run of its own that differs in that; otherwise the next generation.
    """
    states = [*(state or []), *([RunState.FAILED] if failed else [])]
    which = _which(
        run,
        project=project,
        group=group,
        name=name,
        label=label,
        schedule=schedule,
        states=states,
        everything=everything,
    )
    changes = [*(override or []), *([] if priority is None else [f"priority={priority}"])]
    with connect() as corral:
        if which is not None:
            if changes or follow_it:
                raise InvalidInput("--set, --priority and --follow are for a single run")
            _all_of_them(
                lambda dry_run, told: corral.runs.requeue_all(which, dry_run=dry_run, told=told),
                verb="queue again",
                done="queued again",
                yes=yes,
                dry=dry,
                as_json=as_json,
            )
            return
        _requeue_named(
            corral,
            run or [],
            changes,
            with_children=with_children,
            follow_it=follow_it,
            as_json=as_json,
        )


def _requeue_named(
    corral: Corral,
    runs: list[str],
    changes: list[str],
    *,
    with_children: bool,
    follow_it: bool,
    as_json: bool,
) -> None:
    if with_children and changes:
        raise InvalidInput("--with-children makes the same runs again; --set and --priority a new one")
    if follow_it and len(runs) > 1:
        raise InvalidInput("--follow follows one run", hint="Name one run.")

    def again(one: str) -> SubmitAnswer:
        spec = edited(corral.runs.get(one).spec, changes) if changes else None
        if spec is None:
            return corral.runs.requeue(one, with_children=with_children)
        return corral.runs.submit([spec])

    answers = _each(runs, again, "queue again")
    if as_json:
        render.show_json(answers[0] if len(answers) == 1 else answers)
    elif not follow_it:
        typer.echo("\n".join(run_id for answer in answers for run_id in answer.ids))
    if follow_it:
        raise typer.Exit(follow(corral, answers[0].ids[0]))


@app.command()
def hold(run: Runs = None, as_json: AsJson = False) -> None:
    """Keep runs that wait from starting, until they are released."""
    _need(run)
    with connect() as corral:
        _show(_each(run or [], corral.runs.hold, "hold"), as_json=as_json)


@app.command()
def release(run: Runs = None, as_json: AsJson = False) -> None:
    """Let runs go that were held; they are queued unless something else holds them."""
    _need(run)
    with connect() as corral:
        _show(_each(run or [], corral.runs.release, "release"), as_json=as_json)


@app.command()
def rm(run: Runs = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove runs that have ended, with their logs and the artifacts that no other run uses."""
    _need(run)
    with connect() as corral:
        ids = [corral.runs.resolve(one) for one in run or []]
        _ask(f"remove {_listed(ids)} for good", yes=yes)
        removed = _each(ids, corral.runs.remove, "remove")
    if as_json:
        render.show_json(removed)
        return
    for one in removed:
        kept = f"; kept, as others use them: {', '.join(one.kept)}" if one.kept else ""
        typer.echo(f"{one.id} is removed, with {render.count(one.artifacts, 'artifact')}{kept}")


def _need(run: list[str] | None) -> None:
    if not run:
        raise InvalidInput("no run is named", hint="Give one or more run ids; `corral ls` shows them.")


def _which(
    runs: list[str] | None,
    *,
    project: str | None,
    group: str | None,
    name: str | None,
    label: str | None,
    schedule: str | None,
    states: list[RunState] | None,
    everything: bool,
) -> RunSelection | None:
    """The filter that the options stand for; None where runs are named."""
    given = {"project": project, "group": group, "name": name, "label": label, "schedule": schedule}
    table = {key: value for key, value in given.items() if value is not None}
    asked = bool(table or states or everything)
    if runs and asked:
        raise InvalidInput(
            "runs are named and a filter is given", hint="Give either run ids or --group, --label, ..."
        )
    if not runs and not asked:
        _need(runs)
    if not asked:
        return None
    try:
        return RunSelection.model_validate({**table, "states": list(states or []), "all": everything})
    except ValidationError as error:
        raise explain(RunSelection, error, what="the filter") from None


def _all_of_them(
    act: Callable[[bool, RunsDone], ManyAnswer], *, verb: str, done: str, yes: bool, dry: bool, as_json: bool
) -> None:
    with count_bar("looking for runs", None) as told:
        found = act(True, told)
    if dry or not found.done:
        _show_many(found, f"would {verb}" if dry else None, as_json=as_json)
        return
    if not as_json:
        named = ", ".join(one.id for one in found.done[:5]) + (", ..." if len(found.done) > 5 else "")
        render.note(f"{render.count(len(found.done), 'run')}: {named}")
    _ask(f"{verb} {render.count(len(found.done), 'run')}", yes=yes)
    with count_bar(verb, len(found.done) + len(found.skipped)) as told:
        answer = act(False, told)
    _show_many(answer, done, as_json=as_json)


def _each(runs: Sequence[str], act: Callable[[str], T], verb: str) -> list[T]:
    answers: list[T] = []
    with count_bar(verb, len(runs)) as told:
        for one in runs:
            answers.append(act(one))
            told(len(answers))
    return answers


def _show_many(answer: ManyAnswer, done: str | None, *, as_json: bool) -> None:
    if as_json:
        render.show_json(answer)
        return
    whys: dict[str, int] = {}
    for one in answer.skipped:
        whys[one.why] = whys.get(one.why, 0) + 1
    for why, count in sorted(whys.items()):
        render.note(f"left alone: {render.count(count, 'run')}: {why}")
    if done is None:
        render.note("no run that fits; nothing was changed")
        return
    typer.echo(f"{render.count(len(answer.done), 'run')} {done}")
    for new in [new for acted in answer.done for new in acted.new]:
        typer.echo(new)


def _ask(question: str, *, yes: bool) -> None:
    """Where nobody can be asked, `--yes` must be said: a script does not stop half way."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"this would {question}, and nobody can be asked", hint="Say --yes.")
    if not typer.confirm(question[0].upper() + question[1:] + "?", err=True):
        raise typer.Abort


def _listed(ids: list[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{len(ids)} runs"


def _show(views: list[RunView], *, as_json: bool) -> None:
    if as_json:
        render.show_json(views)
        return
    for view in views:
        later = "; it may write a checkpoint before it goes" if view.state == "stopping" else ""
        held = f": {view.hold_reason}" if view.state == "held" and view.hold_reason else ""
        typer.echo(f"{view.id} is {view.state}{held}{later}")
