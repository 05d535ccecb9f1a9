"""`corral submit`: a run file becomes a run, or a group of runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.connect import connect, own_project
from corral.cli.display import render
from corral.cli.display.bars import byte_bar
from corral.cli.options import AsJson, FollowIt, Quiet, RunFilePath
from corral.cli.runs.follow_group import follow_group, watch_group
from corral.cli.runs.follow_ranks import follow_run
from corral.cli.runs.why import REASONS_BELOW, show_placements
from corral.client.corral import Corral
from corral.client.submit.local_look import look_here
from corral.client.submit.prepare import PreparedRuns, RunPreparer
from corral.client.submit.run_file import load
from corral.domain.errors import FieldError, InvalidInput
from corral.settings import process_environment, read_settings
from corral.wire.runs import SubmitAnswer
from corral.wire.spec.run_file import RunFile

_SPECS_SHOWN = 1


def submit(
    file: RunFilePath,
    follow_it: FollowIt = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Show the spec and where it could run; store nothing.")
    ] = False,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, as `params.lr=3e-4`; repeat.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Submit a run file. Seeds and a sweep make a group of runs; all ids are printed."""
    settings = read_settings()
    run_file = load(
        file,
        override or [],
        defaults={"project": own_project(settings)},
        look=partial(look_here, base_dir=file.absolute().parent, environ=process_environment()),
    )
    if run_file.schedule is not None:
        raise InvalidInput(
            f"{file} has a [schedule]: its runs are made by the clock",
            hint=f"Use `corral schedules add {file}`; `corral schedules run-now` makes one at once.",
            fields=[FieldError("schedule", "is for `corral schedules add`")],
        )
    with connect(settings) as corral:
        if dry:
            _dry_run(corral, run_file, file.absolute().parent, as_json=as_json)
            return
        answer = submit_now(corral, run_file, file.absolute().parent)
        if answer.group_id and not quiet and not as_json:
            render.note(f"group {answer.group_id}: {render.count(len(answer.ids), 'run')}")
        if as_json:
            render.show_json(answer)
        elif not follow_it:
            render.say("\n".join(answer.ids))
        if not follow_it and not quiet:
            tell_if_stuck(corral, answer.ids[0])
        if follow_it and answer.group_id and len(answer.ids) > 1:
            raise typer.Exit(_follow_group(corral, answer.group_id, len(answer.ids), as_json, quiet))
        if follow_it:
            raise typer.Exit(follow_run(corral, answer.ids[0], run_file.replicas.max, quiet=quiet))


def _follow_group(corral: Corral, group_id: str, count: int, as_json: bool, quiet: bool) -> int:
    if as_json:
        # What the runs print would stand beside the answer.
        return watch_group(corral, group_id, count, None, say=render.note)
    return follow_group(corral, group_id, count, quiet=quiet)


@contextmanager
def run_preparer(corral: Corral, base_dir: Path) -> Iterator[RunPreparer]:
    """What makes runs ready to submit, with a bar that shows what it uploads."""
    with byte_bar() as bar:
        yield RunPreparer(corral, base_dir, process_environment(), bar)


def prepare(corral: Corral, run_file: RunFile, base_dir: Path) -> PreparedRuns:
    """Upload what the runs of a file need; what the user should know is said on stderr."""
    with run_preparer(corral, base_dir) as preparer:
        prepared = preparer.prepare(run_file)
    for text in prepared.notes:
        render.note(f"note: {text}")
    return prepared


def submit_now(corral: Corral, run_file: RunFile, base_dir: Path) -> SubmitAnswer:
    prepared = prepare(corral, run_file, base_dir)
    return corral.runs.submit(prepared.specs, group=prepared.group, max_running=prepared.max_running)


def tell_if_stuck(corral: Corral, run_id: str) -> None:
    """Say so if no host can take the run now. Whoever follows it is told so while it waits."""
    found = corral.runs.why(run_id)
    if found.state == "queued" and not any(host.eligible for host in found.hosts):
        words = found.summary.removeprefix("queued: ").removesuffix(REASONS_BELOW)
        render.note(f"note: {words}; see `corral why {run_id}`")


def _dry_run(corral: Corral, run_file: RunFile, base_dir: Path, *, as_json: bool) -> None:
    with run_preparer(corral, base_dir) as preparer:
        prepared = preparer.plan(run_file)
    answer = corral.runs.try_out(prepared.specs, group=prepared.group)
    specs = [spec.model_dump(mode="json", exclude_defaults=True) for spec in prepared.specs]
    if as_json:
        hosts = [host.model_dump(mode="json") for host in answer.hosts]
        render.show_json({"group": prepared.group, "runs": specs, "hosts": hosts})
        return
    for spec in specs[:_SPECS_SHOWN]:
        if "environment" in spec:
            # The lock is long, and its digest says the same.
            spec["environment"].pop("lock", None)
        render.show_json(spec)
    if len(specs) > _SPECS_SHOWN:
        render.say(f"and {len(specs) - _SPECS_SHOWN} more that differ in seed or params (--json shows all)")
    for source in prepared.sources.values():
        size = render.size(source.tree.total_bytes)
        render.say(f"{source.what}: {source.root} ({render.count(len(source.tree.files), 'file')}, {size})")
    show_placements(answer.hosts)
    for text in prepared.notes:
        render.note(f"note: {text}")
    render.note("dry run: nothing was stored")
