"""`corral status`: what runs here, and what the server says of itself."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import psutil
import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.hosts.load import is_listed
from corral.cli.options import AsJson
from corral.cli.server.processes import Processes, Role
from corral.client.corral import Corral
from corral.domain.errors import CorralError
from corral.settings import Settings, read_settings

_ROLES: tuple[Role, ...] = ("server", "worker")


def status(as_json: AsJson = False) -> None:
    """Say what runs on this machine.

    Exits with 3 when the server does not answer, and with 1 when it is not well or something that was started
    has died.
    """
    settings = read_settings()
    processes = Processes(settings.home)
    running = {role: processes.find(role) for role in _ROLES}
    died = [role for role in _ROLES if running[role] is None and processes.wanted(role)]
    here: dict[str, Any] = {"home": str(settings.home), "died": died}
    here |= {role: _described(running[role]) for role in _ROLES}
    if not as_json:
        pairs = [(role, _words(running[role], died=role in died)) for role in _ROLES]
        render.show_pairs(("home", str(settings.home)), *pairs)
    try:
        with connect(settings) as corral:
            found = _asked(corral, _own_host(settings) if running["worker"] is None else None)
    except CorralError as error:
        if as_json:
            render.show_json({**here, "ok": False, "detail": error.message})
        raise
    if as_json:
        render.show_json({**here, **found})
    else:
        _show(found)
    for role in died:
        render.note(_has_died(processes, role))
    if died or not found["ok"]:
        raise typer.Exit(1)


def _has_died(processes: Processes, role: Role) -> str:
    return f"the {role} has died (its log: {processes.log(role)}); `corral up --detach` starts it again"


def told_of_dead_worker(settings: Settings, hosts: Collection[str]) -> str | None:
    """What to say of this machine's worker, if it has died and is one of these hosts' (their ids)."""
    processes = Processes(settings.home)
    if processes.find("worker") is not None or not processes.wanted("worker"):
        return None
    return _has_died(processes, "worker") if _own_host(settings) in hosts else None


def _asked(corral: Corral, dead: str | None) -> dict[str, Any]:
    """`dead` is a host whose worker is known to be gone, before the server has noticed."""
    health = corral.health()
    hosts = [host for host in corral.hosts.all() if is_listed(host)]
    alive = [host for host in hosts if host.alive and host.id != dead]
    return {
        "url": corral.url,
        **health.model_dump(mode="json"),
        "hosts": {"alive": len(alive), "all": len(hosts)},
        "slots": {"busy": sum(host.busy for host in alive), "all": sum(host.slots for host in alive)},
    }


def _show(found: Mapping[str, Any]) -> None:
    well = f"{'ok' if found['ok'] else 'not ok'}, version {found['version']} {found['detail']}"
    render.show_pairs(
        ("url", found["url"]),
        ("health", well.strip()),
        ("hosts", "{alive} of {all} here".format(**found["hosts"])),
        ("slots", "{busy} of {all} busy".format(**found["slots"])),
    )


def _own_host(settings: Settings) -> str | None:
    """The host that this machine's worker is, or was."""
    try:
        said = json.loads((settings.worker_home / "host.json").read_text(encoding="utf-8"))
        return str(said["host_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _described(process: psutil.Process | None) -> dict[str, Any] | None:
    return None if process is None else {"pid": process.pid, "started_at": process.create_time()}


def _words(process: psutil.Process | None, *, died: bool) -> str:
    if process is None:
        return "has died" if died else "not running"
    return f"pid {process.pid}, up {render.age(process.create_time())}"
