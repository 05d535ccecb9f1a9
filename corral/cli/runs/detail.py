"""How runs, events, metrics and placements are shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import typer

from corral.cli.display import curves, reasons, render
from corral.client.corral import Corral
from corral.durations import format_duration
from corral.wire.logs import MetricPoint
from corral.wire.runs import AttemptView, EventView, ParentView, Placement, RunDetail, RunView
from corral.wire.spec.run_file import RunSpec, Scalar


def show_runs(runs: Sequence[RunView], params: Mapping[str, Mapping[str, Scalar]] | None = None) -> None:
    """`params` are those in which the runs of a group differ, by run; without any there is no column."""
    params = {run_id: found for run_id, found in (params or {}).items() if found}
    rows = [
        (
            run.id,
            run.name,
            render.state(run.state),
            run.project,
            *([_joined(dict(params.get(run.id, {})))] if params else []),
            run.seed,
            run.host,
            render.age(run.created_at),
            _ran(run),
            run.hold_reason or (run.reason if run.state != "succeeded" else None),
        )
        for run in runs
    ]
    swept = ("PARAMS",) if params else ()
    columns = ("RUN", "NAME", "STATE", "PROJECT", *swept, "SEED", "HOST", "AGE", "RAN", "REASON")
    render.show_table(columns, rows, empty="no runs; submit one with `corral run -- COMMAND`")


def show_run(run: RunDetail) -> None:
    render.show_pairs(
        [
            ("run", run.id),
            ("name", run.name),
            ("project", run.project),
            ("state", render.state(run.state)),
            ("held", run.hold_reason),
            ("reason", reasons.told(run.reason)),
            ("detail", run.detail),
            ("hint", reasons.hint(run)),
            ("exit code", run.exit_code),
            ("signal", run.signal),
            ("host", run.host),
            ("after", ", ".join(_parent(parent) for parent in run.after)),
            ("schedule", run.schedule_id),
            ("group", run.group and f"{run.group} ({run.group_id})"),
            ("seed", run.seed),
            ("generation", run.generation if run.generation > 1 else None),
            ("priority", run.priority or None),
            ("labels", _joined(run.labels)),
            ("submitted", f"{render.moment(run.created_at)} by {run.submitted_by or 'unknown'}"),
            ("started", render.moment(run.started_at)),
            ("ended", render.moment(run.ended_at)),
            ("ran", _ran(run)),
            ("command", json.dumps(run.spec.argv, ensure_ascii=False) if run.spec.argv else None),
            ("model", run.spec.model),
            ("revision", run.spec.model_revision),
            ("train", _joined(train_settings(run.spec.train)) if run.spec.train else None),
            ("params", _joined(run.spec.params)),
            ("code", run.spec.code),
            (
                "environment",
                f"Python {built.python}, locked" if (built := run.spec.environment) else "the host's",
            ),
            ("inputs", _joined(_inputs(run.spec))),
            ("secrets", ", ".join(run.spec.secrets)),
            ("progress", _joined(run.progress)),
            ("metrics", "  ".join(f"{key}={render.number(value)}" for key, value in run.metrics.items())),
            ("retries", _retries(run)),
            ("artifact", run.artifact_id),
        ]
    )
    _show_attempts(run.attempts)


def train_settings(table: Mapping[str, object]) -> dict[str, object]:
    """By dotted name, without what is not set."""
    found: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": inner for name, inner in train_settings(value).items()}
        elif value is not None and value != []:
            found[key] = value
    return found


def _show_attempts(attempts: Sequence[AttemptView]) -> None:
    if not attempts:
        return
    typer.echo("")
    rows = [
        (
            attempt.number,
            rank.rank,
            render.state(rank.state),
            rank.host,
            render.moment(attempt.opened_at),
            format_duration(attempt.closed_at - attempt.opened_at) if attempt.closed_at else None,
            rank.exit_code,
            reasons.told(rank.reason),
        )
        for attempt in attempts
        for rank in attempt.ranks
    ]
    columns = ("ATTEMPT", "RANK", "STATE", "HOST", "OPENED", "TOOK", "EXIT", "REASON")
    render.show_table(columns, rows, empty="")


def _parent(parent: ParentView) -> str:
    what = f"{parent.run_id} ({parent.state or 'removed'})"
    return f"{what} for the input {parent.input}" if parent.input else what


def _retries(run: RunDetail) -> str | None:
    allowed = run.spec.retries.model_dump()
    used = {cause: count for cause, count in run.retries_used.items() if count}
    return ", ".join(f"{cause} {count} of {allowed.get(cause, '?')}" for cause, count in used.items()) or None


def show_placements(hosts: Sequence[Placement]) -> None:
    rows = [(host.host, _place(host), "; ".join([*host.reasons, *host.waits]) or host.note) for host in hosts]
    empty = "no host is enrolled; `corral up --detach` starts a worker here"
    render.show_table(("HOST", "ELIGIBLE", "WHY"), rows, empty=empty)


def _place(host: Placement) -> str:
    """`yes`, `waits`, or why not in a word; an older server says only whether."""
    words = {"ready": "yes", "": "yes" if host.eligible else "no"}
    return words.get(host.place, host.place.replace("_", " "))


def show_metrics(points: Sequence[MetricPoint]) -> None:
    series: dict[str, list[MetricPoint]] = {}
    for point in points:
        series.setdefault(point.name, []).append(point)
    rows = [
        (
            name,
            len(found),
            found[-1].step,
            render.number(found[-1].value),
            render.number(min(p.value for p in found)),
            render.number(max(p.value for p in found)),
            render.sparkline([p.value for p in found]),
        )
        for name, found in sorted(series.items())
    ]
    columns = ("METRIC", "POINTS", "STEP", "LAST", "MIN", "MAX", "COURSE")
    render.show_table(
        columns, rows, empty="no metrics; a run writes them to the file that CORRAL_EVENTS names"
    )


def show_plot(corral: Corral, run: str, name: str | None) -> None:
    found = corral.runs.get(run)
    name = name or curves.headline(found) or next(iter(found.metrics), None)
    lines = [] if name is None else curves.plot(corral, found.id, name)
    if not lines:
        render.note(f"nothing to draw: fewer than two points of {name or 'any metric'}")
    for line in lines:
        typer.echo(line)


def all_events(corral: Corral, run_id: str) -> Iterator[EventView]:
    after = 0
    while True:
        page = corral.runs.events(run_id, after=after)
        yield from page.items
        if page.next is None or not page.items:
            return
        after = page.items[-1].n


def event_line(event: EventView) -> str:
    data = "  ".join(f"{key}={_said(key, value)}" for key, value in event.data.items() if value is not None)
    return f"{render.moment(event.at)}  {event.type:<14} {event.actor:<20} {data}".rstrip()


def _said(key: str, value: object) -> str:
    return reasons.told(value) or "" if key == "reason" and isinstance(value, str) else _plain(value)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _inputs(spec: RunSpec) -> dict[str, str]:
    """The artifact of each, and of a part of it its path."""
    parts = {name: f"/{path}" for name, path in spec.input_paths.items()}
    return {name: artifact + parts.get(name, "") for name, artifact in spec.inputs.items()}


def _joined(values: object) -> str:
    assert isinstance(values, dict)
    return "  ".join(f"{key}={_plain(value)}" for key, value in values.items())


def _ran(run: RunView) -> str | None:
    if run.started_at is None:
        return None
    return format_duration(ran_s(run)) if run.ended_at else render.age(run.started_at)


def ran_s(run: RunView) -> float:
    """How long a run that has ended really ran: without what it waited between attempts."""
    whole = (run.ended_at or 0.0) - (run.started_at or 0.0)
    return min(run.ran_s, whole) if run.attempt > 1 and run.ran_s else whole
