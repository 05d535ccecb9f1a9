"""`corral disk`: what takes space on the server, and freeing what can go."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson
from corral.wire.disk import DiskAnswer


def disk(
    runs: Annotated[
        int, typer.Option(min=0, max=1000, help="How many runs to list, the largest first.")
    ] = 10,
    collect: Annotated[
        bool, typer.Option("--collect", help="First delete what nothing names any more, at once.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what takes space on the server: by project, by kind, and by run; and what can go."""
    with connect() as corral:
        if collect:
            done = corral.disk.collect()
            render.note(
                f"{render.count(done.blobs, 'file')} and {render.count(done.logs, 'log')} are deleted"
            )
        found = corral.disk.get(runs=runs)
    if as_json:
        render.show_json(found)
        return
    loose = sum(one.loose_bytes for one in found.projects)
    render.show_pairs(
        ("free", render.size(found.free_bytes)),
        ("database", render.size(found.database_bytes)),
        ("can go", f"{render.size(loose)} that nothing names; `corral disk --collect` deletes it now"),
    )
    _show_tables(found)
    render.note(
        "`corral rm --older-than 30d --state failed --dry-run` says what removing old runs would free"
    )


def _show_tables(found: DiskAnswer) -> None:
    render.say()
    projects = [
        (one.project, one.files, render.size(one.bytes), render.size(one.loose_bytes))
        for one in found.projects
    ]
    render.show_table(("PROJECT", "FILES", "ON DISK", "CAN GO"), projects, empty="no files are stored")
    render.say()
    kinds = [
        (one.project or "(removed)", one.kind, one.entries, render.size(one.bytes)) for one in found.kinds
    ]
    render.show_table(("PROJECT", "KIND", "ENTRIES", "SIZE"), kinds, empty="nothing is named")
    render.say()
    rows = [(one.run_id, one.name, one.project, one.state, render.size(one.bytes)) for one in found.runs]
    render.show_table(("RUN", "NAME", "PROJECT", "STATE", "SIZE"), rows, empty="no run takes space")
