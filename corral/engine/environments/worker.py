"""One process of an environment: started, loaded, asked, watched, and killed with all its descendants."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from corral.engine.environments.child import LONGEST
from corral.engine.environments.protocol import (
    EnvironmentCall,
    EnvironmentDescription,
    EnvironmentProblem,
    UnstableRows,
    plain,
)

# An environment that awaits keeps its own deadlines; it is killed if it cannot even do that.
GRACE_S = 5.0
_TRIES = 3
_ROOT = str(Path(__file__).parents[3])
# Last on the path: where this package is installed, so is all that belongs before the standard library.
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]);"
    "from corral.engine.environments.child import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
_KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("VIRTUAL_ENV", "PYTHONPATH", "OMP_NUM_THREADS"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HF_HUB_OFFLINE", "HF_HOME"),
        # By the last two a worker finds what a run has left behind.
        *("CORRAL_RUN_ID", "CORRAL_ATTEMPT", "CORRAL_INPUT_DIR", "CORRAL_LEASE_ID", "CORRAL_DATA_DIR"),
    }
)


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What each process is started with."""

    source: str
    params: Mapping[str, object]
    environ: Mapping[str, str]
    load_s: float


@dataclass(frozen=True, slots=True)
class UnansweredCall:
    """A call that was not answered yet. A suspect was in a process that died, with others."""

    key: int
    call: EnvironmentCall
    suspect: bool = False


class WorkerPool(Protocol):
    @property
    def at_once(self) -> int: ...
    @property
    def in_order(self) -> bool: ...
    def answered(
        self, worker: EnvironmentWorker, pending: UnansweredCall, answer: Mapping[str, Any]
    ) -> None: ...
    def lost(
        self, worker: EnvironmentWorker, in_flight: list[UnansweredCall], answer: Mapping[str, Any]
    ) -> None: ...
    def reloaded(self, worker: EnvironmentWorker, description: EnvironmentDescription) -> None: ...
    def gave_up(self, problem: EnvironmentProblem) -> None: ...
    def pump(self) -> None: ...


