"""`corral why`: which hosts could take a run, and why the others cannot."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson, RunId
from corral.wire.runs import Placement


def why(run: RunId, as_json: AsJson = False) -> None:
    """Say which hosts could take a run, and why the others cannot."""
    with connect() as corral:
        answer = corral.runs.why(run)
    if as_json:
        render.show_json(answer)
        return
    typer.echo(answer.summary)
    for line in answer.queue:
        typer.echo(line)
    show_placements(answer.hosts)


def show_placements(hosts: Sequence[Placement]) -> None:
    rows = [(host.host, _place(host), "; ".join([*host.reasons, *host.waits]) or host.note) for host in hosts]
    empty = "no host is enrolled; `corral up --detach` starts a worker here"
    render.show_table(("HOST", "ELIGIBLE", "WHY"), rows, empty=empty)


def _place(host: Placement) -> str:
    """`yes`, `waits`, or why not in a word; an older server says only whether."""
    words = {"ready": "yes", "": "yes" if host.eligible else "no"}
    return words.get(host.place, host.place.replace("_", " "))
