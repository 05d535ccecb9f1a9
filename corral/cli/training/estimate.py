"""Say what a training run will need and cost, machine by machine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from corral.cli.connect import connect, own_project
from corral.cli.display import render
from corral.cli.display.bars import step_bar
from corral.cli.display.curves import thousands
from corral.cli.options import AsJson
from corral.cli.training.traffic import show_traffic
from corral.client.submit.prepare import RunPreparer
from corral.client.submit.run_file import load
from corral.client.training.estimate import (
    NOT_RENTED,
    Estimate,
    FleetSnapshot,
    MachineEstimate,
    estimate_machines,
)
from corral.client.training.material import MaterialReader, TrainingMaterial
from corral.client.training.placement import ForecastSubject, with_model
from corral.client.training.traffic import estimate_traffic
from corral.domain.errors import FieldError, InvalidInput, ServerUnreachable, Unauthenticated
from corral.durations import format_duration
from corral.recipes.train import to_table
from corral.settings import Settings, process_environment, read_settings
from corral.wire.runs import HostVerdict
from corral.wire.spec.run_file import RunFile, RunSpec

# Of cards that cannot be had anyway, the best are enough; --json has all.
_CARDS_SHOWN = 8


def estimate(
    file: Annotated[Path, typer.Argument(help="A run file (TOML) with a [train] table.")],
    override: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, as `train.lora.rank=8`; repeat.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Show every card, also those too small.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a training run will need and cost, machine by machine. Needs neither GPU nor server."""
    settings = read_settings()
    run_file = load(file, override or [], defaults={"project": own_project(settings)})
    if run_file.train is None:
        raise InvalidInput(
            "only a training run can be estimated",
            hint="Add a [train] table; `corral submit --dry-run` says where any other run could go.",
            fields=[FieldError("train", "is missing")],
        )
    folder = file.absolute().parent
    with step_bar() as bar:
        bar.step("looking at the model and the data")
        material = MaterialReader(run_file, folder, process_environment()).look()
        subjects = _subjects(run_file, material)
        spec, known, notes = _ask(settings, run_file, folder, material, subjects[0])
    found = estimate_machines(subjects, spec, known, today=datetime.now(UTC).date())
    notes = [*material.notes, *notes, *found.notes, *_of_the_disk(material, spec)]
    traffic = estimate_traffic(run_file, subjects[0])
    if as_json:
        table = _table(run_file, subjects[0], found, notes)
        moved = None if traffic is None else traffic.table()
        render.show_json({**table, "disk": _disk(material, spec), "traffic": moved})
        return
    _show(run_file, subjects[0], found, notes, every=every)
    if traffic is not None:
        show_traffic(traffic, runs=found.runs)


def _disk(material: TrainingMaterial, spec: RunSpec) -> dict[str, int | None]:
    """Bytes that the host must have, and what the model takes of them; null is unknown."""
    return {"needed_bytes": spec.resources.min_disk, "model_bytes": material.model.disk_bytes}


def _of_the_disk(material: TrainingMaterial, spec: RunSpec) -> list[str]:
    size = material.model.disk_bytes
    if size is None:
        return []
    whole = render.size(spec.resources.min_disk)
    return [f"the host must have {whole} of disk; {render.size(size)} of them are for the model"]


def _subjects(run_file: RunFile, material: TrainingMaterial) -> Sequence[ForecastSubject]:
    found = material.subjects(run_file)
    if not found:
        raise InvalidInput(
            f"the shape of {run_file.model} is not known here, so nothing can be said of it",
            hint="Name a folder that holds its config.json, or let this machine reach the model hub.",
            fields=[FieldError("model", "its shape is not known")],
        )
    return found


