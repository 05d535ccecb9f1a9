"""`corral events`: what happened to a run, in order."""

from __future__ import annotations

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.runs import plain, told
from corral.cli.display.visible import visible_line
from corral.cli.options import AsJsonLines, FollowOn, RunId
from corral.wire.runs import EventView


def events(run: RunId, follow_it: FollowOn = False, as_json: AsJsonLines = False) -> None:
    """Show what happened to a run, in order."""
    with connect() as corral:
        run_id = corral.runs.resolve(run)
        found = corral.runs.follow_events(run_id) if follow_it else corral.runs.iter_events(run_id)
        for event in found:
            if as_json:
                render.show_json_line(event)
            else:
                render.say_long(_line(event))


def _line(event: EventView) -> str:
    data = "  ".join(
        f"{visible_line(key)}={_said(key, value)}" for key, value in event.data.items() if value is not None
    )
    return f"{render.moment(event.at)}  {event.type:<14} {event.actor:<20} {data}".rstrip()


def _said(key: str, value: object) -> str:
    return told(value) or "" if key == "reason" and isinstance(value, str) else plain(value)
