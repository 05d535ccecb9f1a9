"""Ask about what a training run made: how good it is, and what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.bars import byte_bar
from corral.cli.runs.exit_codes import exit_code
from corral.cli.runs.follow import attend, summary
from corral.cli.runs.submitting import tell_if_stuck
from corral.client.corral import Corral
from corral.client.submit.prepare import RunPreparer
from corral.client.training import evaluate as followup
from corral.domain.states import RunState
from corral.settings import process_environment
from corral.wire.runs import RunDetail, RunView
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.train import EvalRequest, Message, SampleRequest

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Run = Annotated[
    str, typer.Argument(help="A training run: id, prefix or `latest`.", autocompletion=complete.runs)
]
Best = Annotated[bool, typer.Option("--best", help="The best checkpoint, and not the last step.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_LAST_LINES = 20


@app.command("eval")
def evaluate(
    run: Run,
    rows: Annotated[int | None, typer.Option("--rows", "-n", min=1, help="Rows or tasks at most.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Rows to measure on, if not those that the run held out.")
    ] = None,
    best: Best = False,
    as_json: AsJson = False,
) -> None:
    """Measure what a training run has learned: before and after, with confidence intervals."""
    with connect() as corral:
        of = followup.trained(corral, run)
        spec = followup.about(of, EvalRequest(which=_which(best=best), rows=rows))
        if data is not None:
            with byte_bar() as bar:
                shop = RunPreparer(corral, Path.cwd(), process_environment(), bar)
                spec = followup.with_eval_data(spec, str(data), shop.ship(of.project, "eval_data", data))
        ended = _see_through(corral, spec)
        found = followup.read_json(corral, ended, "metrics.json")
    if as_json:
        typer.echo(json.dumps({"run": ended.id, "of": of.id, **found}, indent=2))
        return
    _show_evaluation(of, found)


@app.command()
def sample(
    run: Run,
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
    said = [Message(role="system", content=system)] if system else []
    ask = SampleRequest(
        which=_which(best=best),
        messages=[*said, Message(role="user", content=message)],
        n=answers,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
    )
    with connect() as corral:
        of = followup.trained(corral, run)
        ended = _see_through(corral, followup.about(of, ask))
        found = list(followup.read_lines(corral, ended, "samples.jsonl"))
    if as_json:
        typer.echo(json.dumps({"run": ended.id, "of": of.id, "samples": found}, indent=2))
        return
    _show_samples(found)


def _which(*, best: bool) -> Literal["last", "best"]:
    return "best" if best else "last"


def _see_through(corral: Corral, spec: RunSpec) -> RunView:
    """Submit it and wait; its own words are only shown where it fails."""
    (run_id,) = corral.runs.submit([spec]).ids
    render.note(f"corral: submitted {run_id}")
    tell_if_stuck(corral, run_id)
    try:
        ended = attend(corral, run_id)
    except KeyboardInterrupt:
        corral.runs.cancel(run_id, reason="nobody waits for the answer any more")
        raise
    if ended.state == RunState.SUCCEEDED:
        return ended
    for line in corral.runs.iter_logs(run_id, tail=_LAST_LINES):
        render.note(line.text)
    for text in summary(ended):
        render.note(text)
    raise typer.Exit(exit_code(ended))


def _show_evaluation(of: RunDetail, found: Mapping[str, Any]) -> None:
    rows: list[tuple[render.Cell, ...]] = []
    for one in found.get("evaluations", []):
        metric = one.get("metric")
        for when in ("before", "after", "change"):
            if isinstance(value := one.get(when), dict):
                rows.append((metric, when, *_interval(value)))
    columns = ("METRIC", "", "MEAN", "95% INTERVAL", "ROWS")
    render.show_table(columns, rows, empty=f"nothing was evaluated for {of.id}")


def _interval(value: Mapping[str, Any]) -> tuple[render.Cell, ...]:
    low, high = value.get("low"), value.get("high")
    between = None if low is None or high is None else f"{render.number(low)} to {render.number(high)}"
    return render.number(value["mean"]), between, value.get("count")


def _show_samples(found: Sequence[Mapping[str, Any]]) -> None:
    """`before: ...` and `after: ...`; numbered where there are several of each."""
    several = len(found) > len({answer.get("phase") for answer in found})
    for answer in found:
        which = f" {int(answer.get('number', 0)) + 1}" if several else ""
        cut = " ..." if answer.get("reason") == "length" else ""
        typer.echo(f"{answer.get('phase')}{which}: {_harmless(str(answer.get('completion', '')))}{cut}")


def _harmless(text: str) -> str:
    """A model may write anything, also what would move the cursor or change the terminal's title."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
