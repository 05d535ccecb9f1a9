"""This machine's server and worker together: started, watched and stopped."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import psutil

from corral.cli.display import render
from corral.cli.server.processes import Processes, Role, StartFailed, alive, stop
from corral.client.corral import Corral
from corral.client.http.discovery import discover, local_server, local_url
from corral.domain.errors import CorralError, ServerUnreachable
from corral.settings import Settings
from corral.wire.health import Health

START_TIMEOUT_S = 60.0
SERVER_STOP_S = 20.0
# A worker that is not seen by then is no error: it may be busy looking at its machine.
_SEEN_S = 8.0
_POLL_S = 0.05
_WATCH_S = 0.5
# Pauses between restarts, so that a server which dies at once is not restarted in a tight loop.
_RESTART_S = (0.0, 1.0, 5.0, 15.0)
_STEADY_S = 60.0
# How the log ends of a server that knows why it cannot start.
_OWN_ERROR = re.compile(r"^error: (?P<message>.+)\nhint: (?P<hint>.+)\Z", re.MULTILINE)


class _StopRequested(Exception):
    """A signal asked for the end."""


@dataclass
class LocalServices:
    """This machine's server and worker, as one."""

    settings: Settings
    processes: Processes
    environ: Mapping[str, str]
    started: list[Role] = field(default_factory=list)

    def running(self) -> bool:
        both: tuple[Role, ...] = ("server", "worker")
        return all(self.processes.find(role) is not None for role in both) and self._healthy()

    def bring_up(self) -> None:
        """Start what is missing: a worker that outlived its server goes on with its runs."""
        began = time.time()
        self._start_server()
        worker = self.processes.find("worker")
        if worker is None:
            worker = self._start("worker", self.environ)
            # So that the first run finds a host; but not for long.
            self._wait("worker", worker, lambda: self._worker_seen(began), timeout_s=_SEEN_S)
        else:
            # It comes back by itself, within the time between two of its tries.
            self.processes.adopt("worker", worker)
            render.note(f"the worker that was running goes on (pid {worker.pid})")

    def bring_down(self, timeout_s: float, roles: Sequence[Role] = ("worker", "server")) -> None:
        limits: dict[Role, float] = {"worker": timeout_s, "server": SERVER_STOP_S}
        found = {role: self.processes.find(role) for role in limits if role in roles}
        # First, so that an `up` in another terminal does not start them again.
        for role in found:
            self.processes.forget(role)
        for role, process in found.items():
            if process is not None:
                stop(role, process, limits[role])
        if not any(found.values()):
            render.say("nothing is running")

    def watch(self) -> None:
        """Until Ctrl-C, SIGTERM, or a `corral down` elsewhere; restarts what dies."""
        signal.signal(signal.SIGTERM, _request_stop)
        deaths: dict[Role, list[float]] = {"server": [], "worker": []}
        try:
            while True:
                time.sleep(_WATCH_S)
                for role in deaths:
                    if not self.processes.wanted(role):
                        render.say(f"the {role} was stopped from elsewhere")
                        return
                    if self.processes.find(role) is None:
                        self._restart(role, deaths[role])
        except (KeyboardInterrupt, _StopRequested):
            render.say("stopping; a second Ctrl-C does not wait for running work")
            try:
                self.bring_down(60.0)
            except KeyboardInterrupt:
                # The first try removed their notes; they are still found by what they wrote of themselves.
                self.bring_down(0.0)

    def _restart(self, role: Role, deaths: list[float]) -> None:
        now = time.monotonic()
        deaths[:] = [at for at in deaths if now - at < _STEADY_S] + [now]
        delay_s = _RESTART_S[min(len(deaths), len(_RESTART_S)) - 1]
        render.say(f"the {role} has died (its log: {self.processes.log(role)}); starting it again")
        time.sleep(delay_s)
        try:
            if role == "server":
                self._start_server()
            else:
                self._start(role, self.environ)
        except StartFailed as error:
            render.note(f"error: {error.message}")

    def _start_server(self) -> None:
        known = self.processes.find("server")
        if known is not None:
            self.processes.adopt("server", known)
            self._wait_healthy(known)
            return
        environ = {**self.environ, **_former_port(self.environ, self.settings.home)}
        # What an earlier server wrote must not be taken for the new one's address.
        self.settings.server_file.unlink(missing_ok=True)
        self._wait_healthy(self._start("server", environ))

    def _start(self, role: Role, environ: Mapping[str, str]) -> psutil.Process:
        self.started.append(role)
        return self.processes.start(role, environ)

    def _wait_healthy(self, process: psutil.Process) -> None:
        if not self._wait("server", process, self._healthy, timeout_s=START_TIMEOUT_S):
            raise self._failed("server", f"did not answer within {START_TIMEOUT_S:g} s")

    def _wait(
        self, role: Role, process: psutil.Process, ready: Callable[[], bool], *, timeout_s: float
    ) -> bool:
        """Whether it is ready in time; StartFailed if its process ends before."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not alive(process):
                raise self._failed(role, "ended while it started")
            if ready():
                return True
            time.sleep(_POLL_S)
        return False

    def _worker_seen(self, since: float) -> bool:
        try:
            own = json.loads((self.settings.worker_home / "host.json").read_text(encoding="utf-8"))["host_id"]
            address = discover(url=None, token=None, home=self.settings.home)
            with Corral(address.url, address.token, tls=address.tls) as corral:
                host = corral.hosts.get(own)
        except (CorralError, OSError, ValueError, KeyError, TypeError):
            # It will be seen later, or `corral status` says why not.
            return False
        return (host.last_seen_at or 0) >= since

    def _failed(self, role: Role, what: str) -> StartFailed:
        words = self.processes.last_words(role)
        if (own := _OWN_ERROR.search(words)) is not None:
            return StartFailed(own["message"], hint=own["hint"])
        return StartFailed(
            f"the {role} {what}; the end of its log:\n{words}",
            hint=f"See {self.processes.log(role)}; `corral down` stops what did start.",
        )

    def problem(self) -> str:
        """What the server says is wrong with it; empty if nothing is, or it does not answer."""
        health = self._health()
        return "" if health is None else health.detail

    def _healthy(self) -> bool:
        """It answers; what it cannot do for now, such as store files on a full disk, it says itself."""
        return self._health() is not None

    def _health(self) -> Health | None:
        try:
            server = local_server(self.settings.home)
            if server is None:
                return None
            with Corral(server.url, None, tls=server.tls) as corral:
                return corral.health()
        except CorralError:
            # Not yet: the caller asks again, and says so itself when it gives up.
            return None


def _former_port(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """If any port will do, take the last one: a client that follows a run finds the server again."""
    try:
        port = urlsplit(local_url(home) or "").port
    except ServerUnreachable:
        # A damaged note is about to be replaced.
        return {}
    if environ.get("CORRAL_PORT") != "0" or port is None:
        return {}
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((environ.get("CORRAL_HOST", "127.0.0.1"), port))
        except OSError:
            return {}
    return {"CORRAL_PORT": str(port)}


def _request_stop(_number: int, _frame: FrameType | None) -> None:
    raise _StopRequested
