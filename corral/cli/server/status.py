"""`corral status`: what runs on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence

import psutil
import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson
from corral.cli.server.processes import Processes, Role
from corral.settings import Settings, read_settings
from corral.wire.hosts import HostView

_ROLES: tuple[Role, ...] = ("server", "worker")


def status(as_json: AsJson = False) -> None:
    """Say what runs on this machine.

    Exits with 3 when the server does not answer, and with 1 when something that was started has died.
    """
    settings = read_settings()
    processes = Processes(settings.home)
    found = {role: processes.find(role) for role in _ROLES}
    died = [role for role in _ROLES if found[role] is None and processes.wanted(role)]
    if not as_json:
        pairs = [(role, _described(found[role], died=role in died)) for role in _ROLES]
        render.show_pairs(("home", str(settings.home)), *pairs)
    with connect(settings) as corral:
        health = corral.health()
        if as_json:
            render.show_json(health)
            return
        hosts = [host for host in corral.hosts.all() if host.revoked_at is None]
    # The server notices only after a while that a worker no longer calls; here it is known at once.
    dead = _own_host(settings) if found["worker"] is None else None
    here = [host for host in hosts if host.alive and host.id != dead]
    said = f"{'ok' if health.ok else 'not ok'}, version {health.version} {health.detail}"
    render.show_pairs(
        ("url", corral.url),
        ("health", said.strip()),
        ("hosts", f"{len(here)} of {len(hosts)} here"),
        ("slots", f"{_sum(here, 'busy')} of {_sum(here, 'slots')} busy"),
    )
    for role in died:
        render.note(
            f"the {role} has died (its log: {processes.log(role)}); `corral up --detach` starts it again"
        )
    if died or not health.ok:
        raise typer.Exit(1)


def _sum(hosts: Sequence[HostView], field: str) -> int:
    return sum(getattr(host, field) for host in hosts)


def _own_host(settings: Settings) -> str | None:
    """The host that this machine's worker is, or was."""
    try:
        said = json.loads((settings.worker_home / "host.json").read_text(encoding="utf-8"))
        return str(said["host_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _described(process: psutil.Process | None, *, died: bool) -> str:
    if process is None:
        return "has died" if died else "not running"
    return f"pid {process.pid}, up {render.age(process.create_time())}"
