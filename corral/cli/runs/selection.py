"""Which runs a command acts on: those that are named, or all that a filter finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from corral.cli import complete
from corral.domain.errors import InvalidInput
from corral.domain.runs.states import RunState
from corral.wire.base import validated
from corral.wire.runs import RunSelection

RunIds = Annotated[
    list[str] | None, typer.Argument(help="Run ids or unique prefixes.", autocompletion=complete.runs)
]
GroupOption = Annotated[
    str | None,
    typer.Option("--group", help="All of this group (id or name).", autocompletion=complete.groups),
]
LabelOption = Annotated[str | None, typer.Option("--label", help="All with this KEY=VALUE.")]
NameOption = Annotated[str | None, typer.Option("--name", help="All with this name.")]
ProjectOption = Annotated[str | None, typer.Option("--project", help="All of this project.")]
ScheduleOption = Annotated[
    str | None,
    typer.Option("--schedule", help="All that this schedule made.", autocompletion=complete.schedules),
]
StateOption = Annotated[list[RunState] | None, typer.Option("--state", help="Only in this state; repeat.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every run.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]


def named(runs: Sequence[str] | None) -> Sequence[str]:
    """The runs that were named; InvalidInput if none was."""
    if not runs:
        raise InvalidInput("no run is named", hint="Give one or more run ids; `corral ls` shows them.")
    return runs


def selection(
    runs: Sequence[str] | None, *, states: Sequence[RunState], everything: bool, **filters: str | None
) -> RunSelection | None:
    """The filter that the options stand for; None where runs are named."""
    table = {key: value for key, value in filters.items() if value is not None}
    if not (table or states or everything):
        named(runs)
        return None
    if runs:
        raise InvalidInput(
            "runs are named and a filter is given", hint="Give either run ids or --group, --label, ..."
        )
    return validated(RunSelection, {**table, "states": list(states), "all": everything}, what="the filter")
