"""This machine as a host of a server elsewhere: enroll, start, stop, status, leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer

from corral.cli.display import render
from corral.cli.hosts.hosts import standing
from corral.cli.hosts.selftest import run_checks
from corral.cli.hosts.systemd import NAME, SYSTEM_HOME, SystemdUnit, windows_script
from corral.cli.server.processes import Processes, StartFailed, alive, stop
from corral.client.corral import Corral
from corral.client.discovery import tls_for
from corral.client.enroll.enroll import (
    HostPreferences,
    JoinableServer,
    JoinToken,
    check_free,
    parse_join_token,
)
from corral.client.enroll.identity import CA, CLIENT, HostIdentity, read_identity, remove_identity
from corral.client.http.transport import Backoff
from corral.client.http.trust import read_ca
from corral.domain.errors import (
    Conflict,
    CorralError,
    Forbidden,
    InvalidInput,
    NotFound,
    ServerUnreachable,
    Unauthenticated,
)
from corral.domain.ids import is_name
from corral.settings import Settings, process_environment, read_settings
from corral.wire.hosts.hosts import HostView

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Make this machine a host of a server elsewhere, and run its worker.",
)
service = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Start the worker with the machine.",
)
app.add_typer(service, name="service")

SEEN_S = 30.0
_POLL_S = 0.1
# These belong to whoever typed the command; the worker has an identity of its own.
_NOT_FOR_THE_WORKER = ("CORRAL_URL", "CORRAL_TOKEN", "CORRAL_CA")

Home = Annotated[
    Path | None, typer.Option(help="Where this host keeps its data; CORRAL_HOME (~/.corral) by default.")
]
SystemOrUser = Annotated[
    bool | None,
    typer.Option("--system/--user", help="For the machine or for you; for the machine if you are root."),
]


@dataclass(frozen=True)
class HostHome:
    """A host's home and its worker."""

    home: Path

    @property
    def worker_home(self) -> Path:
        return self.home / "worker"

    @property
    def processes(self) -> Processes:
        return Processes(self.home)

    def identity(self) -> HostIdentity:
        found = read_identity(self.worker_home)
        if found is None:
            raise NotFound(
                f"{self.home} is not enrolled", hint="Enrol it with `corral host enroll URL --token ...`."
            )
        if found.url is None:
            raise Conflict(
                f"{self.home} is the home of a server",
                hint="Its worker is started and stopped by `corral up`.",
            )
        return found

    def connect(self, identity: HostIdentity, backoff: Backoff | None = None) -> Corral:
        assert identity.url is not None
        ca, client = self.worker_home / CA, self.worker_home / CLIENT
        trusted = read_ca(ca) if ca.exists() else None
        tls = tls_for(identity.url, trusted, client if client.exists() else None)
        return Corral(identity.url, identity.token, tls=tls, backoff=backoff)


def _station(home: Path | None) -> HostHome:
    return HostHome((home or read_settings().home).expanduser().absolute())


@app.command()
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
    station = HostHome(_enrolment_home(settings, home, as_service=as_service).expanduser().absolute())
    wishes = HostPreferences(_name(name), slots, _labels(labels))
    joining = _read_token(token)
    check_free(station.home, joining)
    server = JoinableServer(url, joining)
    _self_test(station.home, server, force=force)
    if server.is_in_clear:
        render.note("warning: the address is plain http://, so the token travels in clear")
    identity = server.join(station.home, wishes)
    typer.echo(f"enrolled as {identity.name} ({identity.host_id}) at {identity.url}")
    if as_service:
        _install(SystemdUnit(station.home, Path(sys.executable), system=os.geteuid() == 0))
    elif foreground:
        _exec_worker(station)
    elif start:
        _start(station, identity)
    else:
        render.note("start it with `corral host start`")


def _enrolment_home(settings: Settings, home: Path | None, *, as_service: bool) -> Path:
    if home is None and as_service and os.geteuid() == 0 and "CORRAL_HOME" not in process_environment():
        return SYSTEM_HOME
    return home or settings.home


def _read_token(given: str) -> JoinToken:
    return parse_join_token(sys.stdin.readline() if given == "-" else given)


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
            typer.echo(f"ok      {check.what:<7} {check.detail}")
            continue
        typer.echo(f"failed  {check.what:<7} {check.detail}")
        if check.needed or not force:
            raise check.error


@app.command()
def start(home: Home = None) -> None:
    """Start this host's worker, and leave it running."""
    station = _station(home)
    _start(station, station.identity())


def _start(station: HostHome, identity: HostIdentity) -> None:
    running = station.processes.find("worker")
    if running is not None:
        typer.echo(f"the worker of {identity.name} runs already (pid {running.pid})")
        return
    began = time.time()
    worker = station.processes.start("worker", _worker_environment(station))
    seen = _wait_seen(station, identity, worker, began)
    word = "is here" if seen else "is started; the server has not heard of it yet"
    typer.echo(f"{identity.name} {word} (pid {worker.pid}, log in {station.processes.log('worker')})")


def _worker_environment(station: HostHome) -> Mapping[str, str]:
    kept = {key: value for key, value in process_environment().items() if key not in _NOT_FOR_THE_WORKER}
    return {**kept, "CORRAL_HOME": str(station.home)}


def _wait_seen(station: HostHome, identity: HostIdentity, worker: psutil.Process, began: float) -> bool:
    deadline = time.monotonic() + SEEN_S
    before = _last_seen(station, identity)
    while time.monotonic() < deadline:
        if not alive(worker):
            raise StartFailed(
                f"the worker ended while it started:\n{station.processes.last_words('worker')}",
                hint=f"See {station.processes.log('worker')}.",
            )
        seen = _last_seen(station, identity)
        if seen is not None and (seen != before or seen >= began):
            return True
        time.sleep(_POLL_S)
    return False


