"""What a project may use, and what it has used."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

_DAY_S = 86_400


class Quota(NamedTuple):
    """None is without limit. `gpu_hours` is for a calendar month; `weight` is the share of the fleet."""

    project: str
    max_running: int | None = None
    max_gpus: int | None = None
    max_queued: int | None = None
    max_bytes: int | None = None
    gpu_hours: int | None = None
    weight: float = 1.0
    updated_at: float = 0.0
    updated_by: str = ""

    @property
    def limits_running(self) -> bool:
        """Whether a claim has anything to count."""
        return (self.max_running, self.max_gpus, self.gpu_hours) != (None, None, None)


class UsageHours(NamedTuple):
    """What a project's closed leases used in a month (`2026-11`, UTC)."""

    project: str
    month: str
    slot_s: float
    gpu_s: float


class QuotaUse(NamedTuple):
    """What a project's live leases hold, and how long they have held it."""

    project: str
    running: int = 0
    gpus: int = 0
    slot_s: float = 0.0
    gpu_s: float = 0.0


def month_of(at: float) -> str:
    return _month(at // _DAY_S)[0]


def month_start(at: float) -> float:
    """When the month that this moment is in began."""
    return _month(at // _DAY_S)[1]


@lru_cache(maxsize=64)
def _month(day: float) -> tuple[str, float]:
    """Of a day since the epoch, the month and when it began: asked for at the end of every lease."""
    moment = datetime.fromtimestamp(day * _DAY_S, UTC)
    begun = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return begun.strftime("%Y-%m"), begun.timestamp()


def by_month(until: float, seconds: float) -> Iterator[tuple[str, float]]:
    """The seconds up to a moment by the months that they lie in, the newest first.

    What lies before 1970 is in no month: a worker said so, and there is no end to what it can say.
    """
    while seconds > 0 and until > 0:
        # The very first moment of a month ends the one before.
        begun = month_start(until - 1e-6)
        within = min(seconds, until - begun)
        yield month_of(begun), within
        seconds -= within
        until = begun


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def over_quota(
    quota: Quota,
    use: QuotaUse,
    *,
    gpus: int,
    ranks: int = 1,
    used_gpu_s: float = 0.0,
    keep_s: float = 0.0,
) -> str | None:
    """Why the project may not start a run with that many ranks and, in all, GPUs now; None if it may.

    `used_gpu_s` is what it used this month; `keep_s` is how long a GPU may be held after a stop is asked for.
    """
    if quota.max_running is not None and use.running + ranks > quota.max_running:
        more = f", and the run needs {ranks} places" if ranks > 1 else ""
        running = f"{counted(use.running, 'run')} running, of {quota.max_running} (max_running)"
        return f"project {quota.project} has {running}{more}"
    if gpus and quota.max_gpus is not None and use.gpus + gpus > quota.max_gpus:
        return (
            f"project {quota.project} holds {counted(use.gpus, 'GPU')}, of {quota.max_gpus} (max_gpus),"
            f" and the run needs {gpus}"
        )
    if not gpus or quota.gpu_hours is None:
        return None
    if used_gpu_s + (use.gpus + gpus) * keep_s < quota.gpu_hours * 3600:
        return None
    said = (
        f"project {quota.project} has used {used_gpu_s / 3600:.1f} GPU hours this month,"
        f" of {quota.gpu_hours} (gpu_hours)"
    )
    if used_gpu_s >= quota.gpu_hours * 3600:
        return said
    kept_h = (use.gpus + gpus) * keep_s / 3600
    return f"{said}; the last {kept_h:.2g} are kept so that what runs can be stopped in time"
