"""`corral run`: a command becomes a run, which is followed to its end."""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from corral.cli.connect import connect, own_project
from corral.cli.display import render
from corral.cli.options import Quiet
from corral.cli.runs.follow_group import follow_group
from corral.cli.runs.follow_ranks import follow_run
from corral.cli.runs.submit import submit_now, tell_if_stuck
from corral.client.files.ignore import Ignore
from corral.client.files.walk import TreeLimits, TreeTooLarge, walk
from corral.client.submit.local_files import local_words, missing_script
from corral.client.submit.run_file import build
from corral.domain.errors import FieldError, InvalidInput
from corral.domain.paths import printable
from corral.settings import read_settings

# What is shipped without having been asked for: the sources of a program, and not somebody's data.
_UNASKED = TreeLimits(max_files=5_000, max_total_bytes=64 << 20)


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARG]...", help="What to run.")],
    name: Annotated[str | None, typer.Option(help="The run's name; the program's by default.")] = None,
    project: Annotated[str | None, typer.Option(help="Project; CORRAL_PROJECT by default.")] = None,
    code: Annotated[
        str | None,
        typer.Option(
            help="Folder to ship; the command starts in it. This folder, if the command names a file of it."
        ),
    ] = None,
    no_code: Annotated[bool, typer.Option("--no-code", help="Ship nothing of this folder.")] = False,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="KEY=VALUE; repeat.")] = None,
    secret: Annotated[list[str] | None, typer.Option(help="Name of a secret; repeat.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="KEY=VALUE; repeat.")] = None,
    requirement: Annotated[
        list[str] | None, typer.Option("--requirement", "-r", help='As pip takes it: "numpy==2.*"; repeat.')
    ] = None,
    python: Annotated[str | None, typer.Option(help='Build an environment with this Python: "3.12".')] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs that it needs, or each of its ranks.")] = 0,
    replicas: Annotated[
        str | None, typer.Option(metavar="N|MIN:MAX", help="How many ranks; MIN:MAX if it can do with fewer.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Any key of a run file: `resources.min_ram=8GiB`.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Submit, print the id, and leave.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run a command and follow it; exit with its code."""
    if not command[0]:
        raise InvalidInput(
            "the command is empty", hint="Name a program after `--`; an unset variable may stand there."
        )
    _refuse_bare_file(command[0], Path.cwd() / (code or "."))
    settings = read_settings()
    if code is None and not no_code:
        code = _code_of(command, Path.cwd(), quiet=quiet)
    table: dict[str, Any] = {
        "argv": list(command),
        "name": _name_of(command[0]) if name is None else name,
        "project": project or own_project(settings),
        "env": _pairs("--env", env or []),
        "labels": _pairs("--label", label or []),
        "secrets": secret or [],
        **({"code": code} if code is not None else {}),
        **({"resources": {"gpus": gpus}} if gpus else {}),
        **({"replicas": _replicas(replicas)} if replicas is not None else {}),
    }
    if requirement or python:
        table["environment"] = {"requirements": requirement or [], "python": python}
    run_file = build(table, what="the command line", overrides=override or [])
    with connect(settings) as corral:
        answer = submit_now(corral, run_file, Path.cwd())
        if detach:
            render.say("\n".join(answer.ids))
            if not quiet:
                tell_if_stuck(corral, answer.ids[0])
            return
        if answer.group_id:
            raise typer.Exit(follow_group(corral, answer.group_id, len(answer.ids), quiet=quiet))
        raise typer.Exit(follow_run(corral, answer.ids[0], run_file.replicas.max, quiet=quiet))


def _replicas(text: str) -> int | dict[str, int]:
    """`4`, or `2:8` for two to eight."""
    least, colon, most = text.partition(":")
    if not least.isdecimal() or (colon and not most.isdecimal()):
        raise InvalidInput(
            f"--replicas {text!r} is neither a number nor MIN:MAX",
            hint="Write `--replicas 4`, or `--replicas 2:8`.",
            fields=[FieldError("--replicas", "is neither a number nor MIN:MAX")],
        )
    return {"min": int(least), "max": int(most)} if colon else int(least)


def _refuse_bare_file(program: str, folder: Path) -> None:
    """A program's bare name is looked for on the PATH, where a file of the folder is not."""
    if "/" in program or shutil.which(program) or not (folder / program).is_file():
        return
    how = f"python3 {program}" if program.endswith(".py") else f"./{program}"
    raise InvalidInput(
        f"{program} lies in {printable(str(folder))}, but a program's bare name is looked for on the PATH",
        hint=f"Say `corral run -- {how}`.",
    )


def _code_of(command: Sequence[str], folder: Path, *, quiet: bool) -> str | None:
    """This folder, where the command could not run without it: `python train.py` names a file of it."""
    words = local_words(command, folder)
    if not words:
        if not quiet and (script := missing_script(command, folder)) is not None:
            near = difflib.get_close_matches(script, [path.name for path in folder.iterdir()], 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            render.note(f"corral: {printable(script)} is not a file here, and nothing is shipped{meant}")
        return None
    try:
        found = walk(folder, ignore=Ignore(), limits=_UNASKED)
    except TreeTooLarge as error:
        raise InvalidInput(
            f"the command names {words[0]}, which lies in {printable(str(folder))}, and {error.message}:"
            " so much is not shipped unasked",
            hint="Say `--code .` to ship it all, `--code FOLDER` for a part of it, or `--no-code`;"
            " .corralignore leaves files out.",
        ) from None
    if not quiet:
        size = render.size(sum(file.size for file in found.files))
        files = render.count(len(found.files), "file")
        render.note(f"corral: shipping this folder ({files}, {size}), as the command names {words[0]}")
    return "."


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
