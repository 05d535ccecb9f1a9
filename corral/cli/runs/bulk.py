"""Commands on several runs: which they act on, asking first, how far it is, and what was done."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

from corral.cli import complete
from corral.cli.display import render
from corral.cli.display.bars import count_bar
from corral.cli.display.visible import visible
from corral.cli.options import checked_label
from corral.cli.runs.group_option import group_meant
from corral.client.corral import Corral
from corral.domain.errors import Conflict, CorralError, InvalidInput, ServerUnreachable
from corral.domain.runs.states import RunState
from corral.wire.base import validated
from corral.wire.runs import ManyAnswer, RunSelection, RunView

T = TypeVar("T")
RunIds = Annotated[
    list[str] | None, typer.Argument(help="Run ids or unique prefixes.", autocompletion=complete.runs)
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", help="All of this group (id, or name of the newest).", autocompletion=complete.groups
    ),
]
Label = Annotated[
    str | None, typer.Option("--label", help="All with this KEY=VALUE.", callback=checked_label)
]
Name = Annotated[str | None, typer.Option("--name", help="All with this name.")]
Project = Annotated[str | None, typer.Option("--project", help="All of this project.")]
Schedule = Annotated[
    str | None,
    typer.Option("--schedule", help="All that this schedule made.", autocompletion=complete.schedules),
]
States = Annotated[list[RunState] | None, typer.Option("--state", help="Only in this state; repeat.")]
All = Annotated[bool, typer.Option("--all", help="Every run.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]


def named(runs: Sequence[str] | None) -> Sequence[str]:
    """The runs that were named; InvalidInput if none was."""
    if not runs:
        raise InvalidInput("no run is named", hint="Give one or more run ids; `corral ls` shows them.")
    return runs


def selection(
    runs: Sequence[str] | None, *, states: Sequence[RunState], everything: bool, **filters: str | None
) -> RunSelection | None:
    """The filter that the options stand for; None where runs are named."""
    table = {key: value for key, value in filters.items() if value is not None}
    if not (table or states or everything):
        named(runs)
        return None
    if runs:
        raise InvalidInput(
            "runs are named and a filter is given", hint="Give either run ids or --group, --label, ..."
        )
    return validated(RunSelection, {**table, "states": list(states), "all": everything}, what="the filter")


def by_ids(corral: Corral, runs: Sequence[str] | None) -> RunSelection:
    """Those that were named, for a dry run; NotFound if there is no such run."""
    ids = [corral.runs.resolve(one) for one in named(runs)]
    return validated(RunSelection, {"ids": ids}, what="the list of runs")


def of_one_group(corral: Corral, which: RunSelection | None) -> RunSelection | None:
    """The same with the id of the group that its name means."""
    if which is None or which.group is None:
        return which
    return which.model_copy(update={"group": group_meant(corral, which.group, which.project)})


def act_on_all(
    act: Callable[..., ManyAnswer], *, verb: str, done: str, yes: bool, dry: bool, as_json: bool
) -> None:
    """`act` is called twice, with `dry_run` and `told`: as a dry run, and after the user has agreed."""
    with count_bar("looking for runs", None) as told:
        found = act(dry_run=True, told=told)
    if dry or not found.done:
        _show_answer(found, f"would be {done}" if dry else None, as_json=as_json)
        return
    runs = render.count(len(found.done), "run")
    if not as_json:
        ids = ", ".join(one.id for one in found.done[:5]) + (", ..." if len(found.done) > 5 else "")
        render.note(f"{runs}: {ids}")
    ask(f"{verb} {runs}", yes=yes)
    with count_bar(verb, len(found.done) + len(found.skipped)) as told:
        answer = act(dry_run=False, told=told)
    _show_answer(answer, done, as_json=as_json)


def act_on_each(
    runs: Sequence[str], act: Callable[[str], T], verb: str, *, show: Callable[[list[T]], None]
) -> None:
    """One that is refused keeps no other from its turn: what was done is shown, then what was not."""
    answers: list[T] = []
    refused: list[CorralError] = []
    with count_bar(verb, len(runs)) as told:
        for count, one in enumerate(runs, start=1):
            try:
                answers.append(act(one))
            except CorralError as error:
                refused.append(error)
                if isinstance(error, ServerUnreachable):
                    break
            told(count)
    if answers:
        show(answers)
    if refused:
        raise _as_one(refused, len(runs))


def _as_one(refused: Sequence[CorralError], asked: int) -> CorralError:
    if asked == 1 or isinstance(refused[-1], ServerUnreachable):
        return refused[-1]
    told = "; ".join(error.message for error in refused)
    return Conflict(told, hint="All others that you named are done.")


def ask(question: str, *, yes: bool) -> None:
    """Raise Abort if the user says no. A script must say `--yes`: it has nobody to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"this would {question}, and nobody can be asked", hint="Say --yes.")
    typer.confirm(visible(question[0].upper() + question[1:] + "?"), err=True, abort=True)


def show_states(views: Sequence[RunView], *, as_json: bool) -> None:
    if as_json:
        render.show_json(views)
        return
    for view in views:
        later = "; it may write a checkpoint before it goes" if view.state == "stopping" else ""
        held = f": {view.hold_reason}" if view.state == "held" and view.hold_reason else ""
        render.say(f"{view.id} is {view.state}{held}{later}")


def _show_answer(answer: ManyAnswer, done: str | None, *, as_json: bool) -> None:
    if as_json:
        render.show_json(answer)
        return
    for why, count in sorted(Counter(one.why for one in answer.skipped).items()):
        render.note(f"left alone: {render.count(count, 'run')}: {why}")
    if done is None:
        render.note("no run fits; nothing was changed")
        return
    render.say(f"{render.count(len(answer.done), 'run')} {done}")
    for new in [new for acted in answer.done for new in acted.new]:
        render.say(new)
