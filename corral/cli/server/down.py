"""`corral down`: stops the worker and the server of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli.server.local_services import LocalServices
from corral.cli.server.processes import Processes
from corral.settings import read_settings


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
