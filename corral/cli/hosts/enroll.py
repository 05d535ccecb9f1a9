"""`corral host enroll`: this machine becomes a host of a server elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.display import render
from corral.cli.hosts.host_home import Home, HostHome
from corral.cli.hosts.selftest import run_checks
from corral.cli.hosts.service.service import install_unit
from corral.cli.hosts.service.systemd import SYSTEM_HOME, SystemdUnit, is_root
from corral.client.hosts.enroll import HostPreferences, JoinableServer, check_free, parse_join_token
from corral.client.http.discovery import refuse_plain_http
from corral.domain.errors import InvalidInput
from corral.domain.ids import is_name
from corral.settings import process_environment, read_settings


def enroll(
    url: Annotated[str, typer.Argument(help="The server, as https://HOST:PORT.")],
    token: Annotated[str, typer.Option(help="What `corral tokens join` printed; `-` reads it from stdin.")],
    name: Annotated[
        str | None, typer.Option(help="What the host is called; the machine's name by default.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Runs at once; one per core or GPU by default.")
    ] = None,
    labels: Annotated[str, typer.Option(help="Its labels, with commas between.")] = "",
    home: Home = None,
    as_service: Annotated[
        bool, typer.Option("--service", help="Start it with the machine (systemd).")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run the worker here until Ctrl-C.")
    ] = False,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start the worker.")] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Go on with too little disk or a wrong clock.")
    ] = False,
) -> None:
    """Make this machine a host of a server.

    Tests first that it can be one. Then a join token, which is good once, becomes a credential of its own.
    """
    settings = read_settings()
    if home is None and as_service and is_root() and "CORRAL_HOME" not in process_environment():
        home = SYSTEM_HOME
    host = HostHome.at(home or settings.home)
    preferences = HostPreferences(_name(name), slots, _labels(labels))
    joining = parse_join_token(sys.stdin.readline() if token == "-" else token)
    check_free(host.home, joining)
    if settings.plain_http == "refuse":
        refuse_plain_http(url)
    server = JoinableServer(url, joining)
    _self_test(host.home, server, force=force)
    if server.is_in_clear:
        render.note("warning: the address is plain http://, so the token travels in clear")
    identity = server.join(host.home, preferences)
    render.say(f"enrolled as {identity.name} ({identity.host_id}) at {identity.url}")
    if as_service:
        install_unit(SystemdUnit(host.home))
    elif foreground:
        host.exec_worker()
    elif start:
        host.start_worker(identity)
    else:
        render.note("start it with `corral host start`")


def _name(name: str | None) -> str | None:
    if name is not None and not is_name(name):
        raise InvalidInput(
            f"{name!r} is not a name for a host", hint="Use letters, digits, `.`, `_` and `-`; at most 64."
        )
    return name


def _labels(text: str) -> tuple[str, ...]:
    labels = tuple(label.strip() for label in text.split(",") if label.strip())
    if bad := [label for label in labels if not is_name(label)]:
        raise InvalidInput(
            f"--labels holds {', '.join(map(repr, bad))}, which are not names",
            hint="Use letters, digits, `.`, `_` and `-`, with commas between.",
        )
    return labels


def _self_test(home: Path, server: JoinableServer, *, force: bool) -> None:
    for check in run_checks(home, server):
        if check.error is None:
            render.say(f"ok      {check.what:<7} {check.detail}")
            continue
        render.say(f"failed  {check.what:<7} {check.detail}")
        if check.needed or not force:
            raise check.error
