"""`corral show`: everything about a run, or about a group."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from corral.cli.connect import connect
from corral.cli.display import render, rounds
from corral.cli.display.runs import hint, joined, joined_metrics, ran, told, told_of_rank, train_settings
from corral.cli.groups import SweepQuestion, show_group
from corral.cli.hosts.load import GPU_COLUMNS, gpu_cells
from corral.cli.options import AsJson, RunId
from corral.cli.runs.why import sentence
from corral.client.corral import Corral
from corral.durations import format_duration
from corral.wire.executors import PlacementView
from corral.wire.runs import AttemptView, ParentView, RunDetail
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import Replicas

# States in which no host has the run yet.
_PLACELESS = ("queued", "placing")


def show(run: RunId, as_json: AsJson = False) -> None:
    """Show everything about a run: how it stands, its attempts, and why it ended. Or a group, by its id."""
    with connect() as corral:
        if run.startswith("g-"):
            show_group(corral, run, SweepQuestion(), as_json=as_json)
            return
        found = corral.runs.get(run)
        placements = [] if as_json else _placements(corral, found)
        waits_for = sentence(corral.runs.why(found.id)) if found.state in _PLACELESS and not as_json else None
    if as_json:
        render.show_json(found)
    else:
        _show_run(found, waits_for)
        _show_attempts(found.attempts)
        rounds.show(rounds.of_ranks(found.attempts))
        _show_gpus(found.attempts)
        _show_placements(placements)


def _placements(corral: Corral, run: RunDetail) -> list[PlacementView]:
    """What executors were asked for; most runs name none."""
    return corral.executors.placements(run.id) if run.spec.placement.executors else []


def _show_placements(placements: Sequence[PlacementView]) -> None:
    if not placements:
        return
    render.say()
    columns = ["EXECUTOR", "STATE", "RANKS", "THERE", "HANDLE", "ASKED", "WHY"]
    rows = [
        [
            one.executor,
            one.state,
            one.ranks,
            _sighted(one),
            one.handle,
            render.moment(one.created_at),
            one.why or one.chosen,
        ]
        for one in placements
    ]
    if any(one.cost is not None for one in placements):
        columns.append("COST")
        for row, one in zip(rows, placements, strict=True):
            row.append(render.dollars(one.cost))
    render.show_table(columns, rows, empty="")


def _sighted(placement: PlacementView) -> str | None:
    """How many of its workers are in which state, as the executor told last; none of one that is closed."""
    if placement.closed_at is not None:
        return None
    ranks = (placement.seen or {}).get("ranks", ())
    counted = Counter(str(rank["state"]) for rank in ranks)
    return ", ".join(f"{count} {state}" for state, count in counted.items()) or None


def _show_run(run: RunDetail, waits_for: str | None) -> None:
    built, of_ranks = run.spec.environment, rounds.of_ranks(run.attempts)
    # Shown in words of their own.
    progress = {key: value for key, value in run.progress.items() if key != "rounds"}
    render.show_pairs(
        ("run", run.id),
        ("name", run.name),
        ("project", run.project),
        ("state", render.state(run.state)),
        ("held", run.hold_reason),
        ("waits", waits_for and waits_for.removeprefix(f"{run.state}: ")),
        ("reason", told(run.reason)),
        ("detail", run.detail),
        ("hint", hint(run)),
        ("exit code", run.exit_code),
        ("signal", run.signal),
        ("host", run.host),
        ("after", ", ".join(_parent(parent) for parent in run.after)),
        ("schedule", run.schedule_id),
        ("group", run.group and f"{run.group} ({run.group_id})"),
        ("seed", run.seed),
        ("generation", run.generation if run.generation > 1 else None),
        ("ranks", _ranks(run.spec.replicas)),
        ("priority", run.priority or None),
        ("labels", joined(run.labels)),
        ("submitted", f"{render.moment(run.created_at)} by {run.submitted_by or 'unknown'}"),
        ("started", render.moment(run.started_at)),
        ("ended", render.moment(run.ended_at)),
        ("changed", render.moment(run.updated_at)),
        ("ran", ran(run)),
        ("uses", _uses(run.attempts)),
        ("cost", render.dollars(run.cost)),
        ("command", json.dumps(run.command or run.spec.argv, ensure_ascii=False) if run.spec.argv else None),
        ("model", run.spec.model),
        ("revision", run.spec.model_revision),
        ("train", joined(train_settings(run.spec.train)) if run.spec.train else None),
        ("diloco", joined(train_settings(run.spec.diloco)) if run.spec.diloco else None),
        ("params", joined(run.spec.params)),
        ("code", run.spec.code),
        ("environment", f"Python {built.python}, locked" if built else "the host's"),
        ("inputs", joined(_inputs(run.spec))),
        ("secrets", ", ".join(run.spec.secrets)),
        ("progress", joined(progress)),
        ("rounds", rounds.done(of_ranks)),
        ("met last", rounds.members(of_ranks)),
        ("metrics", joined_metrics(run.metrics)),
        ("retries", _retries(run)),
        ("asks for", run.asks_for),
        ("artifact", run.artifact_id),
    )


def _show_attempts(attempts: Sequence[AttemptView]) -> None:
    if not attempts:
        return
    render.say()
    rows: list[tuple[render.Cell, ...]] = [
        (
            attempt.number,
            rank.rank,
            render.state(rank.state),
            rank.host,
            render.moment(attempt.opened_at),
            format_duration(attempt.closed_at - attempt.opened_at) if attempt.closed_at else None,
            rank.exit_code,
            told_of_rank(rank, attempt.ranks),
            rank.restarts or None,
        )
        for attempt in attempts
        for rank in attempt.ranks
    ]
    columns = ["ATTEMPT", "RANK", "STATE", "HOST", "OPENED", "TOOK", "EXIT", "REASON", "RESTARTS"]
    # Of a run of one rank each attempt says it.
    if not any(rank.rank for attempt in attempts for rank in attempt.ranks):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    render.show_table(columns, rows, empty="")


def _ranks(replicas: Replicas) -> str | None:
    if replicas.max == 1:
        return None
    return str(replicas.max) if replicas.min == replicas.max else f"{replicas.min} to {replicas.max}"


def _uses(attempts: Sequence[AttemptView]) -> str | None:
    """`1.2 GiB of memory in 3 processes`, of all its ranks that run."""
    running = [rank.sample for attempt in attempts for rank in attempt.ranks if rank.sample]
    known = [sample for sample in running if sample.rss_bytes is not None]
    if not known:
        return None
    memory = render.size(sum(sample.rss_bytes or 0 for sample in known))
    return f"{memory} of memory in {_processes(sum(sample.processes or 0 for sample in known))}"


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def _show_gpus(attempts: Sequence[AttemptView]) -> None:
    """The GPUs that it has, and how busy they are."""
    rows = [
        (rank.rank, rank.host, *gpu_cells(gpu))
        for attempt in attempts
        for rank in attempt.ranks
        for gpu in (rank.sample.gpus if rank.sample else ())
    ]
    if not rows:
        return
    render.say()
    columns = ("RANK", "HOST", *GPU_COLUMNS)
    render.show_table(columns, rows, empty="", spare=("RANK", "HOST"))


def _parent(parent: ParentView) -> str:
    what = f"{parent.run_id} ({parent.state or 'removed'})"
    return f"{what} for the input {parent.input}" if parent.input else what


def _retries(run: RunDetail) -> str | None:
    allowed = run.spec.retries.model_dump()
    used = {cause: count for cause, count in run.retries_used.items() if count}
    return ", ".join(f"{cause} {count} of {allowed.get(cause, '?')}" for cause, count in used.items()) or None


def _inputs(spec: RunSpec) -> dict[str, str]:
    """The artifact of each, and of a part of it its path."""
    parts = {name: f"/{path}" for name, path in spec.input_paths.items()}
    return {name: artifact + parts.get(name, "") for name, artifact in spec.inputs.items()}
