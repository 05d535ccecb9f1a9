"""The actor of one rank. It lives as long as its worker, and writes down how that ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group, remove_placement_group

from corral.adapters.executors.ray.ledger import NAMESPACE, erase, read, read_many, write_once

# Of what a worker wrote, so much is kept.
OUTPUT_BYTES = 16_384
TOKENS = "CORRAL_PLACED_TOKENS"
RANK = "CORRAL_PLACED_RANK"


def actor_name(handle: str, rank: int) -> str:
    return f"{handle}/{rank}"


class RankActor:
    """`together` are the ranks of its placement group: the last of them to end gives the group back."""

    def __init__(self, handle: str, rank: int, together: list[int]) -> None:
        self._handle = handle
        self._rank = rank
        self._together = together
        self._output = bytearray()
        self._stop_asked = threading.Event()
        self._lock = threading.Lock()
        self._commands: Any = None
        threading.Thread(target=self._live, daemon=True).start()

    def stop(self) -> None:
        """Returns at once; the worker has its grace."""
        self._stop_asked.set()
        with self._lock:
            if self._commands is not None:
                self._tell_guard(b"stop\n")

    def tail(self, most_bytes: int) -> str:
        return bytes(self._output[-most_bytes:]).decode(errors="replace") if most_bytes > 0 else ""

    def _live(self) -> None:
        try:
            payload = self._claim()
            if payload is not None:
                self._write_down(self._run(payload))
        except Exception as error:  # noqa: BLE001  # whatever it is, somebody must hear of it
            self._write_down(
                {"state": "failed", "cause": "unknown", "detail": f"the actor failed: {error!r}"}
            )
        try:
            self._leave()
        finally:
            os._exit(0)

    def _claim(self) -> dict[str, Any] | None:
        """What to run; None if it has been started before, or was cancelled."""
        place = {"node": socket.gethostname(), "pid": os.getpid()}
        is_first = write_once(f"{self._handle}/started/{self._rank}", place)
        payload: dict[str, Any] | None = read(f"{self._handle}/payload/{self._rank}")
        erase(f"{self._handle}/payload/{self._rank}")
        if not is_first:
            return None
        if read(f"{self._handle}/cancelled") is not None or payload is None:
            cause = "unknown" if payload is None else "cancelled"
            self._write_down({"state": "failed", "cause": cause, "detail": "cancelled before it started"})
            return None
        return payload

    def _run(self, payload: dict[str, Any]) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(prefix="rank-", dir=shared_folder()))
        order = {
            "argv": payload["command"],
            "cwd": str(folder),
            "env": self._environ(payload, folder),
            "grace_s": payload["grace_s"],
            "limit_s": payload["limit_s"],
        }
        guard = folder / "guard.py"
        guard.write_text(payload["guard"], encoding="utf-8")
        status, status_end = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(guard), str(status_end), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(status_end,),
            start_new_session=True,
        )
        os.close(status_end)
        assert process.stdin is not None
        assert process.stdout is not None
        with self._lock:
            self._commands = process.stdin
            self._tell_guard(json.dumps(order).encode() + b"\n")
            if self._stop_asked.is_set():
                self._tell_guard(b"stop\n")
        # The one that was started here has put another one in its place.
        process.wait()
        self._keep_output(process.stdout)
        with open(status, encoding="utf-8") as told:
            messages = [json.loads(line) for line in told]
        return outcome_of(messages[-1] if messages else {})

    def _environ(self, payload: dict[str, Any], folder: Path) -> dict[str, str]:
        """The actor's own, for PATH and the GPUs that Ray gave it; nothing that opens the cluster."""
        tokens = folder / "tokens"
        tokens.mkdir(mode=0o700)
        opened = os.open(tokens / str(self._rank), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(opened, "w", encoding="utf-8") as file:
            file.write(payload["token"])
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RAY_") and name != "PYTHONBREAKPOINT"
        }
        own = {RANK: str(self._rank), TOKENS: str(tokens)}
        return {**inherited, **payload["environ"], **own}

    def _tell_guard(self, line: bytes) -> None:
        try:
            self._commands.write(line)
            self._commands.flush()
        except OSError:
            # It has ended, and with it the worker.
            return

    def _keep_output(self, stream: Any) -> None:
        """Returns when the guard has ended."""
        while part := stream.read1(65536):
            self._output += part
            if len(self._output) > 4 * OUTPUT_BYTES:
                del self._output[:-OUTPUT_BYTES]

    def _write_down(self, outcome: dict[str, Any]) -> None:
        """Tries until the cluster's head takes it in; Ray itself ends an actor whose head stays away."""
        while True:
            try:
                write_once(f"{self._handle}/output/{self._rank}", self.tail(OUTPUT_BYTES))
                write_once(f"{self._handle}/ended/{self._rank}", {"node": socket.gethostname(), **outcome})
            except Exception:  # noqa: BLE001  # of several kinds, by what was cut off
                time.sleep(1.0)
            else:
                return

    def _leave(self) -> None:
        # Before that, some of the others may not be there yet.
        is_launched = read(f"{self._handle}/launched") is not None
        if is_launched and all(self._is_over(rank) for rank in self._together if rank != self._rank):
            group = get_current_placement_group()
            if group is not None:
                remove_placement_group(group)
        # Rather than to exit: Ray would call that a crash.
        ray.kill(ray.get_actor(actor_name(self._handle, self._rank), namespace=NAMESPACE))

    def _is_over(self, rank: int) -> bool:
        # Both of two that end at the same time have written before they look: one of them sees the other.
        if read_many([f"{self._handle}/ended/{rank}"]):
            return True
        try:
            ray.get_actor(actor_name(self._handle, rank), namespace=NAMESPACE)
        except ValueError:
            return True
        return False


def shared_folder() -> Path:
    """Where placed workers of this user have their homes, which their runs do not see: as `worker/placed.py`,
    which need not be here, has it."""
    folder = Path(tempfile.gettempdir()) / f"corral-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def outcome_of(message: dict[str, Any]) -> dict[str, Any]:
    """The guard's last word, as the fields of a sighting."""
    if "error" in message:
        return {"state": "failed", "cause": "refused", "detail": message["error"]}
    if "status" not in message:
        return {
            "state": "failed",
            "cause": "unknown",
            "detail": "what watches over the worker was killed, and the worker with it",
        }
    status = message["status"]
    code = os.waitstatus_to_exitcode(status)
    ended: dict[str, Any] = {"exit_code": code} if code >= 0 else {"signal": -code}
    if message["why"] == "deadline":
        return {**ended, "state": "failed", "cause": "deadline", "detail": "its time was up"}
    if message["why"] is not None:
        return {**ended, "state": "failed", "cause": "cancelled", "detail": "it was cancelled"}
    if code == 0:
        return {**ended, "state": "succeeded", "cause": "exited"}
    if code == -signal.SIGKILL:
        words = "it was killed with SIGKILL, not by Corral; Ray does not tell by whom"
        return {**ended, "state": "failed", "cause": "unknown", "detail": words}
    words = f"it exited with code {code}" if code > 0 else f"it ended by signal {-code}"
    return {**ended, "state": "failed", "cause": "exited", "detail": words}
