"""When a schedule's next time is.

A cron line is read in the schedule's time zone. Where the clocks change, a line that names hours runs once:
a time that is skipped runs at the next minute that exists, one that comes twice runs the first time. A line
for every hour or minute goes on by the real time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from corral.domain.errors import FieldError, InvalidInput

SHORTEST_S = 10.0


def next_cron(cron: str, timezone: str, after: float) -> float | None:
    """The first time after `after`; None if there is none in fifty years."""
    for found in _times(cron, datetime.fromtimestamp(after, ZoneInfo(timezone))):
        # In an hour that comes twice the library counts from the first.
        if (at := found.astimezone(UTC).timestamp()) > after:
            return at
    return None


def _times(cron: str, begin: datetime) -> Iterator[datetime]:
    """ValueError if it is no cron line."""
    # Loaded by the first schedule that asks: most servers have none.
    from cronsim import CronSim, CronSimError  # noqa: PLC0415

    try:
        times: Iterator[datetime] = CronSim(cron, begin)
    except CronSimError as error:
        raise ValueError(str(error)) from None
    yield from times


def next_period(every_s: float, last: float, after: float) -> float:
    """The first of the times that lie `every_s` apart, one of them at `last`, which is after `after`."""
    return last + (math.floor((after - last) / every_s) + 1) * every_s


def latest_cron(cron: str, timezone: str, first: float, until: float) -> float:
    """The last of its times that is not after `until`; `first` is one of them. A time is a whole minute."""
    low, high = first, until
    while high - low >= 60.0:
        middle = (low + high) / 2
        found = next_cron(cron, timezone, middle)
        low, high = (found, high) if found is not None and found <= until else (low, middle)
    return low


def check_times(cron: str | None, every_s: float | None, timezone: str, now: float) -> None:
    """InvalidInput if there would never be a time, or times come too often."""
    try:
        ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise _wrong("timezone", f"{timezone[:64]!r} is no time zone; write it as Europe/Berlin") from None
    if every_s is not None and every_s < SHORTEST_S:
        raise _wrong("every", f"is {every_s:g} s; the shortest period is {SHORTEST_S:g} s")
    if cron is None:
        return
    if len(cron.split()) != 5:
        raise _wrong("cron", "needs five fields: minute, hour, day of the month, month, day of the week")
    try:
        first = next_cron(cron, timezone, now)
    except ValueError as error:
        raise _wrong("cron", f"{cron!r} is no cron line: {str(error)[:1].lower()}{str(error)[1:]}") from None
    except (AssertionError, TypeError, OverflowError):
        # What the library trips over is none either.
        raise _wrong("cron", f"{cron!r} is no cron line") from None
    if first is None:
        raise _wrong("cron", f"{cron!r} names a time that never comes")


def _wrong(field: str, message: str) -> InvalidInput:
    return InvalidInput(
        f"schedule.{field} {message}",
        hint='For example cron = "0 3 * * *" (at three each night), or every = "6h".',
        fields=[FieldError(f"schedule.{field}", message)],
    )