def _ask(
    settings: Settings,
    run_file: RunFile,
    folder: Path,
    material: TrainingMaterial,
    subject: ForecastSubject,
) -> tuple[RunSpec, FleetSnapshot, list[str]]:
    """The first run as it would be submitted, and what the server thinks of it, if there is one."""
    try:
        with connect(settings) as corral:
            with step_bar() as bar:
                prepared = RunPreparer(corral, folder, process_environment(), bar).plan(run_file)
            hosts = corral.hosts.all()
            try:
                placements = corral.runs.try_out(prepared.specs[:1]).hosts
            except InvalidInput as error:
                # What it would move and need is asked before there are hosts for all of it.
                if (why := _too_many_replicas(error)) is None:
                    raise
                placements = [
                    HostVerdict(host=host.name, host_id=host.id, eligible=False, reasons=[why])
                    for host in hosts
                ]
            return prepared.specs[0], FleetSnapshot(hosts, placements), []
    except (ServerUnreachable, Unauthenticated) as error:
        alone = with_model(run_file.resources, material.model.disk_bytes)
        if "gpus" not in alone.model_fields_set:
            alone = alone.model_copy(update={"gpus": 1})
        spec = RunSpec(model=run_file.model, train=to_table(subject.train), resources=alone)
        return spec, FleetSnapshot(), [f"no hosts are known: {error.message}"]


def _too_many_replicas(error: InvalidInput) -> str | None:
    return next((field.message for field in error.fields if field.path.endswith("replicas")), None)


def _table(
    run_file: RunFile, subject: ForecastSubject, found: Estimate, notes: Sequence[str]
) -> dict[str, Any]:
    data = subject.data
    return {
        "model": run_file.model,
        "parameters": subject.facts.params,
        "recipe": subject.train.recipe,
        "runs": found.runs,
        "data": {"rows": data.rows, "tokens": data.tokens, "longest": data.longest},
        "taken": found.taken,
        "machines": [machine.table() for machine in found.machines],
        "notes": list(notes),
    }


def _show(
    run_file: RunFile, subject: ForecastSubject, found: Estimate, notes: Sequence[str], *, every: bool
) -> None:
    render.say(_headline(run_file, subject, found))
    cards = [one for one in found.machines if one.kind == "card"]
    fitting = [one for one in cards if one.against == (NOT_RENTED,)]
    shown = cards if every else fitting[:_CARDS_SHOWN]
    hosts = [one for one in found.machines if one.kind == "host"]
    time = "ALL RUNS" if found.runs > 1 else "TIME"
    columns = ("MACHINE", "GPU", "PEAK", "NEEDS", "STEP", "TOK/S", time, "COST", "")
    rows = [_row(one, found.taken) for one in (*hosts, *shown)]
    render.show_table(columns, rows, empty="no machine is known")
    for note in _footnotes(found, hidden=len(cards) - len(shown)):
        render.note(note)
    for note in notes:
        render.note(f"note: {note}")


def _headline(run_file: RunFile, subject: ForecastSubject, found: Estimate) -> str:
    data, train = subject.data, subject.train
    parts = [f"{run_file.model}, {train.recipe}, {train.method}"]
    if data.rows is not None and data.tokens is not None:
        parts.append(f"{data.rows} rows, about {thousands(data.tokens)} tokens")
    if found.machines:
        parts.append(render.count(found.machines[0].forecast.steps, "step"))
    if found.runs > 1:
        parts.append(render.count(found.runs, "run"))
    return "; ".join(parts)


def _row(one: MachineEstimate, taken: str | None) -> tuple[render.Cell, ...]:
    said = one.forecast
    verdict = "; ".join(one.against)
    if one.possible:
        verdict = "taken" if one.name == taken else "could take it too"
    elif one.against == (NOT_RENTED,):
        verdict = (one.price_from or "its price is not known").partition(" (")[0]
    return (
        one.name,
        (one.gpu or "CPU") if one.kind == "host" else "to rent",
        render.size(said.peak_bytes),
        render.size(said.needed_bytes),
        f"{said.step_s * 1000:.0f}ms" if said.step_s < 1 else format_duration(said.step_s),
        thousands(said.tokens_per_s),
        format_duration(one.total_s),
        "your own" if one.kind == "host" else None if one.cost is None else f"${one.cost:.2f}",
        verdict,
    )


def _footnotes(found: Estimate, *, hidden: int) -> list[str]:
    notes: list[str] = []
    possible = [one.name for one in found.machines if one.possible]
    if found.taken is None and any(one.kind == "host" for one in found.machines):
        notes.append("no host can take it; the reasons are above")
    elif len(possible) > 1:
        notes.append(f"whichever of {', '.join(possible)} is free first takes it")
    if hidden:
        notes.append(f"{hidden} cards more, too small or too dear, are shown by --all")
    if any(one.kind == "card" for one in found.machines):
        notes.append(f"cards are shown to compare: {NOT_RENTED}")
        notes.append("prices are static: `corral gpus` names the source and age of each")
    return notes
