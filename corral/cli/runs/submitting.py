"""From what was typed to a submitted run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from corral.cli.display import render
from corral.cli.display.bars import byte_bar
from corral.cli.runs import detail
from corral.client.corral import Corral
from corral.client.submit.prepare import PreparedRuns, RunPreparer
from corral.client.submit.run_file import build
from corral.domain.errors import FieldError, InvalidInput
from corral.settings import process_environment
from corral.wire.runs import SubmitAnswer
from corral.wire.spec.run_file import RunFile

_SPECS_SHOWN = 1


def adhoc(
    command: Sequence[str],
    *,
    top: Mapping[str, str | None],
    env: Sequence[str],
    labels: Sequence[str],
    secrets: Sequence[str],
    requirements: Sequence[str],
    python: str | None,
    gpus: int,
    overrides: Sequence[str],
) -> RunFile:
    """The run file that a command line stands for."""
    if not command[0]:
        raise InvalidInput(
            "the command is empty", hint="Name a program after `--`; an unset variable may stand there."
        )
    table: dict[str, Any] = {key: value for key, value in top.items() if value is not None}
    table.setdefault("name", _name_of(command[0]))
    table["argv"] = list(command)
    table["env"] = _pairs("--env", env)
    table["labels"] = _pairs("--label", labels)
    table["secrets"] = list(secrets)
    if gpus:
        table["resources"] = {"gpus": gpus}
    if requirements or python:
        table["environment"] = {"requirements": list(requirements), "python": python}
    return build(table, what="the command line", overrides=overrides)


def submit_now(corral: Corral, run_file: RunFile, base_dir: Path) -> SubmitAnswer:
    prepared = _prepare(corral, run_file, base_dir)
    for text in prepared.notes:
        render.note(f"note: {text}")
    answer = corral.runs.submit(prepared.specs, group=prepared.group, max_running=prepared.max_running)
    if run_file.train is not None:
        tell_if_stuck(corral, answer.ids[0])
    return answer


def tell_if_stuck(corral: Corral, run_id: str) -> None:
    """A training run asks for much; whoever waits for a machine that is not there should know."""
    found = corral.runs.why(run_id)
    if found.state == "queued" and not any(host.eligible for host in found.hosts):
        render.note(f"note: {found.summary.removeprefix('queued: ')}: `corral why {run_id}`")


def submit_file(corral: Corral, run_file: RunFile, base_dir: Path, *, quiet: bool) -> SubmitAnswer:
    answer = submit_now(corral, run_file, base_dir)
    if not quiet and answer.group_id:
        render.note(f"group {answer.group_id}: {render.count(len(answer.ids), 'run')}")
    return answer


def dry_run(corral: Corral, run_file: RunFile, base_dir: Path, *, as_json: bool) -> None:
    with byte_bar() as bar:
        prepared = RunPreparer(corral, base_dir, process_environment(), bar).plan(run_file)
    answer = corral.runs.try_out(prepared.specs, group=prepared.group)
    specs = [spec.model_dump(mode="json", exclude_defaults=True) for spec in prepared.specs]
    if as_json:
        hosts = [host.model_dump(mode="json") for host in answer.hosts]
        typer.echo(json.dumps({"group": prepared.group, "runs": specs, "hosts": hosts}, indent=2))
        return
    for spec in specs[:_SPECS_SHOWN]:
        if "environment" in spec:
            # The lock is long, and its digest says the same.
            spec["environment"].pop("lock", None)
        typer.echo(json.dumps(spec, indent=2))
    if len(specs) > _SPECS_SHOWN:
        typer.echo(f"and {len(specs) - _SPECS_SHOWN} more that differ in seed or params (--json shows all)")
    for source in prepared.to_ship:
        size = render.size(sum(file.size for file in source.tree.files))
        typer.echo(f"{source.what}: {source.root} ({render.count(len(source.tree.files), 'file')}, {size})")
    detail.show_placements(answer.hosts)
    for text in prepared.notes:
        render.note(f"note: {text}")
    render.note("dry run: nothing was stored")


def _prepare(corral: Corral, run_file: RunFile, base_dir: Path) -> PreparedRuns:
    with byte_bar() as bar:
        return RunPreparer(corral, base_dir, process_environment(), bar).prepare(run_file)


def _name_of(program: str) -> str:
    """The program's own name, made fit for a run's name."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(program).name)
    return re.sub(r"\.{2,}", ".", name).strip("._-")[:64].strip("._-") or "run"


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidInput(
                f"{option} {text.partition('=')[0]!r} is not KEY=VALUE",
                hint=f"Write it as `{option} KEY=VALUE`.",
                fields=[FieldError(option, "is not KEY=VALUE")],
            )
        pairs[key] = value
    return pairs