@dataclass(eq=False)
class EnvironmentWorker:
    """A process and the calls that it has. It is replaced in place: the worker stays, the process changes."""

    setup: WorkerSetup
    pool: WorkerPool
    alive: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _calls: int = -1
    _answers: asyncio.StreamReader | None = None
    _transport: asyncio.ReadTransport | None = None
    _in_flight: dict[int, UnansweredCall] = field(default_factory=dict)
    _timers: dict[int, asyncio.TimerHandle] = field(default_factory=dict)
    _late: str | None = None
    _deadline_s: float = 0.0
    _since: float = 0.0
    _outgoing: bytearray = field(default_factory=bytearray)

    # -- what the pool asks ---------------------------------------------------------------------------

    @property
    def load_now(self) -> int:
        return len(self._in_flight)

    @property
    def room(self) -> bool:
        if not self.alive or len(self._in_flight) >= self.pool.at_once:
            return False
        return not (self._in_flight and next(iter(self._in_flight.values())).suspect)

    @property
    def busy_s(self) -> float:
        """For how long it has answered nothing although it has calls."""
        return time.monotonic() - self._since if self._in_flight else 0.0

    def send(self, pending: UnansweredCall, deadline_s: float) -> None:
        if not self._in_flight:
            self._since = time.monotonic()
        self._in_flight[pending.key] = pending
        self._deadline_s = deadline_s
        if not self.pool.in_order or len(self._in_flight) == 1:
            self._arm(pending.key)
        self._write({"id": pending.key, "deadline_s": deadline_s, **plain(pending.call)})

    def take_back(self) -> list[UnansweredCall]:
        """Take away the calls behind the one that it works on. Late answers to them are ignored."""
        behind = list(self._in_flight.values())[1:]
        for pending in behind:
            del self._in_flight[pending.key]
        return behind

    # -- its life -------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Load, serve, and start again, until it is cancelled or cannot be loaded any more."""
        tries = 0
        while tries < _TRIES:
            try:
                self.pool.reloaded(self, await self.load())
                tries = 0
                await self.serve_once()
            except EnvironmentProblem as problem:
                tries += 1
                if tries == _TRIES or isinstance(problem, UnstableRows):
                    self.pool.gave_up(problem)
                    return

    async def serve(self) -> None:
        """The same, for a worker that is loaded."""
        await self.serve_once()
        await self.live()

    async def load(self) -> EnvironmentDescription:
        await self._start()
        self._write({"source": self.setup.source, "params": dict(self.setup.params)})
        try:
            answer = await self._loaded()
        except EnvironmentProblem:
            self.kill()
            raise
        self.alive = True
        return EnvironmentDescription(**answer["value"])

    async def _loaded(self) -> dict[str, Any]:
        try:
            answer = await asyncio.wait_for(self._next(), self.setup.load_s)
        except TimeoutError:
            said = f"load_environment() did not return within {self.setup.load_s:g} s"
            raise EnvironmentProblem(f"{self.setup.source}: {said}") from None
        if answer is None:
            raise EnvironmentProblem(
                f"{self.setup.source}: the process {_ending(self._status())} while loading"
            )
        if "problem" in answer:
            raise EnvironmentProblem(answer["problem"], answer.get("hint", ""))
        return answer

    async def serve_once(self) -> None:
        """Take answers until the process ends; then tell the pool what it had."""
        self.pool.pump()
        while (answer := await self._next()) is not None:
            pending = self._in_flight.pop(answer["id"], None)
            if pending is None:
                continue
            self._timers.pop(pending.key).cancel()
            self._since = time.monotonic()
            if self.pool.in_order and self._in_flight:
                self._arm(next(iter(self._in_flight)))
            self.pool.answered(self, pending, answer)
            self.pool.pump()
        crashed = {"error": f"the environment's process {_ending(self._status())}", "kind": "crashed"}
        answer = crashed if self._late is None else {"error": self._late, "kind": "deadline"}
        self._late = None
        self.kill()
        in_flight = list(self._in_flight.values())
        self._in_flight.clear()
        self.pool.lost(self, in_flight, answer)

    def _status(self) -> int | None:
        """How a process that closed its pipe has ended; None if it goes on."""
        with suppress(subprocess.TimeoutExpired):
            return None if self._process is None else self._process.wait(0.2)
        return None

    def kill(self) -> None:
        """End the process and all that it started."""
        self.alive = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._transport is not None:
            self._transport.close()
        asyncio.get_running_loop().remove_writer(self._calls)
        os.close(self._calls)
        self._process = None

    # -- pipes ----------------------------------------------------------------------------------------

    async def _start(self) -> None:
        answers = self._spawn()
        self._outgoing.clear()
        self._answers = asyncio.StreamReader(limit=2 * LONGEST)
        protocol = asyncio.StreamReaderProtocol(self._answers)
        pipe = os.fdopen(answers, "rb", buffering=0)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)

    def _spawn(self) -> int:
        """Start the process; the descriptor that its answers come from."""
        calls_read, self._calls = os.pipe()
        answers_read, answers_write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, _ROOT, str(calls_read), str(answers_write)],
                stdin=subprocess.DEVNULL,
                pass_fds=(calls_read, answers_write),
                env=environment_of(os.environ, self.setup.environ),
                # Its own group, so that it can be killed with what it starts; its own session would hide it.
                process_group=0,
            )
        finally:
            os.close(calls_read)
            os.close(answers_write)
        os.set_blocking(self._calls, False)
        return answers_read

    async def _next(self) -> dict[str, Any] | None:
        """The next answer; None at the end, which a broken line is too."""
        assert self._answers is not None
        try:
            line = await self._answers.readline()
            answer = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            return None
        return answer if isinstance(answer, dict) and "id" in answer else None

    def _write(self, message: Mapping[str, Any]) -> None:
        self._outgoing += json.dumps(message).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        """Write what the pipe takes, the rest later. A closed pipe shows as the end of answers."""
        loop = asyncio.get_running_loop()
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._calls, memoryview(self._outgoing)[: 1 << 16])]
        except BlockingIOError:
            loop.add_writer(self._calls, self._flush)
            return
        except BrokenPipeError:
            self._outgoing.clear()
        loop.remove_writer(self._calls)

    def _arm(self, key: int) -> None:
        """Start the clock of a call that the process now works on."""
        limit = self._deadline_s + (0.0 if self.pool.in_order else GRACE_S)
        self._timers[key] = asyncio.get_running_loop().call_later(limit, self._overdue)

    def _overdue(self) -> None:
        """It did not answer in time: kill it, which ends its answers."""
        self._late = f"took longer than {self._deadline_s:g} s"
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def environment_of(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """What the user's code sees: nothing of the engine's secrets, all of what was meant for it."""
    kept = {name: value for name, value in own.items() if name.upper() in _KEPT or name.startswith("LC_")}
    # Sets in the same order in each process; nothing written beside the user's files.
    own_ways = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    return {**kept, **own_ways, **given}


def _ending(status: int | None) -> str:
    if status is None:
        return "closed its pipe"
    if status < 0:
        return f"was ended by signal {signal.Signals(-status).name}"
    return f"exited with status {status}"
