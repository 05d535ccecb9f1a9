"""This machine as a host of a server elsewhere: enroll, start, stop, status, leave."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli.display import render
from corral.cli.hosts.enroll import enroll
from corral.cli.hosts.host_home import Home, HostHome
from corral.cli.hosts.load import standing
from corral.cli.hosts.service import service
from corral.cli.hosts.service.systemd import SystemdUnit
from corral.cli.options import AsJson, command_group
from corral.cli.server.processes import stop
from corral.client.hosts.identity import HostIdentity, remove_identity
from corral.domain.errors import Forbidden, ServerUnreachable, Unauthenticated
from corral.wire.hosts import HostView

app = command_group("Make this machine a host of a server elsewhere, and run its worker.")
app.command()(enroll)
app.add_typer(service.app, name="service")


@app.command()
def start(home: Home = None) -> None:
    """Start this host's worker, and leave it running."""
    host = HostHome.at(home)
    host.start_worker(host.identity())


@app.command("stop")
def stop_worker(
    home: Home = None,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that it has to finish or give back its runs.")
    ] = 60.0,
) -> None:
    """Stop this host's worker; runs that do not end in time are given back."""
    _stop(HostHome.at(home), timeout)


def _stop(host: HostHome, timeout: float) -> None:
    worker = host.processes.find("worker")
    host.processes.forget("worker")
    if worker is None:
        render.say("no worker is running")
        return
    stop("worker", worker, timeout)
    unit = SystemdUnit(host.home)
    if unit.installed:
        render.note(f"systemd starts it again; `systemctl stop {unit.name}` stops it for good")


@app.command()
def status(home: Home = None, as_json: AsJson = False) -> None:
    """Say who this host is, and whether the server sees it.

    Exits with 3 when the server does not answer.
    """
    host = HostHome.at(home)
    identity = host.identity()
    worker = host.processes.find("worker")
    if not as_json:
        until = render.moment(identity.expires_at)
        render.show_pairs(
            ("host", f"{identity.name} ({identity.host_id})"),
            ("server", identity.url),
            ("home", str(host.home)),
            ("worker", "not running" if worker is None else f"pid {worker.pid}"),
            ("credential", until and f"until {until}; the worker replaces it before"),
        )
    view = _own_view(host, identity)
    if as_json:
        render.show_json(view)
    else:
        render.show_pairs(("state", standing(view)), ("slots", f"{view.busy} of {view.slots} busy"))


def _own_view(host: HostHome, identity: HostIdentity) -> HostView:
    try:
        with host.connect(identity) as corral:
            return corral.own_host.get()
    except Unauthenticated as error:
        raise Unauthenticated(
            f"{identity.url} does not accept this host: it was revoked, or its credential ended",
            hint=f"`corral host leave` here, `corral tokens join {identity.name}` there, and enrol again.",
        ) from error


@app.command()
def leave(
    home: Home = None,
    force: Annotated[
        bool, typer.Option("--force", help="Forget it here, even if the server is away.")
    ] = False,
) -> None:
    """Stop the worker and give this host's identity back."""
    host = HostHome.at(home)
    identity = host.identity()
    _stop(host, 60.0)
    try:
        with host.connect(identity) as corral:
            corral.own_host.leave()
    except (Unauthenticated, Forbidden):
        render.note("the server had revoked this host already")
    except ServerUnreachable as error:
        if not force:
            raise ServerUnreachable(
                error.message,
                hint="Try again later, or `--force` and have it revoked: `corral hosts revoke`.",
            ) from error
    remove_identity(host.worker_home)
    render.say(f"{identity.name} has left {identity.url}")
