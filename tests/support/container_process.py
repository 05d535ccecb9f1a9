"""What stands in for a container on this machine: a process with an environment and a session of its own.

Its output is kept, and when it ends everything that it started ends with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# What tells whoever looks for forgotten processes whose they are.
_MARK = "LEFTOVERS_MARK"
# The interpreter of the tests is what an image has as `python3`.
_PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


class ContainerProcess:
    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        output: Path,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.output = output
        self.status: int | None = None
        self.error = ""
        self._ended = ended
        kept = {name: os.environ[name] for name in (_MARK,) if name in os.environ}
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={"PATH": _PATH, **kept, **environ},
                start_new_session=True,
            )
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    def _wait(self) -> None:
        status = self._process.wait()
        self._kill_all()
        self.status = status
        self._ended()

    def _kill_all(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def exit_code(self) -> int | None:
        """As a container runtime has it: 128 and the signal's number for one that was killed."""
        return None if self.status is None else self.status if self.status >= 0 else 128 - self.status

    def terminate(self) -> None:
        """The first process is told, as in a container."""
        if self.status is None:
            self._process.terminate()

    def kill(self) -> None:
        if self.status is None:
            self._kill_all()

    def join(self) -> None:
        self._waiter.join()
