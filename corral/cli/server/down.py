"""`corral down`: stops the worker and the server of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli.display import render
from corral.cli.hosts.service.systemd import SystemdUnit
from corral.cli.server.local_services import LocalServices
from corral.cli.server.processes import Processes, Role
from corral.settings import read_settings

_ROLES: tuple[Role, ...] = ("server", "worker")


def down(
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that the worker has to finish or give back its runs.")
    ] = 60.0,
) -> None:
    """Stop the worker and the server of this machine.

    Runs that do not end in time are given back to the queue.
    """
    settings = read_settings()
    LocalServices(settings, Processes(settings.home), {}).bring_down(timeout)
    for role in _ROLES:
        unit = SystemdUnit(settings.home, role=role)
        if unit.installed and str(settings.home) in unit.path.read_text(encoding="utf-8"):
            render.note(f"systemd starts it again; `systemctl stop {unit.name}` stops it for good")
