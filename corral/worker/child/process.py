"""The worker's side of a child process: start it, signal it, learn how it ended.

Every child runs under a shim (`shim.py`), a process of its own that outlives neither the child nor the
worker; on Linux nothing that the child starts outlives it either.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from corral.worker.child import oom, shim, strays
from corral.worker.child.command import DATA_DIR_VARIABLE, LEASE_VARIABLE, Command, Exit

# Windows has none of this; see `plain_process.py`.
assert sys.platform != "win32"

_CLOSE_LIMIT_S = 10.0
# Imported rather than run as a script, since Python compiles a script anew at every start. The folder goes
# last on the path, so that no module beside the shim can stand in for one of the standard library.
_RUN_SHIM = "import sys; sys.path.append(sys.argv.pop(1)); import shim, view; shim.main(view.enter)"


class Child:
    """A started command, under a shim. Owns `stdout` and `stderr`, readable blocking fds, until `close`.

    That the command cannot be executed is told by its Exit; OSError if this process has no file descriptors
    or processes left for a shim. Methods may be called from any thread; only `close` must not race with a
    reader or with `wait`.
    """

    def __init__(self, command: Command) -> None:
        self._env = command.env
        self._lock = threading.RLock()
        self._inbox = bytearray()
        self._pid: int | None = None
        self._outcome: Exit | None = None
        self._killed = False
        self._gone = False
        self._closed = False
        # Packed first: a value that cannot be sent must fail before there is a process to leave behind.
        surroundings = (os.fspath(command.cwd), dict(command.env), command.umask, command.view)
        request = shim.pack(("run", list(command.argv), *surroundings))
        self._channel, shim_end = socket.socketpair()
        self.stdout, stdout_end = os.pipe()
        self.stderr, stderr_end = os.pipe()
        try:
            self._shim = strays.own(lambda: _start_shim(shim_end.fileno(), stdout_end, stderr_end))
        except OSError:
            self._close_fds()
            raise
        finally:
            shim_end.close()
            os.close(stdout_end)
            os.close(stderr_end)
        self._watch = oom.watch()
        self._send(request)
        self._channel.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """None until the command was executed, and for ever if it could not be."""
        with self._lock:
            self._listen()
            return self._pid

    @property
    def supervisor_pid(self) -> int:
        return self._shim.pid

    def terminate(self) -> None:
        """SIGTERM to the child's process group; nothing if it has ended."""
        self._send(shim.pack(("term",)))

    def kill(self) -> None:
        """SIGKILL to the child and all its descendants; returns before they are gone."""
        self._killed = True
        self._send(shim.pack(("kill",)))

    def outcome(self) -> Exit | None:
        """How the child itself ended, perhaps while what it left behind is still being killed."""
        with self._lock:
            self._listen()
            return self._outcome

    def poll(self) -> Exit | None:
        """The outcome, once nothing of the child is left; None before."""
        with self._lock:
            self._listen()
            return self._outcome if self._gone else None

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """`poll`, after at most `timeout_s`; None means that it has not ended by then."""
        if self._closed:
            return self.poll()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        news = select.poll()
        news.register(self._channel, select.POLLIN)
        while (ended := self.poll()) is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            # Rounded up, or the last millisecond would be spent spinning.
            news.poll(None if left_s is None else int(left_s * 1000) + 1)
        return ended

    def close(self) -> None:
        """Kill what is left, wait for it, and close the pipes. May be called twice."""
        if self._closed:
            return
        self.kill()
        if self.wait(_CLOSE_LIMIT_S) is None:
            # A stopped shim obeys nothing else; what it guarded is then killed from here.
            self._shim.kill()
            self.wait(_CLOSE_LIMIT_S)
        with self._lock:
            self._closed = True
            self._close_fds()

    def _close_fds(self) -> None:
        self._channel.close()
        os.close(self.stdout)
        os.close(self.stderr)

    def _send(self, message: bytes) -> None:
        # A shim that is gone is noticed by the next poll; one that does not read is ended by close.
        with self._lock, suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            if not self._closed:
                self._channel.sendall(message)

    def _listen(self) -> None:
        """Take in what the shim has said, and its end."""
        while not self._gone and not self._closed:
            try:
                part = self._channel.recv(65536)
            except BlockingIOError:
                return
            except ConnectionResetError:
                part = b""
            if not part:
                self._finish()
                return
            self._inbox += part
            for message in shim.unpack(self._inbox):
                self._take(message)

    def _take(self, message: tuple[object, ...]) -> None:
        match message:
            case ("started", int(pid)):
                self._pid = pid
            case ("error", str(text), int() | None as errno, bool(hosts)):
                self._outcome = Exit(error=text, errno=errno, hosts_fault=hosts)
            case ("ended", int(status), int(max_rss), float(user_s), float(system_s)):
                code = os.waitstatus_to_exitcode(status)
                self._outcome = Exit(
                    code=code if code >= 0 else None,
                    signal=-code if code < 0 else None,
                    max_rss_bytes=max_rss,
                    user_s=user_s,
                    system_s=system_s,
                )
            case _:
                raise AssertionError(f"unknown message from the shim: {message!r}")

    def _finish(self) -> None:
        status = self._shim.wait()
        strays.disown(self._shim.pid)
        if status != 0:
            self._kill_left_over()
        if self._outcome is None:
            self._outcome = self._without_status(status)
        elif self._watch is not None and self._outcome.error is None:
            unasked = self._outcome.signal == signal.SIGKILL and not self._killed
            self._outcome = replace(self._outcome, oom=self._watch.verdict(killed_unasked=unasked))
        if self._watch is not None:
            self._watch.end()
        self._gone = True

    def _without_status(self, shim_status: int) -> Exit:
        if shim_status == 0:
            return Exit(error="it was killed before it was executed", signal=int(signal.SIGKILL))
        how = f"signal {-shim_status}" if shim_status < 0 else f"exit code {shim_status}"
        return Exit(
            error=f"its supervisor (pid {self._shim.pid}) was lost: {how}; the child was killed",
            signal=int(signal.SIGKILL),
        )

    def _kill_left_over(self) -> None:
        strays.kill_orphans()
        lease = self._env.get(LEASE_VARIABLE)
        data_dir = self._env.get(DATA_DIR_VARIABLE)
        if lease is not None and data_dir is not None:
            strays.kill_lease(lease, data_dir=Path(data_dir))
        if sys.platform != "linux" and self._pid is not None:
            # Nothing is adopted there, nor killed with its parent, but the group is still known.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)


def _start_shim(channel: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    here = os.path.dirname(shim.__file__)
    encoding = ["-X", "utf8"] if sys.flags.utf8_mode else []
    return subprocess.Popen(
        [sys.executable, "-I", "-S", *encoding, "-c", _RUN_SHIM, here, str(channel), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=(channel,),
        # Its own session keeps a Ctrl-C at the worker's terminal away, and marks what it leaves as a stray.
        start_new_session=True,
    )
