"""`corral status`: what runs on this machine."""

from __future__ import annotations

import psutil
import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson
from corral.cli.server.processes import Processes
from corral.settings import read_settings


def status(as_json: AsJson = False) -> None:
    """Say what runs on this machine.

    Exits with 3 when the server does not answer.
    """
    settings = read_settings()
    if not as_json:
        processes = Processes(settings.home)
        render.show_pairs(
            ("home", str(settings.home)),
            ("server", _described(processes.find("server"))),
            ("worker", _described(processes.find("worker"))),
        )
    with connect(settings) as corral:
        health = corral.health()
        if as_json:
            render.show_json(health)
            return
        hosts = corral.hosts.page().items
    said = f"{'ok' if health.ok else 'not ok'}, version {health.version} {health.detail}"
    render.show_pairs(
        ("url", corral.url),
        ("health", said.strip()),
        ("hosts", f"{sum(host.alive for host in hosts)} of {len(hosts)} here"),
        ("slots", f"{sum(host.busy for host in hosts)} of {sum(host.slots for host in hosts)} busy"),
    )
    if not health.ok:
        raise typer.Exit(1)


def _described(process: psutil.Process | None) -> str:
    if process is None:
        return "not running"
    return f"pid {process.pid}, up {render.age(process.create_time())}"
