"""Groups of runs: how they stand, and why runs of them failed."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.runs import told
from corral.cli.options import AsJson, Limit, OnlyProject, command_group
from corral.wire.groups import GroupDetail

app = command_group("List and show groups of runs.")


@app.command("ls")
def list_groups(project: OnlyProject = None, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List groups, the newest first."""
    with connect() as corral:
        page = corral.groups.page(project=project, limit=limit)
    rows = [
        (group.id, group.name, group.project, group.runs, counts(group.states), render.age(group.created_at))
        for group in page.items
    ]
    columns = ("GROUP", "NAME", "PROJECT", "RUNS", "STATES", "AGE")
    empty = "no groups; seeds and a sweep in a run file make one"
    more = page.next and f"({limit} shown; --limit shows more)"
    render.show_list(page.items, columns, rows, as_json=as_json, empty=empty, footer=more)


@app.command()
def show(
    group: Annotated[
        str, typer.Argument(help="Its id or name; the newest of that name.", autocompletion=complete.groups)
    ],
    as_json: AsJson = False,
) -> None:
    """Show how a group stands: counts by state, why runs failed, and the best of each metric."""
    with connect() as corral:
        show_group(corral.groups.get(group), as_json=as_json)


def show_group(group: GroupDetail, *, as_json: bool) -> None:
    if as_json:
        render.show_json(group)
        return
    render.show_pairs(
        ("group", group.id),
        ("name", group.name),
        ("project", group.project),
        ("submitted", render.moment(group.created_at)),
        ("runs", group.runs),
        ("at once", group.max_running and f"at most {group.max_running}"),
        ("states", counts(group.states)),
    )
    if group.ended_with:
        ends = [
            (one.runs, render.state(one.state), told(one.reason), one.detail, one.example)
            for one in group.ended_with
        ]
        render.say()
        render.show_table(("RUNS", "STATE", "REASON", "DETAIL", "FOR EXAMPLE"), ends, empty="")
    greatest = {one.metric: (render.number(one.value), one.run_id) for one in group.greatest}
    rows = [
        (one.metric, render.number(one.value), one.run_id, *greatest[one.metric])
        for one in group.least
        if one.metric in greatest
    ]
    if rows:
        render.say()
        render.show_table(("METRIC", "LEAST", "RUN", "GREATEST", "RUN"), rows, empty="")


def counts(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
