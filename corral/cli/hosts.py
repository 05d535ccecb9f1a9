"""List, drain and resume hosts."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli import render
from corral.cli.connect import connect
from corral.client.api import Corral
from corral.domain.capability import ENGINE_PACKAGES
from corral.domain.errors import NotFound
from corral.domain.ids import is_id
from corral.wire.admin import HostView
from corral.wire.leases import CapabilityReport

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, no_args_is_help=True, help="List, drain and resume hosts."
)

Host = Annotated[str, typer.Argument(help="Host id or name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _resolve(corral: Corral, given: str) -> str:
    if is_id(given, "h"):
        return given
    named = [host.id for host in corral.hosts.page().items if host.name == given]
    if not named:
        raise NotFound(f"no host is called {given}", hint="See `corral hosts ls`.")
    return named[0]


@app.command("ls")
def list_hosts(as_json: AsJson = False) -> None:
    """List hosts and what they have."""
    with connect() as corral:
        page = corral.hosts.page()
    if as_json:
        render.show_json(page.items)
        return
    rows = [
        (
            host.id,
            host.name,
            _standing(host),
            f"{host.busy}/{host.slots}",
            *_equipment(host),
            render.age(host.last_seen_at),
        )
        for host in page.items
    ]
    columns = ("HOST", "NAME", "STATE", "BUSY", "CORES", "MEMORY", "GPUS", "ENGINE", "SEEN")
    render.show_table(columns, rows, empty="no host is enrolled; `corral up --detach` starts a worker here")


def _standing(host: HostView) -> str:
    if not host.alive:
        return "away"
    return "draining" if host.draining else "ready"


def _equipment(host: HostView) -> tuple[str | None, str | None, str | None, str | None]:
    has = host.capability
    if has is None:
        return None, None, None, None
    gpus = None if has.gpus is None else ", ".join(gpu.name for gpu in has.gpus) or "none"
    return None if has.cores is None else str(has.cores), render.size(has.ram_bytes), gpus, _engine(has)


def _engine(has: CapabilityReport) -> str | None:
    """`torch 2.13.0` where the host can train, `none` where something of the engine is missing."""
    if has.engine is None:
        return None
    whole = all(has.engine.get(name) for name in ENGINE_PACKAGES)
    return f"torch {has.engine['torch']}" if whole else "none"


@app.command()
def drain(host: Host) -> None:
    """Let a host finish what it has and take nothing new."""
    with connect() as corral:
        view = corral.hosts.drain(_resolve(corral, host))
    typer.echo(f"{view.name} drains; {view.busy} of {render.count(view.slots, 'slot')} busy")


@app.command()
def resume(host: Host) -> None:
    """Let a drained host take runs again."""
    with connect() as corral:
        typer.echo(f"{corral.hosts.resume(_resolve(corral, host)).name} takes runs again")
