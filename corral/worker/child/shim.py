"""Run one child, and let nothing that it starts outlive it.

The worker starts this file under `python -I -S` with two arguments, FD and its own pid; so it imports
nothing of Corral and only cheap parts of the standard library: its start-up is part of every run's. FD is
a socket; messages are marshalled tuples, since both ends are the same interpreter and `json` costs 8 ms:

    in    ("run", argv, cwd, env, umask, view), once; then ("term",) and ("kill",)
    out   ("started", pid) or ("error", text, errno, whether the host is at fault); then
          ("ended", wait_status, max_rss, user_s, system_s)

The command travels here and not on argv, where `ps` would show it. "ended" is sent when the direct child
ends; whatever it left behind is then killed, and the shim exits when nothing is left. When the worker is
gone, everything is killed at once.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import signal
import struct
import sys

# `typing` is not imported: it would take longer than all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

assert sys.platform != "win32"
LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LONGEST_PAUSE_MS = 500
_LENGTH = struct.Struct("!I")


def pack(message: tuple[object, ...]) -> bytes:
    body = marshal.dumps(message)  # type: ignore[arg-type]  # only ever text, numbers and lists of them
    return _LENGTH.pack(len(body)) + body


def unpack(buffer: bytearray) -> list[tuple[object, ...]]:
    """Take every whole message off the front of the buffer."""
    messages = []
    while len(buffer) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            break
        messages.append(marshal.loads(bytes(buffer[_LENGTH.size : end])))
        del buffer[:end]
    return messages


def prctl(option: int, value: int) -> bool:
    """False where the system has no such call or refuses it."""
    if not LINUX:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)


def processes() -> list[tuple[int, bytes, int, int, int]]:
    """Pid, state, parent, group and session of every process, by /proc; empty without it."""
    found = []
    try:
        names = os.listdir("/proc")
    except FileNotFoundError:
        return []
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                # The command name may hold spaces and parentheses; the last one closes it.
                state, parent, group, session = file.read(4096).rpartition(b")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        found.append((int(name), state, int(parent), int(group), int(session)))
    return found


def descendants() -> list[int]:
    """Every living process below this one, by their parent links."""
    children: dict[int, list[int]] = {}
    for pid, state, parent, _, _ in processes():
        if state != b"Z":
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    level = children.get(os.getpid(), [])
    while level:
        found += level
        level = [pid for parent in level for pid in children.get(parent, [])]
    return found


def own_children() -> list[int]:
    """Direct children, orphans adopted by this process included; far cheaper than `descendants`."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return [int(word) for word in file.read(1 << 20).split()]
    except FileNotFoundError:
        return []


def kill_group(group: int) -> None:
    # The kernel signals a group as one act: a member in the middle of a fork does not slip through.
    if group != os.getpgrp():
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return


def kill(pid: int) -> None:
    try:
        kill_group(os.getpgid(pid))
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def bind_to_parent(parent: int) -> None:
    # The shim has one thread, so the parent whose death is signalled is the shim and not a thread of it.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


def become(argv: list[str], cwd: str, env: dict[str, str], *, failed: int) -> None:
    """Turn this freshly forked process into the command; on failure say why on `failed` and end."""
    os.setsid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    doing = f"cannot enter the working directory {cwd!r}"
    try:
        os.chdir(cwd)
        doing = f"cannot execute {argv[0]!r}"
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(failed, pack(("error", f"{doing}: {error.strerror}", error.errno, False)))
    except ValueError as error:
        os.write(failed, pack(("error", f"{doing}: {error}", None, False)))
    finally:
        os._exit(127)


def surround(umask: int | None, view: Any, enter: Callable[[Any], None], *, failed: int) -> None:
    """What the host does for the command before it becomes it; on failure say so on `failed` and end."""
    done = False
    try:
        if umask is not None:
            os.umask(umask)
        if view is not None:
            enter(view)
        done = True
    except OSError as error:
        text = f"the run cannot be kept from the host's files: {error.strerror}"
        os.write(failed, pack(("error", text, error.errno, True)))
    finally:
        if not done:
            # Whatever happened, this copy of the shim must not go on as a second one.
            os._exit(127)


def read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    os.close(fd)
    return b"".join(parts)


