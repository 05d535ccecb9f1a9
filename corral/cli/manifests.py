"""Hosts and runs declared in one file: plan it, apply it, look at it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from corral.cli import complete
from corral.cli.connect import connect, own_project
from corral.cli.display import render
from corral.cli.options import AsJson, command_group, project_or_own
from corral.cli.runs.submit import run_preparer
from corral.client.corral import Corral
from corral.client.manifests import sync as fleet
from corral.client.manifests.apply import Also, Mode
from corral.client.manifests.differences import CODE, explained, told_apart
from corral.client.manifests.read import ParsedManifest, load
from corral.domain.errors import FieldError, InvalidInput
from corral.settings import read_settings
from corral.wire.manifests import ApplyAnswer, ChangeView, DifferenceView

app = command_group("Declare hosts and runs in one file: plan it, apply it.")

EXIT_PROBLEMS = 1
EXIT_CHANGES = 2
# More lines than these are for a program to read, which takes --json.
_SHOWN = 50
# The sign of a change, and what is said of it.
_ACTIONS = {
    "new": ("+", None),
    "again": ("+", "again, as the next generation"),
    "changed": ("~", None),
    "restored": ("~", "back: released"),
    "removed": ("-", "removed: held"),
    "pruned": ("-", "removed: cancelled"),
    "stopped": ("-", "removed: told to stop"),
}
_STYLES = {"+": "green", "~": "yellow", "-": "red", "!": "bold red"}

File = Annotated[Path, typer.Argument(help="A manifest (TOML).")]
Name = Annotated[str, typer.Argument(help="The manifest's name.", autocompletion=complete.manifests)]
Project = Annotated[str | None, typer.Option(help="Its project; CORRAL_PROJECT by default.")]
Prune = Annotated[bool, typer.Option("--prune", help="Cancel removed runs that wait.")]
Running = Annotated[bool, typer.Option("--running", help="With --prune: stop removed runs that run, too.")]
Retry = Annotated[
    bool,
    typer.Option("--retry-failed", help="Run what failed or was cancelled again, as the next generation."),
]


@app.command("plan")
def plan_manifest(
    file: File,
    prune: Prune = False,
    running: Running = False,
    retry_failed: Retry = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 2 if there is something to do.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only check the file and what it names; ask no server.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what applying would change, and all that is wrong; nothing is stored.

    Exits with 0, with 1 if something is wrong, and with --check with 2 if something would change.
    """
    if offline:
        _offline(file, as_json=as_json)
        return
    also = _also(prune=prune, running=running, retry_failed=retry_failed)
    if _sync(file, "plan", also, as_json=as_json).changes and check:
        raise typer.Exit(EXIT_CHANGES)


