"""Set, list and remove secrets. A value is never an argument: other users can read those."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from pydantic import ValidationError

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson, command_group, project_or_own
from corral.domain.errors import InvalidInput

app = command_group("Set, list and remove secrets.")

Name = Annotated[str, typer.Argument(help="The environment variable that a run gets it as.")]
Project = Annotated[str | None, typer.Option(help="Project; CORRAL_PROJECT by default.")]


def _value(name: str) -> str:
    if sys.stdin.isatty():
        return str(typer.prompt(f"Value of {name}", hide_input=True, err=True))
    # One line end is what `echo` adds; a value that ends with one of its own is given two.
    return sys.stdin.read().removesuffix("\n")


@app.command("set")
def set_secret(name: Name, project: Project = None) -> None:
    """Set a secret from a prompt, or from stdin: `corral secrets set HF_TOKEN < file`."""
    owner = project_or_own(project)
    value = _value(name)
    try:
        with connect() as corral:
            view = corral.secrets.set(owner, name, value)
    except ValidationError:
        # Pydantic's own words would quote the value.
        raise InvalidInput(
            "the value is empty or longer than 65,536 characters", hint="Give another value."
        ) from None
    render.say(f"{view.name} is set in {owner}")
    if not view.redacted:
        render.note("it has fewer than 8 bytes, too few to be found and hidden in a run's output")


@app.command("ls")
def list_secrets(project: Project = None, as_json: AsJson = False) -> None:
    """List secrets by name; values are never shown."""
    owner = project_or_own(project)
    with connect() as corral:
        page = corral.secrets.page(owner)
    rows = [(item.name, render.age(item.updated_at), "yes" if item.redacted else "no") for item in page.items]
    columns = ("SECRET", "AGE", "REDACTED")
    render.show_list(page.items, columns, rows, as_json=as_json, empty=f"no secrets in {owner}")


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(help="Secrets.", autocompletion=complete.secrets)],
    project: Project = None,
) -> None:
    """Remove secrets; runs that name one fail until it is set again."""
    owner = project_or_own(project)
    with connect() as corral:
        for name in names:
            corral.secrets.delete(owner, name)
            render.say(f"{name} is removed from {owner}")
