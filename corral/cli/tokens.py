"""Create, list and revoke tokens."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from pydantic import ValidationError

from corral.cli import render
from corral.cli.connect import connect
from corral.wire.admin import TokenRequest
from corral.wire.base import explain, parse_duration

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, no_args_is_help=True, help="Create, list and revoke tokens."
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Scope(StrEnum):
    USER = "user"
    OPERATOR = "operator"
    HOST = "host"


@app.command("ls")
def list_tokens(as_json: AsJson = False) -> None:
    """List tokens; their text is never shown again."""
    with connect() as corral:
        page = corral.tokens.page()
    if as_json:
        render.show_json(page.items)
        return
    rows = [
        (
            token.id,
            token.name,
            token.scope,
            token.project,
            render.age(token.created_at),
            render.moment(token.expires_at) or "never",
            "yes" if token.revoked_at else None,
        )
        for token in page.items
    ]
    columns = ("TOKEN", "NAME", "SCOPE", "PROJECT", "AGE", "EXPIRES", "REVOKED")
    render.show_table(columns, rows, empty="no tokens")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is, or what for.")],
    scope: Annotated[Scope, typer.Option(help="What it may do.")] = Scope.USER,
    project: Annotated[str | None, typer.Option(help="Only in this project.")] = None,
    expires: Annotated[str | None, typer.Option(help='After how long, as "30d"; never by default.')] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it, once."""
    try:
        expires_in_s = parse_duration(expires)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--expires") from error
    given = {"scope": scope.value, "name": name, "project": project, "expires_in_s": expires_in_s}
    try:
        request = TokenRequest.model_validate(given)
    except ValidationError as error:
        raise explain(TokenRequest, error, what="the token") from None
    with connect() as corral:
        made = corral.tokens.create(request)
    if as_json:
        render.show_json(made)
        return
    typer.echo(made.token)
    render.note(f"{made.id} is made. It is not shown again; use it as CORRAL_TOKEN.")


@app.command()
def revoke(token: Annotated[str, typer.Argument(help="Token id.")]) -> None:
    """Make a token worthless at once."""
    with connect() as corral:
        corral.tokens.revoke(token)
    typer.echo(f"{token} is revoked")
