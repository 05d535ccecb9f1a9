"""When a schedule's next time is: against a slow oracle, and where clocks change."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.schedules.cron import check_times, latest_cron, next_cron, next_period
from corral.domain.errors import InvalidInput


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def shown(moment: float | None, zone: str) -> str:
    assert moment is not None
    return datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime("%m-%d %H:%M %z")


def times(cron: str, zone: str, begin: str, count: int) -> list[str]:
    found, now = [], at(begin, zone)
    for _ in range(count):
        moment = next_cron(cron, zone, now)
        assert moment is not None
        found.append(shown(moment, zone))
        now = moment
    return found


field = {
    "minute": st.one_of(st.just("*"), st.integers(0, 59).map(str), st.sampled_from(["*/7", "5-20", "1,31"])),
    "hour": st.one_of(st.just("*"), st.integers(0, 23).map(str), st.sampled_from(["*/5", "8-17", "0,12"])),
    "day": st.sampled_from(["*", "1", "15", "28", "*/9"]),
    "month": st.sampled_from(["*", "2", "6-8", "12"]),
    "weekday": st.sampled_from(["*", "0", "1-5", "7", "MON"]),
}


def numbers(text: str, low: int, high: int) -> set[int]:
    text = text.replace("MON", "1")
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin, end = (low, high) if span == "*" else (int(first), int(last or first))
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def oracle(cron: str, after: datetime) -> datetime:
    """Minute by minute, by the definition."""
    minute, hour, day, month, weekday = cron.split()
    days, weekdays = numbers(day, 1, 31), {n % 7 for n in numbers(weekday, 0, 7)}
    both = day.startswith("*") or weekday.startswith("*")
    moment = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while True:
        by_day, by_weekday = moment.day in days, (moment.weekday() + 1) % 7 in weekdays
        fits = by_day and by_weekday if both else by_day or by_weekday
        if moment.month not in numbers(month, 1, 12) or not fits:
            moment = (moment + timedelta(days=1)).replace(hour=0, minute=0)
        elif moment.hour in numbers(hour, 0, 23) and moment.minute in numbers(minute, 0, 59):
            return moment
        else:
            moment += timedelta(minutes=1)


@settings(max_examples=150)
@given(parts=st.tuples(*field.values()), offset_s=st.integers(0, 3 * 365 * 86400))
def test_the_next_time_is_the_oracles(parts: tuple[str, ...], offset_s: int) -> None:
    cron, after = " ".join(parts), datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=offset_s)

    assert next_cron(cron, "UTC", after.timestamp()) == oracle(cron, after).timestamp()


def test_a_time_that_the_clocks_skip_runs_once_at_the_next_minute() -> None:
    """In Berlin there is no half past two on 2026-03-29."""
    assert times("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", 3) == [
        "03-28 02:30 +0100",
        "03-29 03:00 +0200",
        "03-30 02:30 +0200",
    ]
    assert times("15,45 2 * * *", "Europe/Berlin", "2026-03-29T00:00", 2) == [
        "03-29 03:00 +0200",
        "03-30 02:15 +0200",
    ]


def test_a_time_that_comes_twice_runs_once() -> None:
    """In Berlin there are two half past twos on 2026-10-25."""
    assert times("30 2 * * *", "Europe/Berlin", "2026-10-25T00:00", 2) == [
        "10-25 02:30 +0200",
        "10-26 02:30 +0100",
    ]
    second_half_past_two = at("2026-10-25T00:30") + 3600
    assert shown(next_cron("45 2 * * *", "Europe/Berlin", second_half_past_two), "Europe/Berlin") == (
        "10-26 02:45 +0100"
    )


def test_every_hour_goes_on_by_the_real_time() -> None:
    after = at("2026-10-24T23:30")
    moments = [after]
    for _ in range(4):
        moments.append(next_cron("0 * * * *", "Europe/Berlin", moments[-1]) or 0.0)

    assert [b - a for a, b in itertools.pairwise(moments[1:])] == [3600.0] * 3


def test_periods_keep_their_beat_whatever_was_missed() -> None:
    assert next_period(60, last=1000, after=1000) == 1060
    assert next_period(60, last=1000, after=1059.9) == 1060
    assert next_period(60, last=1000, after=1060) == 1120
    assert next_period(60, last=1000, after=1000 + 86_400 * 3 + 5) == 1000 + 86_400 * 3 + 60
    assert next_period(60, last=1000, after=930) == 940


@given(
    cron=st.sampled_from(
        ["* * * * *", "*/7 * * * *", "0 3 * * *", "30 2 * * *", "15 */5 1,20 * *", "0 0 * * 1"]
    ),
    zone=st.sampled_from(["UTC", "Europe/Berlin"]),
    passed_s=st.floats(0, 3e6),
)
def test_the_latest_time_that_passed_is_found_without_going_through_all(
    cron: str, zone: str, passed_s: float
) -> None:
    first = next_cron(cron, zone, at("2026-10-01T00:00", zone)) or 0.0
    until = first + passed_s

    latest = latest_cron(cron, zone, first, until)

    assert first <= latest <= until
    assert latest == first or next_cron(cron, zone, latest - 60) == latest
    assert (next_cron(cron, zone, latest) or until + 1) > until


@pytest.mark.parametrize(
    ("cron", "word"),
    [
        ("0 0 31 2 *", "day-of-month"),
        ("0 0 30 2 *", "day-of-month"),
        ("60 * * * *", "minute"),
        ("* * * *", "five fields"),
        ("*/5 * * * * *", "five fields"),
        ("a b c d e", "minute"),
        ("0 0 * 2 MON#5 ", None),
        ("* * */20 * 1L", "never"),
        ("5/0 * * * *", "minute"),
        ("0 0 L/L * *", ""),
    ],
)
def test_a_line_that_is_none_or_never_comes_is_refused(cron: str, word: str | None) -> None:
    if word is None:
        check_times(cron, None, "UTC", 0.0)
        return
    with pytest.raises(InvalidInput) as caught:
        check_times(cron, None, "UTC", 0.0)

    assert caught.value.fields[0].path == "schedule.cron"
    assert word in caught.value.message


def test_a_period_too_short_and_a_zone_that_is_none_are_refused() -> None:
    with pytest.raises(InvalidInput, match="shortest period is 10 s"):
        check_times(None, 9.9, "UTC", 0.0)
    for zone in ("Europe/Atlantis", "../../etc/passwd", "/etc", "\0"):
        with pytest.raises(InvalidInput, match="no time zone"):
            check_times(None, 60, zone, 0.0)
