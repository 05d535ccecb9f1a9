"""List, show, drain, resume and revoke hosts."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import capability, render
from corral.cli.options import AsJson, command_group
from corral.wire.hosts import HostView

app = command_group(__doc__)

Host = Annotated[str, typer.Argument(help="Host id or name.", autocompletion=complete.hosts)]


@app.command("ls")
def list_hosts(as_json: AsJson = False) -> None:
    """List hosts and what they have."""
    with connect() as corral:
        hosts = corral.hosts.all()
    rows = [
        (
            host.id,
            host.name,
            standing(host),
            f"{host.busy}/{host.slots if host.effective_slots is None else host.effective_slots}",
            *_equipment(host),
            render.age(host.last_seen_at),
        )
        for host in hosts
    ]
    columns = ("HOST", "NAME", "STATE", "BUSY", "CORES", "MEMORY", "GPUS", "ENGINE", "SEEN")
    empty = "no host is enrolled; `corral tokens join` lets one join"
    render.show_list(hosts, columns, rows, as_json=as_json, empty=empty)


def standing(host: HostView) -> str:
    if host.revoked_at is not None:
        return "revoked"
    if host.last_seen_at is None:
        return "never seen"
    if not host.alive:
        return "away"
    if host.draining:
        return "draining"
    return "ready" if host.set_aside_until is None else "set aside"


def _equipment(host: HostView) -> tuple[render.Cell, ...]:
    has = host.effective or host.capability
    if has is None:
        return None, None, None, None
    gpus = None if has.gpus is None else ", ".join(gpu.name for gpu in has.gpus) or "none"
    return has.cores, render.size(has.ram_bytes), gpus, capability.engine(has)


@app.command()
def drain(
    host: Host,
    now: Annotated[
        bool, typer.Option("--now", help="Ask preemptible runs to write a checkpoint and go elsewhere.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Ask all its runs, preemptible or not.")] = False,
) -> None:
    """Let a host take nothing new, and finish what it has unless asked otherwise."""
    with connect() as corral:
        view = corral.hosts.drain(host, stop="all" if everything else "preemptible" if now else "none")
    typer.echo(f"{view.name} drains; {view.busy} of {render.count(view.slots, 'slot')} busy")


@app.command()
def resume(host: Host) -> None:
    """Let a host that was drained or set aside take runs again."""
    with connect() as corral:
        typer.echo(f"{corral.hosts.resume(host).name} takes runs again")


@app.command()
def show(host: Host, as_json: AsJson = False) -> None:
    """Show one host: what it has, what of it is busy, and how long its credential lasts."""
    with connect() as corral:
        view = corral.hosts.get(host)
    if as_json:
        render.show_json(view)
        return
    has = view.capability
    slots = view.slots if view.effective_slots is None else view.effective_slots
    aside = None if view.set_aside_until is None else render.moment(view.set_aside_until)
    render.show_pairs(
        [
            ("host", f"{view.name} ({view.id})"),
            ("state", standing(view)),
            ("slots", f"{view.busy} of {slots} busy"),
            ("seen", render.age(view.last_seen_at)),
            ("revoked", render.moment(view.revoked_at)),
            ("set aside", aside and f"until {aside}: {view.set_aside_why}; `corral hosts resume` ends it"),
            ("credential", render.moment(view.credential_expires_at)),
            ("machine", None if has is None else f"{has.hostname}, {has.os} {has.arch}, Python {has.python}"),
            ("corral", None if has is None else has.corral),
            ("engine", None if has is None else capability.engine(has)),
            ("problem", None if has is None else has.gpu_note),
        ]
    )
    capability.show(view)


@app.command()
def revoke(host: Host) -> None:
    """Take a host's credential away; it can do nothing from its next call on.

    Its runs go to others once their leases have run out.
    """
    with connect() as corral:
        view = corral.hosts.revoke(host)
    typer.echo(f"{view.name} is revoked; what it ran is given to others when its leases run out")
    render.note(f"`corral tokens join {view.name}` makes a token with which it can come back")
