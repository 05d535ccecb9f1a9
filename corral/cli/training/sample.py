"""`corral sample`: the same question to the model that a run trained, and to the one before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson
from corral.cli.training.submit_and_wait import Best, TrainingRun, submit_and_wait
from corral.client.training.evaluate import spec_about, training_run
from corral.client.training.results import read_lines
from corral.wire.base import validated
from corral.wire.spec.train import SampleRequest


def sample(
    run: TrainingRun,
    message: Annotated[str, typer.Option("--message", "-m", help="What to say to the model.")],
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
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
    said = [{"role": "system", "content": system}] if system else []
    given = {
        "which": "best" if best else "last",
        "messages": [*said, {"role": "user", "content": message}],
        "n": answers,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    ask = validated(SampleRequest, given, what="the question")
    with connect() as corral:
        of = training_run(corral, run)
        ended = submit_and_wait(corral, spec_about(of, ask))
        found = list(read_lines(corral, ended, "samples.jsonl"))
    if as_json:
        render.show_json({"run": ended.id, "of": of.id, "samples": found})
        return
    _show_samples(found)


def _show_samples(found: Sequence[Mapping[str, Any]]) -> None:
    """`before: ...` and `after: ...`; numbered where there are several of each."""
    several = len(found) > len({answer.get("phase") for answer in found})
    for answer in found:
        which = f" {int(answer.get('number', 0)) + 1}" if several else ""
        cut = " ..." if answer.get("reason") == "length" else ""
        render.say(f"{answer.get('phase')}{which}: {answer.get('completion', '')}{cut}")
