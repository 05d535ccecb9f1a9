"""`corral status`: what runs on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil
import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson
from corral.cli.server.processes import Processes
from corral.client.corral import Corral
from corral.domain.errors import CorralError
from corral.settings import read_settings

_ROLES = ("server", "worker")


def status(as_json: AsJson = False) -> None:
    """Say what runs on this machine.

    Exits with 3 when the server does not answer, and with 1 when it is not well.
    """
    settings = read_settings()
    processes = Processes(settings.home)
    here: dict[str, Any] = {
        "home": str(settings.home),
        "server": _described(processes.find("server")),
        "worker": _described(processes.find("worker")),
    }
    if not as_json:
        render.show_pairs(("home", here["home"]), *((role, _words(here[role])) for role in _ROLES))
    try:
        with connect(settings) as corral:
            found = _asked(corral)
    except CorralError as error:
        if as_json:
            render.show_json({**here, "ok": False, "detail": error.message})
        raise
    if as_json:
        render.show_json({**here, **found})
    else:
        _show(found)
    if not found["ok"]:
        raise typer.Exit(1)


def _asked(corral: Corral) -> dict[str, Any]:
    health, hosts = corral.health(), corral.hosts.page().items
    return {
        "url": corral.url,
        **health.model_dump(mode="json"),
        "hosts": {"alive": sum(host.alive for host in hosts), "all": len(hosts)},
        "slots": {"busy": sum(host.busy for host in hosts), "all": sum(host.slots for host in hosts)},
    }


def _show(found: Mapping[str, Any]) -> None:
    well = f"{'ok' if found['ok'] else 'not ok'}, version {found['version']} {found['detail']}"
    render.show_pairs(
        ("url", found["url"]),
        ("health", well.strip()),
        ("hosts", "{alive} of {all} here".format(**found["hosts"])),
        ("slots", "{busy} of {all} busy".format(**found["slots"])),
    )


def _described(process: psutil.Process | None) -> dict[str, Any] | None:
    return None if process is None else {"pid": process.pid, "started_at": process.create_time()}


def _words(process: Mapping[str, Any] | None) -> str:
    if process is None:
        return "not running"
    return f"pid {process['pid']}, up {render.age(process['started_at'])}"
