"""Re-hash and cross-check everything that the server stores."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.bars import step_bar
from corral.domain.errors import CorralError

# What each check of the server goes through, one of it.
_THINGS = {
    "database": "database",
    "runs": "run",
    "blobs": "blob",
    "volumes": "volume",
    "unclaimed bytes": "unclaimed blob",
    "audit": "audit record",
}


def fsck(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, as they come.")] = False,
) -> None:
    """Re-hash and cross-check everything that the server stores.

    Exits with 1 if anything is wrong.
    """
    problems, done, damaged = 0, False, False
    checked: dict[str, int] = {}
    with connect() as corral, step_bar() as bar:
        for line in corral.fsck():
            problems += line.problem is not None
            done = done or line.done
            damaged = damaged or (line.check == "database" and line.problem is not None)
            checked[line.check] = max(checked.get(line.check, 0), line.checked)
            if as_json:
                render.show_json_line(line)
            elif line.problem is not None:
                render.say(f"{line.check}: {line.problem}")
            if not line.done:
                bar.step(f"checking {line.check}: {line.checked}")
    if not done:
        raise CorralError("the check broke off before its end", hint="Run it again; see the server's log.")
    if not as_json:
        counts = ", ".join(_counted(check, count) for check, count in checked.items() if count)
        found = render.count(problems, "problem") if problems else "no problems"
        render.say(f"checked {counts or 'nothing'}: {found}")
    if damaged:
        render.note(
            "the database is damaged: stop the server with `corral down`, and restore a backup with "
            "`corral restore`; without one, keep a copy of the folder before anything else"
        )
    if problems:
        raise typer.Exit(1)


def _counted(check: str, count: int) -> str:
    thing = _THINGS.get(check)
    return render.count(count, thing) if thing else f"{count} {check}"
