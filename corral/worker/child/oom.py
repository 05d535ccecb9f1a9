"""Whether the kernel killed for want of memory while a child ran: evidence, never a guess."""

import sys
import threading
from pathlib import Path

from corral.worker.host.cgroup import own_memory_events, read_counter

_watches: "set[OomWatch]" = set()
_lock = threading.Lock()


class OomWatch:
    """Counts kills from its creation to `verdict`; one per child."""

    def __init__(self, events: Path | None, vmstat: Path) -> None:
        self._events = events
        self._vmstat = vmstat
        self._group_before = self._group_kills()
        self._machine_before = read_counter(vmstat, "oom_kill")
        with _lock:
            self._shared = bool(_watches)
            for other in _watches:
                other._shared = True
            _watches.add(self)

    def _group_kills(self) -> int | None:
        return None if self._events is None else read_counter(self._events, "oom_kill")

    def end(self) -> None:
        with _lock:
            _watches.discard(self)

    def verdict(self, *, killed_unasked: bool) -> bool | None:
        """True if memory ran out, False if it surely did not, None if that is not known.

        `killed_unasked`: the child died of a SIGKILL that the worker did not send. When several children
        shared the control group, a kill is laid only to one that died like that.
        """
        self.end()
        before, after = self._group_before, self._group_kills()
        if before is not None and after is not None:
            if after == before:
                return False
            return True if killed_unasked or not self._shared else None
        machine_after = read_counter(self._vmstat, "oom_kill")
        if machine_after is not None and machine_after == self._machine_before:
            return False
        # Somewhere on the machine something was killed; that is no evidence about this child.
        return None


def watch() -> OomWatch | None:
    """None where the system keeps no such counters."""
    return OomWatch(own_memory_events(Path("/")), Path("/proc/vmstat")) if sys.platform == "linux" else None
