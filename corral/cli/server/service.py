"""`corral service`: starts the server and its worker with the machine, and again when they die."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.display import render
from corral.cli.hosts.service.service import SystemOrUser, install_unit
from corral.cli.hosts.service.systemd import SYSTEM_HOME, SystemdUnit
from corral.cli.options import command_group
from corral.cli.server.processes import Processes, Role
from corral.domain.errors import Conflict
from corral.settings import process_environment, read_settings

app = command_group("Start this machine's server with the machine, and again when it dies.")
_ROOT = Path("/")
Home = Annotated[
    Path | None,
    typer.Option(help="Where data is kept; CORRAL_HOME (~/.corral), or /var/lib/corral for the machine."),
]
Worker = Annotated[bool, typer.Option("--worker/--no-worker", help="Whether the machine is a host too.")]


@app.command()
def install(
    home: Home = None,
    system: SystemOrUser = None,
    worker: Worker = True,
    root: Annotated[Path, typer.Option(help="Write the files below this folder, and start nothing.")] = _ROOT,
) -> None:
    """Install the server, and a worker beside it, as systemd services, and start them."""
    units = _units(home, system, root, worker=worker)
    for unit in units:
        running = Processes(unit.home).find(unit.role)
        if unit.root == _ROOT and running is not None and not unit.installed:
            raise Conflict(
                f"the {unit.role} of {unit.home} is running already (pid {running.pid})",
                hint="Stop it first with `corral down`.",
            )
    for unit in units:
        install_unit(unit)
    render.note(f"settings such as CORRAL_HOST go into {units[0].home / 'server.env'}, a line each")


@app.command()
def uninstall(
    home: Home = None,
    system: SystemOrUser = None,
    root: Annotated[Path, typer.Option(help="Remove the files below this folder.")] = _ROOT,
) -> None:
    """Stop the services and remove them; the data stays."""
    gone = [path for unit in reversed(_units(home, system, root, worker=True)) for path in unit.uninstall()]
    for path in gone:
        render.say(f"removed {path}")
    if not gone:
        render.say("no service is installed")


@app.command()
def show(home: Home = None, system: SystemOrUser = None, worker: Worker = True) -> None:
    """Print the units that would be installed."""
    for unit in _units(home, system, _ROOT, worker=worker):
        render.say(f"# {unit.path}")
        render.say(unit.text())


def _units(home: Path | None, system: bool | None, root: Path, *, worker: bool) -> list[SystemdUnit]:
    roles: tuple[Role, ...] = ("server", "worker") if worker else ("server",)
    first = SystemdUnit(Path(_ROOT), root=root.absolute())
    first = first if system is None else replace(first, system=system)
    if home is None:
        own = "CORRAL_HOME" in process_environment() or not first.system
        home = read_settings().home if own else SYSTEM_HOME
    return [replace(first, home=home.expanduser().absolute(), role=role) for role in roles]
