"""`corral cancel`: stops runs, by id or all that a filter finds."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.options import AsJson
from corral.cli.runs.bulk import act_on_all, act_on_each, show_states
from corral.cli.runs.selection import (
    AllOption,
    Dry,
    GroupOption,
    LabelOption,
    NameOption,
    ProjectOption,
    RunIds,
    ScheduleOption,
    StateOption,
    Yes,
    named,
    selection,
)
from corral.domain.errors import InvalidInput


def cancel(
    run: RunIds = None,
    group: GroupOption = None,
    label: LabelOption = None,
    name: NameOption = None,
    project: ProjectOption = None,
    schedule: ScheduleOption = None,
    state: StateOption = None,
    everything: AllOption = False,
    reason: Annotated[str, typer.Option(help="Shown in the run's events.")] = "cancelled from the CLI",
    yes: Yes = False,
    dry: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Cancel runs; their workers stop them at once. By id, or all that the options find."""
    filters = {"group": group, "label": label, "name": name, "project": project, "schedule": schedule}
    which = selection(run, states=state or [], everything=everything, **filters)
    with connect() as corral:
        if which is not None:
            act_on_all(
                lambda dry_run, told: corral.runs.cancel_all(
                    which, reason=reason, dry_run=dry_run, told=told
                ),
                verb="cancel",
                done="cancelled, or told to stop",
                yes=yes,
                dry=dry,
                as_json=as_json,
            )
            return
        if dry:
            raise InvalidInput("--dry-run is for a filter", hint="Give --group, --label or another filter.")
        done = act_on_each(named(run), lambda one: corral.runs.cancel(one, reason=reason), "cancel")
    show_states(done, as_json=as_json)
