"""Show what projects used."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson


def usage(
    month: Annotated[str | None, typer.Option(help="As 2026-11; the present one by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show slot and GPU hours by project, in a calendar month (UTC)."""
    with connect() as corral:
        found = corral.quotas.usage(month)
    rows = [
        (
            item.project,
            f"{item.slot_hours:.2f}",
            f"{item.gpu_hours:.2f}",
            "-" if item.gpu_hours_limit is None else item.gpu_hours_limit,
            item.running,
            item.gpus,
        )
        for item in found.items
    ]
    columns = ("PROJECT", "SLOT HOURS", "GPU HOURS", "LIMIT", "RUNNING", "GPUS NOW")
    render.show_list(found, columns, rows, as_json=as_json, empty=f"nothing ran in {found.month}")