class Shim:
    """The state of one supervised child; `channel` is the socket to the worker."""

    def __init__(self, channel: int, worker: int, enter: Callable[[Any], None]) -> None:
        self.channel = channel
        self.enter = enter
        self.worker = worker
        self.inbox = bytearray()
        self.child: int | None = None
        self.group: int | None = None
        self.asked = False
        self.killing = False
        self.worker_lost = False
        self.poller = select.poll()
        self.poller.register(channel, select.POLLIN)
        self.worker_pidfd: int | None = None
        self.wake, wake_end = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self.poller.register(self.wake, select.POLLIN)

    def send(self, message: tuple[object, ...]) -> None:
        try:
            os.write(self.channel, pack(message))
        except (BrokenPipeError, ConnectionResetError):
            self.killing = True

    def watch_worker(self) -> None:
        """Notice the worker's death even when a process that it forked still holds the socket open."""
        if not hasattr(os, "pidfd_open"):
            return
        try:
            self.worker_pidfd = os.pidfd_open(self.worker)
        except OSError:
            # Too old a kernel, or the worker is gone, which the parent's number tells apart.
            pass
        else:
            self.poller.register(self.worker_pidfd, select.POLLIN)
        if os.getppid() != self.worker:
            self.killing = True

    def start(self, argv: list[str], cwd: str, env: dict[str, str], umask: int | None, view: Any) -> None:
        self.asked = True
        shim = os.getpid()
        failed, failed_end = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            self.send(("error", f"cannot start a process: {error.strerror}", error.errno, True))
            return
        if pid == 0:
            surround(umask, view, self.enter, failed=failed_end)
            # Not before: who gets other powers is unbound again.
            bind_to_parent(shim)
            become(argv, cwd, env, failed=failed_end)
        os.close(failed_end)
        # Only the child and its own may hold the output pipes: their end of file is the end of the output.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        failure = read_all(failed)
        if failure:
            os.waitpid(pid, 0)
            self.send(unpack(bytearray(failure))[0])
            return
        self.child = self.group = pid
        self.send(("started", pid))

    def obey(self) -> None:
        try:
            part = os.read(self.channel, 65536)
        except ConnectionResetError:
            part = b""
        if not part:
            self.lose_worker()
        self.inbox += part
        for message in unpack(self.inbox):
            if message[0] == "run":
                self.start(*message[1:])  # type: ignore[arg-type]  # as the worker packed it
            elif message[0] == "term":
                self.terminate()
            elif message[0] == "kill":
                self.killing = True

    def lose_worker(self) -> None:
        if self.worker_lost:
            return
        self.worker_lost = self.killing = True
        self.poller.unregister(self.channel)
        if self.worker_pidfd is not None:
            self.poller.unregister(self.worker_pidfd)

    def terminate(self) -> None:
        if self.child is None:
            return
        try:
            os.killpg(self.child, signal.SIGTERM)
            # A stopped process would not see the first signal before the grace time is over.
            os.killpg(self.child, signal.SIGCONT)
        except (ProcessLookupError, PermissionError):
            return

    def reap(self) -> bool:
        """Collect what has ended; False when no child is left, and so, as orphans come here, nothing."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                self.child = None
                self.killing = True
                max_rss = usage.ru_maxrss * (1024 if LINUX else 1)
                self.send(("ended", status, max_rss, usage.ru_utime, usage.ru_stime))

    def kill_everything(self) -> None:
        """One round; what is forked meanwhile is adopted by this process and met in the next."""
        for pid in descendants():
            kill(pid)
        if self.child is not None:
            kill(self.child)
        # A chain of processes that fork and exit outruns the scan above, but its newest link comes here.
        for _ in range(50):
            if not self.reap():
                return
            for pid in own_children():
                kill(pid)

    def supervise(self) -> None:
        pause_ms = 1
        while self.reap():
            if self.killing:
                self.kill_everything()
                pause_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)
            for fd, _event in self.poller.poll(pause_ms if self.killing else None):
                if fd == self.channel:
                    self.obey()
                elif fd == self.wake:
                    os.read(self.wake, 4096)
                elif fd == self.worker_pidfd:
                    self.lose_worker()
        if self.group is not None and not LINUX:
            # Where orphans are not adopted, what stayed in the child's group can still be reached.
            kill_group(self.group)


def main(enter: Callable[[Any], None]) -> None:
    """`enter` gives a child its view of the host (`view.py`)."""
    channel, worker = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(channel, False)
    # A service manager that stops a whole control group signals the shim too; the worker decides, not it.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    shim = Shim(channel, worker, enter)
    shim.watch_worker()
    while not shim.asked and not shim.killing:
        shim.obey()
    shim.supervise()
