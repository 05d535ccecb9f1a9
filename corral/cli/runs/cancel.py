"""`corral cancel`: stops runs, by id or all that a filter finds."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.options import AsJson
from corral.cli.runs import bulk


def cancel(
    run: bulk.RunIds = None,
    group: bulk.Group = None,
    label: bulk.Label = None,
    name: bulk.Name = None,
    project: bulk.Project = None,
    schedule: bulk.Schedule = None,
    state: bulk.States = None,
    everything: bulk.All = False,
    reason: Annotated[str, typer.Option(help="Shown in the run's events.")] = "cancelled from the CLI",
    yes: bulk.Yes = False,
    dry: bulk.DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Cancel runs; their workers stop them at once. By id, or all that the options find."""
    filters = {"group": group, "label": label, "name": name, "project": project, "schedule": schedule}
    asked = bulk.selection(run, states=state or [], everything=everything, **filters)
    with connect() as corral:
        which = bulk.by_ids(corral, run) if dry and asked is None else bulk.of_one_group(corral, asked)
        if which is not None:
            act, done = partial(corral.runs.cancel_all, which, reason=reason), "cancelled, or told to stop"
            bulk.act_on_all(act, verb="cancel", done=done, yes=yes, dry=dry, as_json=as_json)
            return
        cancel_one, show = (
            partial(corral.runs.cancel, reason=reason),
            partial(bulk.show_states, as_json=as_json),
        )
        bulk.act_on_each(bulk.named(run), cancel_one, "cancel", show=show)
