"""Options and arguments that several commands take, and the apps that commands belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import own_project
from corral.domain.errors import InvalidInput
from corral.durations import parse_duration
from corral.settings import read_settings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most this many.")]
OnlyProject = Annotated[str | None, typer.Option(help="Only this project.")]
RunId = Annotated[
    str,
    typer.Argument(
        help="Run id, a unique prefix of it, or `latest` (of your own).", autocompletion=complete.runs
    ),
]
Endpoint = Annotated[
    str, typer.Argument(help="An endpoint: `app.function`.", autocompletion=complete.endpoints)
]
RunFilePath = Annotated[Path, typer.Argument(help="A run file (TOML).")]
FollowIt = Annotated[bool, typer.Option("--follow", "-f", help="Follow it; exit with its code.")]
FollowOn = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only what the run prints.")]


def command_group(help: str | None) -> typer.Typer:
    """An app of several commands, as `corral volumes`."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True, help=help)


def project_or_own(given: str | None) -> str:
    return given or own_project(read_settings())


def checked_label(text: str | None) -> str | None:
    """InvalidInput unless it is a label with its value."""
    # Where the first sign of equality stands: after one character of a key at least.
    if text is not None and text.find("=") < 1:
        raise InvalidInput(f"--label {text!r} is not KEY=VALUE", hint="Write it as `--label team=vision`.")
    return text


def duration_s(text: str | None, option: str) -> float | None:
    """What the option says, in seconds; BadParameter if it is no duration."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
