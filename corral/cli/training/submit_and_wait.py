"""Runs that ask about what a training run made: submitted, and waited for."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.display import render
from corral.cli.runs.follow import attend, exit_code, summary
from corral.cli.runs.submit import tell_if_stuck
from corral.client.corral import Corral
from corral.domain.runs.states import FINAL, RunState
from corral.wire.runs import RunDetail, RunView
from corral.wire.spec.run_file import RunSpec

TrainingRun = Annotated[
    str, typer.Argument(help="A training run: id, prefix or `latest`.", autocompletion=complete.runs)
]
Best = Annotated[bool, typer.Option("--best", help="The best checkpoint, and not the last step.")]

_LAST_LINES = 20


def tell_of_checkpoint(of: RunDetail) -> None:
    """Of a run that ended without a result, what it had learned is asked."""
    if of.artifact_id is None and of.state in FINAL and of.spec.train is not None:
        render.note(f"corral: run {of.id} is {of.state}; its last checkpoint is asked, if it left one")


def submit_and_wait(corral: Corral, spec: RunSpec) -> RunView:
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
    last = [line.text for line in corral.runs.iter_logs(run_id, tail=_LAST_LINES)]
    for text in [*last, *summary(ended, last)]:
        render.note(text)
    raise typer.Exit(exit_code(ended))
