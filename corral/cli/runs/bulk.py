"""Acts on several runs: asks first, shows how far it is, and says what was done."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import typer

from corral.cli.display import render
from corral.cli.display.bars import count_bar
from corral.client.runs import RunsDone
from corral.domain.errors import InvalidInput
from corral.wire.runs import ManyAnswer, RunView

T = TypeVar("T")


def act_on_all(
    act: Callable[[bool, RunsDone], ManyAnswer], *, verb: str, done: str, yes: bool, dry: bool, as_json: bool
) -> None:
    """`act` is called twice: as a dry run, and after the user has agreed."""
    with count_bar("looking for runs", None) as told:
        found = act(True, told)
    if dry or not found.done:
        _show_answer(found, f"would {verb}" if dry else None, as_json=as_json)
        return
    runs = render.count(len(found.done), "run")
    if not as_json:
        ids = ", ".join(one.id for one in found.done[:5]) + (", ..." if len(found.done) > 5 else "")
        render.note(f"{runs}: {ids}")
    ask(f"{verb} {runs}", yes=yes)
    with count_bar(verb, len(found.done) + len(found.skipped)) as told:
        answer = act(False, told)
    _show_answer(answer, done, as_json=as_json)


def act_on_each(runs: Sequence[str], act: Callable[[str], T], verb: str) -> list[T]:
    answers: list[T] = []
    with count_bar(verb, len(runs)) as told:
        for one in runs:
            answers.append(act(one))
            told(len(answers))
    return answers


def ask(question: str, *, yes: bool) -> None:
    """Raise Abort if the user says no. A script must say `--yes`: it has nobody to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"this would {question}, and nobody can be asked", hint="Say --yes.")
    if not typer.confirm(question[0].upper() + question[1:] + "?", err=True):
        raise typer.Abort


def show_states(views: Sequence[RunView], *, as_json: bool) -> None:
    if as_json:
        render.show_json(views)
        return
    for view in views:
        later = "; it may write a checkpoint before it goes" if view.state == "stopping" else ""
        held = f": {view.hold_reason}" if view.state == "held" and view.hold_reason else ""
        typer.echo(f"{view.id} is {view.state}{held}{later}")


def _show_answer(answer: ManyAnswer, done: str | None, *, as_json: bool) -> None:
    if as_json:
        render.show_json(answer)
        return
    for why, count in sorted(Counter(one.why for one in answer.skipped).items()):
        render.note(f"left alone: {render.count(count, 'run')}: {why}")
    if done is None:
        render.note("no run fits; nothing was changed")
        return
    typer.echo(f"{render.count(len(answer.done), 'run')} {done}")
    for new in [new for acted in answer.done for new in acted.new]:
        typer.echo(new)
