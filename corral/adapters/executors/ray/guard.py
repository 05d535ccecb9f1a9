"""Runs a worker on a node, and lets nothing of it outlive the actor that asked for it.

The actor starts this file under `python -I -S` with two arguments, a descriptor for what became of the
worker and the folder to remove at the end. Standard input takes one line of JSON, {argv, cwd, env, grace_s,
limit_s}, and then "stop" lines; its end is the end of the actor. Standard output carries what the worker
writes.

It is no child of the actor: Ray kills those without a warning when an actor ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def descendants() -> list[int]:
    """Every process below this one that lives, orphans that it adopted included."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    level = children.get(os.getpid(), [])
    while level:
        found += level
        level = [pid for parent in level for pid in children.get(parent, [])]
    return found


def send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def read_line(fd: int) -> bytes:
    line = b""
    while (byte := os.read(fd, 1)) and byte != b"\n":
        line += byte
    return line


def start(order: dict[str, Any], output: int) -> tuple[int, str]:
    """The worker's pid, and why it could not start, if so."""
    failed, failed_end = os.pipe()
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(127)
            for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            nowhere = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nowhere, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            os.chdir(order["cwd"])
            os.execvpe(order["argv"][0], order["argv"], order["env"])
        except (OSError, ValueError) as error:
            os.write(failed_end, f"cannot start {order['argv'][0]!r}: {error}".encode())
        finally:
            os._exit(127)
    os.close(failed_end)
    why = os.read(failed, 65536).decode(errors="replace")
    os.close(failed)
    return pid, why


class Guard:
    def __init__(self, order: dict[str, Any], status: int) -> None:
        self.order = order
        self.status = status
        self.why: str | None = None
        self.kill_at: float | None = None
        limit_s = order.get("limit_s")
        self.end_at = None if limit_s is None else time.monotonic() + limit_s
        self.pid = 0
        self.actor_listens = True
        self.output_lasts = True

    def run(self) -> None:
        self.output, output_end = os.pipe()
        wake, wake_end = os.pipe()
        for fd in (wake, wake_end, self.output):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.pid, failed = start(self.order, output_end)
        os.close(output_end)
        if failed:
            os.waitpid(self.pid, 0)
            self.tell({"error": failed})
            return
        self.tell({"pid": self.pid})
        self.poller = select.poll()
        for fd in (0, self.output, wake):
            self.poller.register(fd, select.POLLIN)
        ended = self.wait(wake)
        # Whatever it left behind: what it may still start is found the next time round.
        while left := descendants():
            for pid in left:
                send_signal(pid, signal.SIGKILL)
            self.reap()
            time.sleep(0.01)
        self.pump()
        self.tell({"status": ended, "why": self.why})

    def wait(self, wake: int) -> int:
        while True:
            for fd, _ in self.poller.poll(self.pause_ms()):
                if fd == wake:
                    os.read(wake, 4096)
                elif fd == self.output:
                    self.pump()
                elif os.read(0, 4096):
                    self.ask_to_end("stop")
                else:
                    # The actor is gone.
                    self.poller.unregister(0)
                    self.actor_listens = False
                    self.ask_to_end("actor")
            if (ended := self.reap()) is not None:
                return ended
            if self.end_at is not None and time.monotonic() >= self.end_at:
                self.end_at = None
                self.ask_to_end("deadline")
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self.kill_at = None
                for pid in descendants():
                    send_signal(pid, signal.SIGKILL)

    def pause_ms(self) -> float | None:
        times = [at for at in (self.end_at, self.kill_at) if at is not None]
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    def ask_to_end(self, why: str) -> None:
        if self.why is None:
            self.why = why
            self.kill_at = time.monotonic() + self.order["grace_s"]
            send_signal(self.pid, signal.SIGTERM)

    def reap(self) -> int | None:
        """The worker's status, once it has ended; adopted orphans are reaped beside."""
        found = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == self.pid:
                found = status

    def pump(self) -> None:
        """What the worker wrote goes to the actor, or nowhere: the worker must never wait for it."""
        while self.output_lasts:
            try:
                part = os.read(self.output, 65536)
            except BlockingIOError:
                return
            if not part:
                self.poller.unregister(self.output)
                self.output_lasts = False
            while part and self.actor_listens:
                try:
                    part = part[os.write(1, part) :]
                except OSError:
                    self.actor_listens = False

    def tell(self, message: dict[str, Any]) -> None:
        try:
            os.write(self.status, json.dumps(message).encode() + b"\n")
        except OSError:
            return


def main() -> None:
    status, folder = int(sys.argv[1]), sys.argv[2]
    if os.fork():
        os._exit(0)
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.set_inheritable(status, False)
    guard = None
    try:
        guard = Guard(json.loads(read_line(0)), status)
        guard.run()
    finally:
        for pid in descendants() if guard is not None else []:
            send_signal(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
