"""Add, test, pause and remove webhooks, and send again what was not received."""

from __future__ import annotations

import itertools
import sys
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson, command_group
from corral.domain.errors import CorralError
from corral.domain.webhooks.deliveries import ENDS, DeliveryState, WebhookFormat
from corral.settings import process_environment
from corral.wire.base import validated
from corral.wire.webhooks import (
    CreatedWebhook,
    DeliveryView,
    RotateWebhookRequest,
    WebhookRequest,
    WebhookView,
)

app = command_group(__doc__)

Name = Annotated[str, typer.Argument(help="The webhook's name.", autocompletion=complete.webhooks)]
SecretVariable = Annotated[
    str | None, typer.Option(help="Sign with the secret in this variable, instead of a new one.")
]


class TestNotReceived(CorralError):
    """A test that the receiver did not take."""

    code = "not_received"
    hint = "See that it listens there and answers with 2xx within 15 s."


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    url: Annotated[
        str, typer.Argument(help="Where to; `-` reads it from stdin, where others cannot see it.")
    ],
    events: Annotated[
        str, typer.Option(help="Types with commas between, or `run.*` for all.", metavar="TYPES")
    ] = ",".join(ENDS),
    project: Annotated[str | None, typer.Option(help="Only runs of this project.")] = None,
    form: Annotated[
        WebhookFormat, typer.Option("--format", help="How the body is written.")
    ] = WebhookFormat.CORRAL,
    secret_from_env: SecretVariable = None,
    as_json: AsJson = False,
) -> None:
    """Send notices of what happens to runs from now on. Prints the secret that they are signed with."""
    given = {
        "name": name,
        "url": sys.stdin.readline().strip() if url == "-" else url,
        "events": [part.strip() for part in events.split(",") if part.strip()],
        "project": project,
        "format": form.value,
        "secret": _secret(secret_from_env),
    }
    request = validated(WebhookRequest, given, what="the webhook")
    with connect() as corral:
        made = corral.webhooks.add(request)
    then = f"{made.name} sends to {made.url}; try it with `corral webhooks test {made.name}`"
    _show_secret(made, then, as_json=as_json)


def _secret(variable: str | None) -> str | None:
    if variable is None:
        return None
    value = process_environment().get(variable)
    if not value:
        raise typer.BadParameter(f"{variable} is not set", param_hint="--secret-from-env")
    return value


@app.command("ls")
def list_webhooks(as_json: AsJson = False) -> None:
    """List webhooks; of their addresses only the host is shown."""
    with connect() as corral:
        found = corral.webhooks.all()
    rows = [
        (hook.name, hook.url, hook.project, ", ".join(hook.events), _standing(hook), hook.waiting)
        for hook in found
    ]
    columns = ("WEBHOOK", "URL", "PROJECT", "EVENTS", "STATE", "WAITING")
    render.show_list(found, columns, rows, as_json=as_json, empty="no webhooks")


def _standing(hook: WebhookView) -> str:
    return "paused" if hook.paused else "active"


@app.command()
def show(
    name: Name,
    delivery: Annotated[str | None, typer.Argument(help="One delivery, with the body that is sent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a webhook, or one of its deliveries."""
    with connect() as corral:
        if delivery is not None:
            render.show_json(corral.webhooks.delivery(name, delivery))
            return
        hook = corral.webhooks.get(name)
    pairs: list[tuple[str, render.Cell]] = [
        ("name", hook.name),
        ("id", hook.id),
        ("url", hook.url),
        ("format", hook.format),
        ("events", ", ".join(hook.events)),
        ("project", hook.project or "all"),
        ("state", _standing(hook)),
        ("waiting", hook.waiting),
        ("made", render.moment(hook.created_at)),
        ("by", hook.created_by),
        ("old secret", hook.old_secret_until and f"good until {render.moment(hook.old_secret_until)}"),
    ]
    render.show_one(hook, pairs, as_json=as_json)


@app.command("test")
def send_test(name: Name, as_json: AsJson = False) -> None:
    """Send a notice now and say what came of it; exits with 1 if it was not received."""
    with connect() as corral:
        done = corral.webhooks.test(name)
    if as_json:
        render.show_json(done)
    elif done.state == DeliveryState.DELIVERED:
        render.say(f"{name} received it: {done.status}")
    if done.state != DeliveryState.DELIVERED:
        raise TestNotReceived(f"{name} did not receive it: {done.detail or done.status}")


@app.command()
def rotate(
    name: Name,
    keep: Annotated[
        str, typer.Option(help="How long notices are signed with the old secret as well; `0s` for not.")
    ] = "1d",
    secret_from_env: SecretVariable = None,
    as_json: AsJson = False,
) -> None:
    """Sign with a new secret, and for a while with the old one too. Prints the new one."""
    given = {"keep_s": keep, "secret": _secret(secret_from_env)}
    request = validated(RotateWebhookRequest, given, what="the rotation")
    with connect() as corral:
        made = corral.webhooks.rotate(name, request)
    until = render.moment(made.old_secret_until)
    both = f"they are signed with the old secret as well until {until}"
    _show_secret(made, both if until else "the old secret no longer works", as_json=as_json)


def _show_secret(made: CreatedWebhook, then: str, *, as_json: bool) -> None:
    if as_json:
        render.show_json(made)
        return
    if made.secret is not None:
        render.say(made.secret)
        render.note("notices are signed with this secret; it is not shown again")
    render.note(then)


@app.command()
def pause(name: Name) -> None:
    """Send nothing; what happens meanwhile waits."""
    with connect() as corral:
        render.say(f"{corral.webhooks.pause(name).name} is paused")


@app.command()
def resume(
    name: Name,
    skip: Annotated[bool, typer.Option("--skip", help="Leave out what happened meanwhile.")] = False,
) -> None:
    """Send again, also what happened meanwhile."""
    with connect() as corral:
        render.say(f"{corral.webhooks.resume(name, skip=skip).name} sends again")


@app.command()
def rm(name: Name) -> None:
    """Remove a webhook, and what was to be sent by it."""
    with connect() as corral:
        corral.webhooks.remove(name)
    render.say(f"{name} is removed")


@app.command()
def deliveries(
    name: Name,
    state: Annotated[DeliveryState | None, typer.Option(help="Only these.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List what was and is to be sent, the newest first."""
    with connect() as corral:
        found = list(itertools.islice(corral.webhooks.deliveries(name, state=state), limit))
    columns = ("DELIVERY", "EVENT", "STATE", "TRIES", "AGE", "NEXT TRY", "STATUS", "DETAIL")
    empty = f"nothing was sent by {name} yet"
    render.show_list(found, columns, map(_row, found), as_json=as_json, empty=empty)


def _row(item: DeliveryView) -> tuple[render.Cell, ...]:
    return (
        item.id,
        item.event,
        item.state,
        item.attempts,
        render.age(item.created_at),
        render.moment(item.next_at),
        item.status,
        item.detail,
    )


@app.command()
def replay(
    name: Name,
    delivery: Annotated[list[str] | None, typer.Argument(help="Deliveries by id.")] = None,
    dead: Annotated[bool, typer.Option("--dead", help="All that were given up.")] = False,
) -> None:
    """Send deliveries once more, under their old ids."""
    if bool(delivery) == dead:
        raise typer.BadParameter("name deliveries, or give --dead", param_hint="DELIVERY")
    with connect() as corral:
        count = corral.webhooks.replay_dead(name) if dead else corral.webhooks.replay(name, delivery or [])
    counted = "1 delivery is" if count == 1 else f"{count} deliveries are"
    render.say(f"{counted} sent again")
