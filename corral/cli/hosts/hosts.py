"""List, show, drain, resume, revoke and remove hosts."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.hosts.history import show_history
from corral.cli.hosts.load import busy, is_listed, load, show_gpus, standing, watch_hosts
from corral.cli.options import AsJson, command_group
from corral.domain.hosts.capability import ENGINE_PACKAGES, lacks
from corral.wire.hosts import CapabilityReport, HostView

app = command_group(__doc__)

Host = Annotated[str, typer.Argument(help="Host id or name.", autocompletion=complete.hosts)]
_POLICY = (
    ("allow", "takes only"),
    ("deny", "never takes"),
    ("projects", "projects"),
    ("secrets", "secrets of"),
    ("slots_per_gpu", "runs per GPU"),
    ("price_per_hour", "price per hour"),
)


@app.command("ls")
def list_hosts(
    everything: Annotated[
        bool,
        typer.Option("--all", "-a", help="Also revoked ones, and workers of a run that are gone."),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show how busy they are, again and again until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List hosts and what they have."""
    with connect() as corral:
        if watch and not as_json:
            watch_hosts(corral, everything=everything)
        found = corral.hosts.all()
    hosts = [host for host in found if everything or is_listed(host)]
    rows = [
        (
            host.id,
            host.name,
            standing(host),
            busy(host),
            *_equipment(host),
            render.age(host.last_seen_at),
        )
        for host in hosts
    ]
    columns = ("HOST", "NAME", "STATE", "BUSY", "CORES", "MEMORY", "GPUS", "ENGINE", "SEEN")
    empty = "no host is enrolled; `corral tokens join` lets one join"
    render.show_list(hosts, columns, rows, as_json=as_json, empty=empty)


def _equipment(host: HostView) -> tuple[render.Cell, ...]:
    has = host.effective or host.capability
    if has is None:
        return None, None, None, None
    gpus = None if has.gpus is None else ", ".join(gpu.name for gpu in has.gpus) or "none"
    return has.cores, render.size(has.ram_bytes), gpus, _engine(has)


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
    render.say(f"{view.name} drains; {view.busy} of {render.count(view.slots, 'slot')} busy")


@app.command()
def resume(host: Host) -> None:
    """Let a host that was drained or set aside take runs again."""
    with connect() as corral:
        render.say(f"{corral.hosts.resume(host).name} takes runs again")


@app.command()
def show(
    host: Host,
    history: Annotated[
        bool, typer.Option("--history", help="How busy it was: processors, memory and GPUs over time.")
    ] = False,
    hours: Annotated[
        float, typer.Option(min=0.1, max=24, help="With --history: so far back; a day is kept.")
    ] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Show one host: what it has, what of it is busy, and how long its credential lasts."""
    with connect() as corral:
        if history:
            show_history(corral, host, hours=hours, as_json=as_json)
            return
        view = corral.hosts.get(host)
    if as_json:
        render.show_json(view)
        return
    has = view.capability
    slots = view.slots if view.effective_slots is None else view.effective_slots
    aside = render.moment(view.set_aside_until)
    render.show_pairs(
        ("host", f"{view.name} ({view.id})"),
        ("state", standing(view)),
        ("slots", f"{view.busy} of {slots} busy"),
        ("seen", render.age(view.last_seen_at)),
        ("load", load(view)),
        ("revoked", render.moment(view.revoked_at)),
        ("set aside", aside and f"until {aside}: {view.set_aside_why}; `corral hosts resume` ends it"),
        ("credential", render.moment(view.credential_expires_at)),
        ("machine", None if has is None else f"{has.hostname}, {has.os} {has.arch}, Python {has.python}"),
        ("address", None if has is None else has.address),
        ("corral", None if has is None else has.corral),
        ("engine", None if has is None else _engine(has)),
        ("isolation", None if has is None else _isolation(has)),
        ("lacks", None if has is None else "; ".join(lacks(has.os)) or None),
        ("fault", None if has is None else has.fault),
        ("problem", None if has is None else has.gpu_note),
    )
    if view.sample is not None and view.sample.gpus:
        render.say()
        show_gpus(view.sample.gpus)
    _show_equipment(view)


def _show_equipment(host: HostView) -> None:
    """What the host reports, what was declared for it and what counts, side by side; then the policy."""
    has, counts = host.capability, host.effective or host.capability
    if has is None or counts is None:
        render.say("\nit has not reported what it has yet")
        return
    said = host.declared or {}
    rows = [
        ("slots", host.slots, _said(said.get("slots")), host.effective_slots),
        ("cores", has.cores, _said(said.get("cores")), counts.cores),
        ("memory", *_sizes(has.ram_bytes, said.get("ram_bytes"), counts.ram_bytes)),
        ("memory free now", *_sizes(host.ram_free_bytes, None, host.ram_free_bytes)),
        ("disk", *_sizes(has.disk_bytes, said.get("disk_bytes"), counts.disk_bytes)),
        ("GPUs", _gpus(has), _said(said.get("gpus")), _gpus(counts)),
        ("GPU memory", _vram(has), *_sizes(said.get("vram_bytes")), _vram(counts)),
        ("labels", ", ".join(has.labels), _said(said.get("labels")), ", ".join(counts.labels)),
    ]
    render.say()
    render.show_table(("", "REPORTED", "DECLARED", "COUNTS"), rows, empty="")
    policy = [(words, _said(said[key]) or "none") for key, words in _POLICY if key in said]
    if host.declared is not None:
        render.say()
        render.show_pairs(("declared by", host.declared_by or "hand"), *policy)


def _engine(has: CapabilityReport) -> str | None:
    """`torch 2.13.0` where the host can train, `none` where something of the engine is missing."""
    if has.engine is None:
        return None
    whole = all(has.engine.get(name) for name in ENGINE_PACKAGES)
    return f"torch {has.engine['torch']}" if whole else "none"


def _isolation(has: CapabilityReport) -> str | None:
    if has.isolated is None:
        return None
    if has.isolated:
        more = f"; {has.isolation_note}" if has.isolation_note else ""
        return f"each run sees only its own files of the worker's{more}"
    return f"runs share this host's user: {has.isolation_note}"


def _sizes(*values: object) -> list[str | None]:
    return [render.size(value) if isinstance(value, int) else None for value in values]


def _gpus(has: CapabilityReport) -> str:
    if has.gpus is None:
        return "unknown"
    return ", ".join(f"{gpu.index}: {gpu.name}" for gpu in has.gpus) or "none"


def _vram(has: CapabilityReport) -> str | None:
    return ", ".join(render.size(gpu.memory_bytes) or "unknown" for gpu in has.gpus or ()) or None


def _said(value: object) -> str | None:
    if value is None:
        return None
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@app.command()
def revoke(host: Host) -> None:
    """Take a host's credential away; it can do nothing from its next call on.

    Its runs go to others once their leases have run out.
    """
    with connect() as corral:
        view = corral.hosts.revoke(host)
    render.say(f"{view.name} is revoked; what it ran is given to others when its leases run out")
    render.note(f"`corral tokens join {view.name}` makes a token with which it can come back")


@app.command("rm")
def remove(
    hosts: Annotated[list[str], typer.Argument(help="Host ids or names.", autocompletion=complete.hosts)],
) -> None:
    """Remove hosts that are revoked, or were never seen; their names are free again."""
    with connect() as corral:
        for host in hosts:
            corral.hosts.remove(host)
            render.say(f"{host} is removed")
