"""`corral hold` and `corral release`: keep runs from starting, and let them go."""

from __future__ import annotations

from functools import partial

from corral.cli.connect import connect
from corral.cli.options import AsJson
from corral.cli.runs.bulk import RunIds, act_on_each, named, show_states


def hold(run: RunIds = None, as_json: AsJson = False) -> None:
    """Keep runs that wait from starting, until they are released."""
    given = named(run)
    with connect() as corral:
        act_on_each(given, corral.runs.hold, "hold", show=partial(show_states, as_json=as_json))


def release(run: RunIds = None, as_json: AsJson = False) -> None:
    """Let runs go that were held; they are queued unless something else holds them."""
    given = named(run)
    with connect() as corral:
        act_on_each(given, corral.runs.release, "release", show=partial(show_states, as_json=as_json))
