"""The driver's process, from the other side: one request at a time, each answered within a bounded time."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import threading
import time
from typing import IO, Any

from corral.adapters.executors.ray.errors import error_of
from corral.adapters.executors.ray.models import RayCluster
from corral.ports.executor import ExecutorUnreachable

# A driver is replaced after that, so that nothing of it grows for ever.
_KEPT_S = 3600.0
_LAST_WORDS_BYTES = 2000
# Whoever waits for an answer of a driver that was killed gives the lock back at once.
_CLOSE_S = 1.0


class RayApi:
    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._driver: _DriverProcess | None = None
        self._closed = False

    def call(self, doing: str, request: dict[str, Any]) -> Any:
        if not self._lock.acquire(timeout=self._cluster.timeout_s):
            raise ExecutorUnreachable(f"Ray's driver was busy for {self._cluster.timeout_s:g} s")
        try:
            return self._ask(doing, request)
        except ExecutorUnreachable:
            # Whatever is wrong, the next one starts afresh.
            self._end()
            raise
        finally:
            self._lock.release()

    def _ask(self, doing: str, request: dict[str, Any]) -> Any:
        deadline = time.monotonic() + self._cluster.timeout_s
        reply = self._connected(deadline).ask({"do": doing, **request}, deadline)
        if "error" in reply:
            raise error_of(doing, reply)
        return reply["result"]

    def close(self) -> None:
        """Also while somebody waits for an answer: they hear that the driver has ended."""
        self._closed = True
        if (driver := self._driver) is not None:
            driver.kill()
        if self._lock.acquire(timeout=_CLOSE_S):
            try:
                self._end()
            finally:
                self._lock.release()

    def _connected(self, deadline: float) -> _DriverProcess:
        if self._closed:
            raise ExecutorUnreachable("it is closed")
        if self._driver is not None and not self._driver.is_usable():
            self._end()
        if self._driver is None:
            self._driver = _DriverProcess(self._cluster)
            place: dict[str, Any] = {"address": self._cluster.address, "node_ip": self._cluster.node_ip}
            # Not in an argument, which everybody on this machine could read.
            place |= {"environ": dict(self._cluster.environ)}
            reply = self._driver.ask({"do": "connect", **place}, deadline)
            if "error" in reply:
                raise ExecutorUnreachable(
                    f"cannot connect to Ray at {self._cluster.address}: {reply['error']}: {reply['detail']}"
                )
        return self._driver

    def _end(self) -> None:
        if self._driver is not None:
            self._driver.end()
            self._driver = None


class _DriverProcess:
    def __init__(self, cluster: RayCluster) -> None:
        self._began = time.monotonic()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `end`
        self._read = b""
        try:
            self._process = subprocess.Popen(
                cluster.driver,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise ExecutorUnreachable(f"cannot start Ray's driver {cluster.driver[0]!r}: {error}") from error

    def is_usable(self) -> bool:
        return self._process.poll() is None and time.monotonic() - self._began < _KEPT_S

    def ask(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ExecutorUnreachable(f"Ray's driver has ended: {self._last_words()}") from error
        reply: dict[str, Any] = json.loads(self._line(deadline, request["do"]))
        return reply

    def _line(self, deadline: float, doing: str) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise ExecutorUnreachable(f"Ray did not answer in time ({doing})")
            part = os.read(fd, 65536)
            if not part:
                raise ExecutorUnreachable(f"Ray's driver has ended: {self._last_words()}")
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _LAST_WORDS_BYTES))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Nothing is lost: what it began goes on in the cluster, and can be asked for again.
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            try:
                stream.close()
            except OSError:
                continue
