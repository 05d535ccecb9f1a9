"""`corral host service`: starts the worker with the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.display import render
from corral.cli.hosts.host_home import Home, HostHome
from corral.cli.hosts.service.systemd import SystemdUnit, windows_script
from corral.cli.options import command_group

app = command_group("Start the worker with the machine.")
_ROOT = Path("/")

SystemOrUser = Annotated[
    bool | None,
    typer.Option("--system/--user", help="For the machine or for you; for the machine if you are root."),
]


@app.command()
def install(
    home: Home = None,
    system: SystemOrUser = None,
    root: Annotated[Path, typer.Option(help="Write the files below this folder, and start nothing.")] = _ROOT,
) -> None:
    """Install the worker as a systemd service, and start it."""
    unit = _unit(home, system, root)
    HostHome(unit.home).identity()
    install_unit(unit)


def install_unit(unit: SystemdUnit) -> None:
    for path in unit.install():
        render.say(f"wrote {path}")
    if unit.root == _ROOT:
        render.say(f"{unit.name} is enabled and started")
        if not unit.system:
            render.note("`loginctl enable-linger` keeps it running while you are logged out")


@app.command()
def uninstall(
    home: Home = None,
    system: SystemOrUser = None,
    root: Annotated[Path, typer.Option(help="Remove the files below this folder.")] = _ROOT,
) -> None:
    """Stop the service and remove it; the host's identity stays until `corral host leave`."""
    gone = _unit(home, system, root).uninstall()
    for path in gone:
        render.say(f"removed {path}")
    if not gone:
        render.say("no service is installed")


@app.command("show")
def show_service(
    home: Home = None,
    system: SystemOrUser = None,
    windows: Annotated[
        bool, typer.Option("--windows", help="The PowerShell script for a Scheduled Task instead.")
    ] = False,
) -> None:
    """Print the unit, or the script for Windows, that would be installed."""
    render.pass_on(windows_script() if windows else _unit(home, system, _ROOT).text(), ends=False)


def _unit(home: Path | None, system: bool | None, root: Path) -> SystemdUnit:
    unit = SystemdUnit(HostHome.at(home).home, root=root.absolute())
    return unit if system is None else replace(unit, system=system)
