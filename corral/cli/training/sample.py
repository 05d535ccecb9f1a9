"""`corral sample`: the same question to the model that a run trained, and to the one before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson
from corral.cli.training.submit_and_wait import Best, TrainingRun, submit_and_wait, tell_of_checkpoint
from corral.client.training.evaluate import spec_about, training_run
from corral.client.training.results import read_lines
from corral.wire.base import validated
from corral.wire.spec.train import SampleRequest


def sample(
    run: TrainingRun,
    message: Annotated[
        str | None,
        typer.Option("--message", "-m", help="What to say, in the form of the rows that it was trained on."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="A text to go on from, without a chat template; in place of -m.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message, for a chat.")] = None,
    answers: Annotated[int, typer.Option("-n", min=1, max=256, help="How many answers.")] = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="0 takes the most likely; the run's own by default.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of one answer.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Another seed, other answers.")] = None,
    best: Best = False,
    as_json: AsJson = False,
) -> None:
    """Ask the model that a run trained, and the one before it, the same."""
    given = {
        "which": "best" if best else "last",
        **_question(message, prompt, system),
        "n": answers,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    ask = validated(SampleRequest, given, what="the question")
    with connect() as corral:
        of = training_run(corral, run)
        tell_of_checkpoint(of)
        ended = submit_and_wait(corral, spec_about(corral, of, ask))
        found = list(read_lines(corral, ended, "samples.jsonl"))
    if as_json:
        render.show_json({"run": ended.id, "of": of.id, "samples": found})
        return
    _show_samples(found)
    for note in _form_notes(found[0] if found else {}):
        render.note(note)


def _question(message: str | None, prompt: str | None, system: str | None) -> dict[str, Any]:
    if (message is None) == (prompt is None):
        raise typer.BadParameter("give one of them", param_hint="--message or --prompt")
    if message is None:
        if system is not None:
            raise typer.BadParameter("a prompt is all of the text; use -m for a chat", param_hint="--system")
        return {"prompt": prompt}
    said = [{"role": "system", "content": system}] if system else []
    return {"messages": [*said, {"role": "user", "content": message}]}


def _form_notes(answer: Mapping[str, Any]) -> list[str]:
    """In which form it was asked, and if it was trained in another how to ask in that."""
    form, trained_as = answer.get("form"), answer.get("trained_as")
    if form is None:
        # A worker of before says nothing of it.
        return []
    words = {"chat": "as a chat", "text": "as plain text, without a chat template"}
    if trained_as is None or form == trained_as:
        return [f"note: asked {words[form]}" + (", as it was trained" if trained_as else "")]
    how = "--prompt TEXT, or -m without --system" if trained_as == "text" else "-m TEXT"
    return [f"note: asked {words[form]}; it was trained {words[trained_as]}: ask so with {how}"]


def _show_samples(found: Sequence[Mapping[str, Any]]) -> None:
    """`before: ...` and `after: ...`; numbered where there are several of each."""
    several = len(found) > len({answer.get("phase") for answer in found})
    for answer in found:
        which = f" {int(answer.get('number', 0)) + 1}" if several else ""
        cut = " ..." if answer.get("reason") == "length" else ""
        render.say(f"{answer.get('phase')}{which}: {answer.get('completion', '')}{cut}")
