"""`corral rm`: removes runs that have ended, for good."""

from __future__ import annotations

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson
from corral.cli.runs.bulk import RunIds, Yes, act_on_each, ask, named


def rm(run: RunIds = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove runs that have ended, with their logs and the artifacts that no other run uses."""
    given = named(run)
    with connect() as corral:
        ids = [corral.runs.resolve(one) for one in given]
        ask(f"remove {ids[0] if len(ids) == 1 else f'{len(ids)} runs'} for good", yes=yes)
        removed = act_on_each(ids, corral.runs.remove, "remove")
    if as_json:
        render.show_json(removed)
        return
    for one in removed:
        kept = f"; kept, as others use them: {', '.join(one.kept)}" if one.kept else ""
        render.say(f"{one.id} is removed, with {render.count(one.artifacts, 'artifact')}{kept}")
