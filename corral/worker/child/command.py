"""What a child is told to run, and how it ended, whatever system it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# By them the processes of a run are found again.
LEASE_VARIABLE = "CORRAL_LEASE_ID"
DATA_DIR_VARIABLE = "CORRAL_DATA_DIR"
# The number of SIGKILL, which Python on Windows does not know.
KILLED = 9
# Folders to cover; (path, whether it may be written to) of what is shown; whether the covers may be written
# to, which then is nobody else's and gone with the child. What is not named can be read, and not changed.
View = tuple[list[str], list[tuple[str, bool]], bool]


@dataclass(frozen=True)
class Command:
    """What to run. The child gets exactly this environment; argv[0] is looked up on its PATH."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)  # it holds secrets
    # None leaves it the worker's.
    umask: int | None = None
    # None shows it all that the worker sees.
    view: View | None = None


@dataclass(frozen=True)
class Exit:
    """How a child ended: `code`, `signal`, or `error` when it never ran or its supervisor was lost.

    What is not known is None. `max_rss_bytes` is that of the largest single process among the child and
    the descendants it waited for, and never below the shim's own few megabytes.
    """

    code: int | None = None
    signal: int | None = None
    error: str | None = None
    errno: int | None = None
    max_rss_bytes: int | None = None
    user_s: float | None = None
    system_s: float | None = None
    oom: bool | None = None
    # The host could not give it the surroundings that it should have; the command is not to blame.
    hosts_fault: bool = False
