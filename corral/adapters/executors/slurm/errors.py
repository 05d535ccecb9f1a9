"""What Slurm's commands say when they fail, as the errors of the port."""

from __future__ import annotations

from corral.domain.errors import CorralError
from corral.ports.executor import ExecutorUnreachable, LaunchRefused

# With these sbatch did not hear a no; all else that it says is one.
_TEMPORARY = (
    "unable to contact slurm controller",
    "connection refused",
    "socket timed out",
    "timed out",
    "zero bytes were transmitted",
    "unexpected message",
    "transport endpoint",
    "no route to host",
    "connection reset",
    "connection closed",
    "broken pipe",
    "backup controller in standby",
    "temporarily unable to accept job",
    "resource temporarily unavailable",
    "munge",
    "could not establish a configuration source",
    "protocol authentication error",
    "i/o error writing script",
    "configuration file has changed",
)
_GONE = ("invalid job id", "already completing or completed", "job has already finished")


def refused_or_unreachable(words: str) -> CorralError:
    """What sbatch's failure means for the order."""
    if _is_temporary(words):
        return unreachable(words)
    return LaunchRefused(
        f"Slurm refused the job: {plain(words)}",
        hint="Change [resources] of the run, or the executor's partition, account or flags.",
    )


def unreachable(words: str) -> ExecutorUnreachable:
    return ExecutorUnreachable(f"Slurm did not answer: {plain(words)}")


def means_gone(words: str) -> bool:
    """The job has ended, or there was none."""
    return any(phrase in words.lower() for phrase in _GONE)


def plain(words: str) -> str:
    """The lines without the names of the commands in front of them, as one."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(_without_name(line) for line in lines)) or "no words were given"


def _is_temporary(words: str) -> bool:
    return not words.strip() or any(phrase in words.lower() for phrase in _TEMPORARY)


def _without_name(line: str) -> str:
    for name in ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "sacct"):
        for start in (f"{name}: error: ", f"{name}: fatal: ", f"{name}: "):
            if line.startswith(start):
                return line.removeprefix(start)
    return line
