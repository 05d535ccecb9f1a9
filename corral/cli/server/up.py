"""`corral up`: starts the server and a worker of this machine."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.display import render
from corral.cli.server.local_services import LocalServices
from corral.cli.server.processes import Processes
from corral.client.hosts.identity import read_identity
from corral.client.http.discovery import local_url
from corral.domain.errors import Conflict, DiskFull, InvalidInput
from corral.settings import process_environment, read_settings

# For a worker that was stopped before it can have begun anything.
_HASTY_S = 5.0
# For the notes and the log of what is started.
_LEAST_FREE_BYTES = 1 << 20


def up(
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Leave them running and return.")] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; CORRAL_PORT or 7373 by default, 0 picks one.")
    ] = None,
) -> None:
    """Start the server and a worker on this machine.

    Data is kept under CORRAL_HOME (~/.corral).
    """
    settings = read_settings()
    _check_home(settings.home)
    _check_own(settings.home)
    environ = process_environment() | ({} if port is None else {"CORRAL_PORT": str(port)})
    station = LocalServices(settings, Processes(settings.home), environ)
    if not station.running():
        _check_disk(settings.home)
        try:
            station.bring_up()
        except KeyboardInterrupt:
            station.bring_down(_HASTY_S, station.started)
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            station.bring_down(_HASTY_S, station.started)
            raise _full(settings.home) from error
    if not station.started:
        render.say(f"corral is already up at {local_url(settings.home)}")
        return
    render.say(f"corral is up at {local_url(settings.home)}, data in {settings.home}")
    if problem := station.problem():
        render.note(f"warning: {problem}")
    render.note("try: corral run -- python3 -c \"print('hello')\"")
    if detach:
        render.note(
            "stop it with `corral down`; nothing starts it again if it dies or the machine restarts: "
            "`corral service install` sees to both"
        )
        return
    render.note("Ctrl-C stops it")
    station.watch()


def _check_own(home: Path) -> None:
    """A server in the home of a host that joined another would have no worker, and `down` would end it."""
    found = read_identity(home / "worker")
    if found is not None and found.url is not None:
        raise Conflict(
            f"{home} is the home of a host ({found.name}) of {found.url}",
            hint="`corral host status` and `corral host start` are for it; for commands to that server set "
            "CORRAL_URL and CORRAL_TOKEN; for a server here set CORRAL_HOME to another folder.",
        )


def _check_disk(home: Path) -> None:
    """Before anything is started that could not even write down where it listens."""
    if shutil.disk_usage(home).free < _LEAST_FREE_BYTES:
        raise _full(home)


def _full(home: Path) -> DiskFull:
    free = shutil.disk_usage(home).free
    return DiskFull(
        f"the disk of {home} is full: it has {free} bytes free",
        hint="Free some space, or set CORRAL_HOME to a folder on another disk.",
    )


def _check_home(home: Path) -> None:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"data cannot be kept in {home}: {error.strerror}",
            hint="Set CORRAL_HOME to a folder that you may write to.",
        ) from None