def _last_seen(station: HostHome, identity: HostIdentity) -> float | None:
    try:
        with station.connect(identity, Backoff(tries=1)) as corral:
            return corral.own_host.get().last_seen_at
    except CorralError:
        # The worker is patient with a server that is away; so is this.
        return None


def _exec_worker(station: HostHome) -> None:
    """In place of this process, so that Ctrl-C and its exit code are the worker's own."""
    sys.stdout.flush()
    argv = [sys.executable, "-P", "-m", "corral.worker"]
    if os.name == "nt":
        raise typer.Exit(subprocess.call(argv, env=dict(_worker_environment(station))))
    os.execve(sys.executable, argv, dict(_worker_environment(station)))


@app.command("stop")
def stop_worker(
    home: Home = None,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that it has to finish or give back its runs.")
    ] = 60.0,
) -> None:
    """Stop this host's worker; runs that do not end in time are given back."""
    _stop(_station(home), timeout)


def _stop(station: HostHome, timeout: float) -> None:
    worker = station.processes.find("worker")
    station.processes.forget("worker")
    if worker is None:
        typer.echo("no worker is running")
        return
    how = "stopped" if stop(worker, timeout) else f"did not end within {timeout:g} s and was killed"
    typer.echo(f"worker (pid {worker.pid}) {how}")
    if SystemdUnit(station.home, Path(sys.executable), system=os.geteuid() == 0).installed:
        render.note(f"systemd starts it again; `systemctl stop {NAME}` stops it for good")


@app.command()
def status(
    home: Home = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Say who this host is, and whether the server sees it.

    Exits with 3 when the server does not answer.
    """
    station = _station(home)
    identity = station.identity()
    worker = station.processes.find("worker")
    if not as_json:
        render.show_pairs(
            [
                ("host", f"{identity.name} ({identity.host_id})"),
                ("server", identity.url),
                ("home", str(station.home)),
                ("worker", "not running" if worker is None else f"pid {worker.pid}"),
                ("credential", _until(identity)),
            ]
        )
    view = _own_view(station, identity)
    if as_json:
        render.show_json(view)
    else:
        render.show_pairs([("state", standing(view)), ("slots", f"{view.busy} of {view.slots} busy")])


def _own_view(station: HostHome, identity: HostIdentity) -> HostView:
    try:
        with station.connect(identity) as corral:
            return corral.own_host.get()
    except Unauthenticated as error:
        raise Unauthenticated(
            f"{identity.url} does not accept this host: it was revoked, or its credential ended",
            hint=f"`corral host leave` here, `corral tokens join {identity.name}` there, and enrol again.",
        ) from error


def _until(identity: HostIdentity) -> str | None:
    if identity.expires_at is None:
        return None
    return f"until {render.moment(identity.expires_at)}, replaced before by the worker"


@app.command()
def leave(
    home: Home = None,
    force: Annotated[
        bool, typer.Option("--force", help="Forget it here, even if the server is away.")
    ] = False,
) -> None:
    """Stop the worker and give this host's identity back."""
    station = _station(home)
    identity = station.identity()
    _stop(station, 60.0)
    try:
        with station.connect(identity) as corral:
            corral.own_host.leave()
    except (Unauthenticated, Forbidden):
        render.note("the server had revoked this host already")
    except ServerUnreachable as error:
        if not force:
            raise ServerUnreachable(
                error.message,
                hint="Try again later, or `--force` and have it revoked: `corral hosts revoke`.",
            ) from error
    remove_identity(station.worker_home)
    typer.echo(f"{identity.name} has left {identity.url}")


@service.command()
def install(
    home: Home = None,
    system: SystemOrUser = None,
    root: Annotated[Path, typer.Option(help="Write the files below this folder, and start nothing.")] = Path(
        "/"
    ),
) -> None:
    """Install the worker as a systemd service, and start it."""
    unit = _unit(home, system, root)
    HostHome(unit.home).identity()
    _install(unit)


def _install(unit: SystemdUnit) -> None:
    for path in unit.install():
        typer.echo(f"wrote {path}")
    if unit.root == Path("/"):
        typer.echo(f"{NAME} is enabled and started")
        if not unit.system:
            render.note("`loginctl enable-linger` keeps it running while you are logged out")


@service.command()
def uninstall(
    home: Home = None,
    system: SystemOrUser = None,
    root: Annotated[Path, typer.Option(help="Remove the files below this folder.")] = Path("/"),
) -> None:
    """Stop the service and remove it; the host's identity stays until `corral host leave`."""
    gone = _unit(home, system, root).uninstall()
    for path in gone:
        typer.echo(f"removed {path}")
    if not gone:
        typer.echo("no service is installed")


@service.command("show")
def show_service(
    home: Home = None,
    system: SystemOrUser = None,
    windows: Annotated[
        bool, typer.Option("--windows", help="The PowerShell script for a Scheduled Task instead.")
    ] = False,
) -> None:
    """Print the unit, or the script for Windows, that would be installed."""
    typer.echo(windows_script() if windows else _unit(home, system, Path("/")).text(), nl=False)


def _unit(home: Path | None, system: bool | None, root: Path) -> SystemdUnit:
    as_system = os.geteuid() == 0 if system is None else system
    station = _station(home)
    return SystemdUnit(station.home, Path(sys.executable), system=as_system, root=root.absolute())
