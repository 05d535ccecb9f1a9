"""Processes that outlived their supervisor: find them, kill them, collect them.

Two marks lead to them. A run's processes carry CORRAL_LEASE_ID and CORRAL_DATA_DIR in their environment,
which also finds what an earlier worker left. And once this process is a subreaper, the orphans of a shim
that was killed become its own children, even those that cleared their environment. Both need Linux; on
other systems every function here finds nothing.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from corral.worker.child import shim
from corral.worker.child.command import DATA_DIR_VARIABLE, LEASE_VARIABLE

# There they are found by psutil; see `plain_process.py`.
assert sys.platform != "win32"
KILL_LIMIT_S = 5.0
_PAUSE_S = 0.005
_ZOMBIE = b"Z"

logger = logging.getLogger(__name__)

_supervisors: set[int] = set()
_starting = threading.Lock()


def become_subreaper() -> bool:
    """Have the orphans of a lost shim come to this process. False where the system cannot do it."""
    return shim.prctl(shim.PR_SET_CHILD_SUBREAPER, 1)


def own(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a supervisor and note that it is no stray; `disown` it once it has been waited for."""
    # Under the lock, no other thread can meet the new process before its number is noted.
    with _starting:
        process = start()
        _supervisors.add(process.pid)
    return process


def disown(pid: int) -> None:
    with _starting:
        _supervisors.discard(pid)


def reap_orphans() -> list[int]:
    """Collect adopted orphans that have ended, so that no zombie stays; call it now and then.

    Never takes the exit status of a process that this one started: an orphan of a run is in another
    session, and the only processes that the worker starts in a session of their own are supervisors.
    """
    reaped = []
    with _starting:
        for pid, _, _ in _adopted():
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    reaped.append(pid)
    return reaped


def kill_orphans() -> list[int]:
    """Kill and collect every adopted orphan, with its process group; they belong to no living shim."""
    return _until_none(_kill_adopted)


def sweep(keep: Collection[str], *, data_dir: Path) -> list[int]:
    """Kill the processes of every lease of this data directory that is not in `keep`.

    Returns the pids that were killed. `data_dir` must read as it did in the environment of the runs.
    Never kills this process, its ancestors, or a process of another worker's data directory.
    """
    return _until_none(lambda: _kill_marked(data_dir, lambda lease: lease not in keep))


def kill_lease(lease_id: str, *, data_dir: Path) -> list[int]:
    """Kill every process of one lease; returns the pids that were killed."""
    return _until_none(lambda: _kill_marked(data_dir, lambda lease: lease == lease_id))


def _until_none(kill_round: Callable[[], list[int]]) -> list[int]:
    killed: dict[int, None] = {}
    deadline = time.monotonic() + KILL_LIMIT_S
    # What was forked between the look and the kill is met in the next round.
    while found := kill_round():
        killed.update(dict.fromkeys(found))
        reap_orphans()
        if time.monotonic() > deadline:
            logger.warning("processes %s still live %.0f s after SIGKILL", found, KILL_LIMIT_S)
            break
        time.sleep(_PAUSE_S)
    reap_orphans()
    return list(killed)


def _kill_adopted() -> list[int]:
    with _starting:
        living = [(pid, group) for pid, state, group in _adopted() if state != _ZOMBIE]
        for _, group in living:
            with suppress(ProcessLookupError, PermissionError):
                # The group is of the run's own session; as one act it also stops a chain of forks.
                os.killpg(group, signal.SIGKILL)
    return [pid for pid, _ in living]


def _kill_marked(data_dir: Path, wanted: Callable[[str], bool]) -> list[int]:
    found = shim.processes()
    spared = _lineage({pid: parent for pid, _, parent, _, _ in found})
    killed = []
    for pid, state, *_ in found:
        if pid in spared or state == _ZOMBIE:
            continue
        mark = _mark(pid)
        if mark is None or mark[1] != os.fsencode(data_dir) or not wanted(os.fsdecode(mark[0])):
            continue
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed


def _lineage(parents: Mapping[int, int]) -> set[int]:
    """This process and its ancestors, which carry a lease's mark when a run starts a worker itself."""
    lineage = set()
    pid: int | None = os.getpid()
    while pid is not None and pid not in lineage:
        lineage.add(pid)
        pid = parents.get(pid)
    return lineage


def _adopted() -> list[tuple[int, bytes, int]]:
    """Pid, state and group of each."""
    me = os.getpid()
    own_session = os.getsid(0)
    return [
        (pid, state, group)
        for pid, state, parent, group, session in shim.processes()
        if parent == me and session != own_session and pid not in _supervisors
    ]


def _mark(pid: int) -> tuple[bytes, bytes] | None:
    """Lease and data directory that a process was started with; None if it has none that we may read."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        # Another user's, or gone: either way not one of ours to kill.
        return None
    pairs = dict(pair.split(b"=", 1) for pair in environ.split(b"\0") if b"=" in pair)
    lease = pairs.get(os.fsencode(LEASE_VARIABLE))
    data_dir = pairs.get(os.fsencode(DATA_DIR_VARIABLE))
    return None if lease is None or data_dir is None else (lease, data_dir)
