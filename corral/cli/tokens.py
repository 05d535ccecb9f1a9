"""Create, list and revoke tokens; let hosts join."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect, find_server
from corral.cli.display import render
from corral.cli.options import AsJson, command_group, duration_s
from corral.client.corral import Corral
from corral.client.hosts.reach import reached_by_others
from corral.domain.errors import Ambiguous, NotFound
from corral.domain.ids import is_id
from corral.domain.tokens import with_pin
from corral.settings import read_settings
from corral.wire.base import validated
from corral.wire.tokens import CreatedToken, TokenRequest, TokenView

app = command_group(__doc__)


_SCOPES = (
    "What it may do: a user's part, an operator's, only read, be a worker of a host, or of one run. "
    "An endpoint's own token is made by `corral fn token`."
)


class TokenScope(StrEnum):
    USER = "user"
    OPERATOR = "operator"
    READ = "read"
    HOST = "host"
    RUN = "run"


@app.command("ls")
def list_tokens(as_json: AsJson = False) -> None:
    """List tokens; their text is never shown again."""
    with connect() as corral:
        page = corral.tokens.page()
    rows = [
        (
            token.id,
            token.name or "(any host)",
            token.scope,
            token.project,
            render.age(token.created_at),
            render.moment(token.expires_at) or "never",
            _ended(token),
        )
        for token in page.items
    ]
    columns = ("TOKEN", "NAME", "SCOPE", "PROJECT", "AGE", "EXPIRES", "ENDED")
    render.show_list(page.items, columns, rows, as_json=as_json, empty="no tokens")


def _ended(token: TokenView) -> str | None:
    return "revoked" if token.revoked_at else "used" if token.used_at else None


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is, or what for.")],
    scope: Annotated[TokenScope, typer.Option(help=_SCOPES)] = TokenScope.USER,
    project: Annotated[str | None, typer.Option(help="Only in this project.")] = None,
    run: Annotated[
        str | None,
        typer.Option(help="With --scope run: the run that it is for.", autocompletion=complete.runs),
    ] = None,
    expires: Annotated[str | None, typer.Option(help='After how long, as "30d"; never by default.')] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it, once."""
    given = {"scope": scope.value, "name": name, "project": project}
    if run is not None:
        with connect() as corral:
            given["run"] = corral.runs.resolve(run)
    made = _create(given, expires, as_json=as_json)
    if made is not None:
        render.note(f"{made.id} is made. It is not shown again; use it as CORRAL_TOKEN.")


def _create(given: Mapping[str, object], expires: str | None, *, as_json: bool) -> CreatedToken | None:
    """Make it and print it, with the pin of the server's authority; None if it was printed as JSON."""
    given = {**given, "expires_in_s": duration_s(expires, "--expires")}
    request = validated(TokenRequest, given, what="the token")
    with connect() as corral:
        made = corral.tokens.create(request)
    whole = made.model_copy(update={"token": with_pin(made.token, made.ca_pin)})
    if as_json:
        render.show_json(whole)
        return None
    render.say(whole.token)
    return whole


@app.command()
def join(
    name: Annotated[
        str | None,
        typer.Argument(help="The host that it is for, new or enrolled before; any new one if left out."),
    ] = None,
    expires: Annotated[str, typer.Option(help="After how long.")] = "15m",
    label: Annotated[list[str] | None, typer.Option(help="A label for the host; can be repeated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token with which one machine becomes a host, and print it, once."""
    given = {"scope": "join", "name": name, "labels": label or []}
    made = _create(given, expires, as_json=as_json)
    if made is not None:
        place = reached_by_others(find_server(read_settings()).url)
        render.note(f"{made.id} is good once, for {expires}. On the machine that joins:")
        render.note(f"  corral host enroll {place.url} --token {made.token}")
        if not place.from_elsewhere:
            render.note("The server listens on this machine alone, so no other can join it:")
            render.note("restart it with CORRAL_HOST=0.0.0.0, and make another token.")


@app.command("ca")
def show_authority() -> None:
    """Print the certificate behind the server's, as `curl --cacert` takes it."""
    found = find_server(read_settings())
    if found.ca is None:
        speaks = (
            "a certificate that this machine trusts anyway"
            if found.url.startswith("https:")
            else "plain HTTP"
        )
        raise NotFound(f"{found.url} has {speaks}", hint="Nothing has to be named: leave --cacert out.")
    render.pass_on(found.ca.strip())


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(help="Token, by id or name.", autocompletion=complete.tokens)],
) -> None:
    """Make a token worthless at once."""
    with connect() as corral:
        token_id = token if is_id(token, "t") else _named(corral, token)
        corral.tokens.revoke(token_id)
    render.say(f"{token_id if token == token_id else f'{token_id} ({token})'} is revoked")


def _named(corral: Corral, name: str) -> str:
    """The one valid token of this name."""
    found = [one.id for one in corral.tokens.page().items if one.name == name and _ended(one) is None]
    if not found:
        raise NotFound(f"there is no valid token {name!r}", hint="List them with `corral tokens ls`.")
    if len(found) > 1:
        raise Ambiguous(f"{len(found)} tokens are named {name!r}", hint=f"Give an id: {', '.join(found)}.")
    return found[0]