@app.command("apply")
def apply_manifest(
    file: File,
    prune: Prune = False,
    running: Running = False,
    retry_failed: Retry = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="The same as `plan`.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make it so: all of it or nothing. The same manifest again changes nothing."""
    also = _also(prune=prune, running=running, retry_failed=retry_failed)
    _sync(file, "plan" if dry else "apply", also, as_json=as_json)


@app.command("ls")
def list_manifests(as_json: AsJson = False) -> None:
    """List manifests as they were last applied."""
    with connect() as corral:
        items = list(corral.manifests.all())
    rows = [
        (m.name, m.project, m.runs, len(m.hosts), m.revision, render.age(m.applied_at), m.applied_by)
        for m in items
    ]
    columns = ("NAME", "PROJECT", "RUNS", "HOSTS", "REVISION", "APPLIED", "BY")
    empty = "no manifest was applied yet: `corral manifest apply FILE`"
    render.show_list(items, columns, rows, as_json=as_json, empty=empty)


@app.command()
def show(name: Name, project: Project = None, as_json: AsJson = False) -> None:
    """Show a manifest: its hosts, how its runs stand, and what it no longer names."""
    with connect() as corral:
        found = corral.manifests.get(project_or_own(project), name)
    states = ", ".join(f"{count} {state}" for state, count in sorted(found.states.items()))
    pairs: list[tuple[str, render.Cell]] = [
        ("name", found.name),
        ("project", found.project),
        ("revision", found.revision),
        ("applied", render.moment(found.applied_at)),
        ("by", found.applied_by),
        ("runs", f"{found.runs}: {states}" if states else str(found.runs)),
        ("hosts", ", ".join(found.hosts)),
        ("removed", ", ".join(f"{run.name} {run.run_id} ({run.state})" for run in found.gone[:_SHOWN])),
        ("digest", found.digest),
    ]
    render.show_one(found, pairs, as_json=as_json)


@app.command()
def delete(name: Name, project: Project = None, prune: Prune = False, running: Running = False) -> None:
    """Forget a manifest and what it declares of hosts. Its runs must have ended, or are pruned with it."""
    also = _also(prune=prune, running=running, retry_failed=False)
    with connect() as corral:
        corral.manifests.delete(project_or_own(project), name, also)
    render.note(f"the manifest {name} is forgotten; its runs are still listed")


def _also(*, prune: bool, running: bool, retry_failed: bool) -> list[Also]:
    if running and not prune:
        raise InvalidInput("--running goes with --prune", hint="Write `--prune --running`.")
    given: dict[Also, bool] = {"prune": prune, "prune_running": running, "retry_failed": retry_failed}
    return [word for word, wanted in given.items() if wanted]


def _sync(file: Path, mode: Mode, also: list[Also], *, as_json: bool) -> ApplyAnswer:
    """What the server says to it, shown; exits if something is wrong."""
    settings = read_settings()
    loaded = load(file, project=own_project(settings))
    if loaded.problems:
        # Told before a server is looked for, with whatever else is wrong.
        _check(loaded, file)
    with connect(settings) as corral, run_preparer(corral, file.absolute().parent) as shop:
        resolved = fleet.resolve(loaded, shop)
        try:
            answer = explained(corral, resolved, fleet.sync(corral, resolved, shop, mode=mode, also=also))
        except InvalidInput as error:
            raise loaded.placed_error(error) from error
    if as_json:
        render.show_json(answer)
    else:
        _show(answer, [*map(loaded.placed, _fields(answer))], resolved.notes, told_apart(resolved))
    if answer.problems:
        raise typer.Exit(EXIT_PROBLEMS)
    return answer


def _offline(file: Path, *, as_json: bool) -> None:
    loaded = load(file, project=read_settings().project)
    for text in _check(loaded, file):
        render.note(f"note: {text}")
    runs, hosts = len(loaded.runs), len(loaded.hosts)
    if as_json:
        render.show_json_line(
            {"name": loaded.name, "project": loaded.project, "tables": runs, "hosts": hosts}
        )
        return
    declared = f"{render.count(runs, 'table')} of runs and {render.count(hosts, 'host')}"
    render.say(f"{loaded.name}: {declared}, no problem found")


def _check(loaded: ParsedManifest, file: Path) -> tuple[str, ...]:
    # No call is made: what needs a server is not looked at.
    with Corral("http://127.0.0.1:9", None) as nobody, run_preparer(nobody, file.absolute().parent) as shop:
        return fleet.check(loaded, shop)


def _fields(answer: ApplyAnswer) -> list[FieldError]:
    return [FieldError(problem.path, problem.message) for problem in answer.problems]


def _show(
    answer: ApplyAnswer, problems: Iterable[FieldError], notes: Iterable[str], variants: Mapping[str, str]
) -> None:
    for text in notes:
        render.note(f"note: {text}")
    wrong = [Text(f"! {found.path}: {found.message}", style=_STYLES["!"]) for found in problems]
    render.show_lines([*_lines(answer, variants), *wrong, Text(_summary(answer))])
    for text in _notes(answer):
        render.note(f"note: {text}")


def _lines(answer: ApplyAnswer, variants: Mapping[str, str]) -> Iterator[Text]:
    for change in answer.changes[:_SHOWN]:
        sign, words = _ACTIONS[change.action]
        line = Text(f"{sign} {change.kind:<4} {change.name}", style=_STYLES[sign])
        for word in (variants.get(change.identity or ""), change.run_id, change.state, words):
            line.append(f"  {word}" if word else "", style="default")
        yield line
        for field in change.fields:
            yield Text(f"      {_difference(field)}")
    if (more := len(answer.changes) - _SHOWN) > 0:
        yield Text(f"  and {more} more (--json shows all)")


def _difference(field: DifferenceView) -> str:
    if field.path.startswith(CODE):
        # The digests of files are for programs, which take --json.
        done = "added" if field.old is None else "removed" if field.new is None else "changed"
        return f"{field.path}: {done}"
    return f"{field.path}: {_value(field.old)} -> {_value(field.new)}"


def _value(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)


def _summary(answer: ApplyAnswer) -> str:
    counts = Counter(_ACTIONS[change.action][0] for change in answer.changes)
    words = {"+": "new", "~": "changed", "-": "removed"}
    parts = [f"{counts[sign]} {word}" for sign, word in words.items() if counts[sign]]
    if answer.problems:
        parts.append(render.count(len(answer.problems), "problem"))
    head = f"{answer.name}, revision {answer.revision}" if answer.applied else answer.name
    said = ", ".join(parts) or "nothing to do"
    return f"{head}: {said}; {answer.same} the same" if answer.same else f"{head}: {said}"


def _notes(answer: ApplyAnswer) -> Iterator[str]:
    if answer.ended:
        runs = render.count(len(answer.ended), "run")
        yield f"{runs} failed or cancelled ({_listed(answer.ended)}): --retry-failed runs them again"
    if answer.gone:
        runs = render.count(len(answer.gone), "run")
        yield f"{runs} removed before and held ({_listed(answer.gone)}): --prune cancels them"


def _listed(runs: Iterable[ChangeView]) -> str:
    names = [f"{run.name} {run.state}" for run in runs]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
