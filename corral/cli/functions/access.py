"""`corral fn access` and `corral fn token`: who may call a web function."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson, Endpoint, duration_s
from corral.settings import read_settings
from corral.wire.base import validated
from corral.wire.tokens import EndpointTokenRequest


def access(
    name: Endpoint,
    public: Annotated[
        bool | None,
        typer.Option("--public/--private", help="Whether everybody may call it, without a token."),
    ] = None,
    revoke: Annotated[
        list[str] | None, typer.Option(help="A token of the endpoint that is to end; can be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show or set who may call the web functions of an endpoint."""
    project = read_settings().project
    with connect() as corral:
        if public is not None:
            corral.endpoints.set_access(project, name, public=public)
        for token in revoke or ():
            corral.endpoints.revoke_token(project, name, token)
        view, tokens = corral.endpoints.get(project, name), corral.endpoints.tokens(project, name).items
    if as_json:
        render.show_json({"public": view.public, "tokens": tokens})
        return
    who = "everybody, without a token" if view.public else f"users of {view.project}, and tokens of its own"
    render.show_pairs(("endpoint", view.name), ("called by", who))
    render.say()
    rows = [
        (one.id, one.name, render.age(one.created_at), render.moment(one.expires_at) or "never")
        for one in tokens
    ]
    render.show_table(("TOKEN", "NAME", "AGE", "EXPIRES"), rows, empty="it has no tokens of its own")


def token(
    name: Endpoint,
    label: Annotated[str, typer.Option("--name", help="Whose it is, or what for.")] = "caller",
    expires: Annotated[str | None, typer.Option(help='After how long, as "30d"; never by default.')] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token that calls the web functions of one endpoint and nothing else; print it, once."""
    given = {"name": label, "expires_in_s": duration_s(expires, "--expires")}
    request = validated(EndpointTokenRequest, given, what="the token")
    with connect() as corral:
        made = corral.endpoints.create_token(read_settings().project, name, request)
    if as_json:
        render.show_json(made)
        return
    # Without the pin of the authority: whoever uses it speaks plain HTTP, not through this package.
    render.say(made.token)
    render.note(f"{made.id} is made. It is not shown again; send it as `Authorization: Bearer TOKEN`.")
