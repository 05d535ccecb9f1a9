"""List, show, retry and cancel calls."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson, command_group
from corral.client.corral import Corral
from corral.domain.errors import InvalidInput
from corral.durations import format_duration
from corral.wire.calls import CallView

app = command_group(__doc__)

CallArgument = Annotated[str, typer.Argument(help="A call's id.")]


@app.command("ls")
def list_calls(
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", "-e", help="Only of this endpoint.", autocompletion=complete.endpoints),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="queued, assigned, succeeded, failed, cancelled, expired; dead: failed or expired."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000)] = 50,
    as_json: AsJson = False,
) -> None:
    """List calls, the newest first. `--state dead` are the dead letters."""
    with connect() as corral:
        page = corral.calls.page(endpoint=endpoint, state=state, limit=limit)
    rows = [
        (
            call.id,
            call.endpoint,
            call.function,
            render.state(call.state),
            call.attempt,
            render.age(call.created_at),
            format_duration(call.ran_s) if call.ran_s else None,
            _why(call),
        )
        for call in page.items
    ]
    columns = ("CALL", "ENDPOINT", "FUNCTION", "STATE", "TRY", "AGE", "RAN", "ERROR")
    render.show_list(page.items, columns, rows, as_json=as_json, empty="no calls")


def _why(call: CallView) -> str | None:
    if call.error is None:
        return None
    message = " ".join(str(call.error.get("message", "")).split())
    return f"{call.error.get('type')}: {message[:60]}"


@app.command("show")
def show(call: CallArgument, as_json: AsJson = False) -> None:
    """Show a call: its state, its error with the traceback, where it ran."""
    with connect() as corral:
        view = corral.calls.get(call)
        host = corral.runs.get(view.run).host if view.run else None
    if as_json:
        render.show_json(view)
        return
    render.show_pairs(
        ("call", view.id),
        ("endpoint", view.endpoint),
        ("function", view.function),
        ("state", render.state(view.state)),
        ("waits for", view.waiting),
        ("attempts", view.attempt),
        ("lost instances", view.lost or None),
        ("made", render.moment(view.created_at)),
        ("began", render.moment(view.started_at)),
        ("ended", render.moment(view.ended_at)),
        ("ran", format_duration(view.ran_s) if view.ran_s else None),
        ("instance", view.run),
        ("host", host),
        ("by", view.submitted_by),
        ("within", view.parent),
        ("key", view.key if view.key and not view.key.startswith("once:") else None),
        ("arguments", f"{view.args_bytes} bytes"),
        ("result", _result(view)),
        ("chunks", view.chunks or None),
        ("error", _why(view)),
    )
    if view.error is not None and view.error.get("traceback"):
        render.say(f"\n{str(view.error['traceback']).rstrip()}")


def _result(view: CallView) -> str | None:
    if view.forgotten:
        return "expired: arguments and result are not kept any more"
    return f"{view.result_bytes} bytes" if view.result_bytes else None


@app.command("logs")
def logs(call: CallArgument, as_json: AsJson = False) -> None:
    """Print what one call has printed, in order."""
    with connect() as corral:
        view = corral.calls.get(call)
        if view.run is None:
            return
        for line in corral.runs.iter_logs(view.run):
            if line.call != call:
                continue
            if as_json:
                render.show_json_line({"at": line.at, "stream": line.stream, "text": line.text})
            else:
                render.pass_on(line.text, err=line.stream != "stdout")


def _stopped(corral: Corral, call: CallView, told: set[str]) -> set[str]:
    """The call's endpoint if it is stopped, said once: what is queued there waits until it is started."""
    name = call.endpoint
    if name in told or not corral.endpoints.get(call.project, name).stopped:
        return set()
    render.note(f"note: {name} is stopped; `corral fn scale {name}` starts it again")
    return {name}


@app.command("retry")
def retry(
    calls: Annotated[
        list[str] | None, typer.Argument(help="Ids of calls that ended without a result.")
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="All that failed or expired, 1000 at most.")] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            "-e",
            help="With --dead: only of this endpoint.",
            autocompletion=complete.endpoints,
        ),
    ] = None,
) -> None:
    """Queue calls once more, under their own ids."""
    if dead == bool(calls):
        raise InvalidInput("name calls, or give --dead", hint="`corral calls ls --state dead` lists them.")
    with connect() as corral:
        given = calls or []
        if dead:
            found = corral.calls.page(state="dead", endpoint=endpoint, limit=1000).items
            given = [call.id for call in found if not call.forgotten]
        stopped: set[str] = set()
        for call in given:
            again = corral.calls.retry(call)
            render.say(f"{again.id}: queued")
            stopped |= _stopped(corral, again, stopped)
        if not given:
            render.say("no dead calls")


@app.command("cancel")
def cancel(calls: Annotated[list[str], typer.Argument(help="Ids of calls.")]) -> None:
    """Cancel calls; a caller that waits for one is told at once."""
    with connect() as corral:
        for call in calls:
            render.say(f"{corral.calls.cancel(call).id}: cancelled")
