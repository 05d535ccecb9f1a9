"""One grammar of durations: run files, options of functions and the command line read the same."""

from __future__ import annotations

import pytest

from corral.durations import format_duration, parse_duration
from corral.functions.options import seconds
from corral.wire.spec.run_file import RunFile

GOOD = {
    "90": 90,
    " 90 ": 90,
    "1.5": 1.5,
    "500ms": 0.5,
    "90s": 90,
    " 15 m ": 900,
    "1.5h": 5400,
    "2d": 172_800,
    "1w": 604_800,
    "1h30m": 5400,
    "1h 30m": 5400,
    "1w2d3h4m5s": 788_645,
    "1m500ms": 60.5,
}
BAD = ["", " ", "soon", "1y", "-1s", "+1s", "h", "1h30", "1.s", ".5s", "1 h 3 0 m", "1h,30m", "1e3s", "inf"]


@pytest.mark.parametrize(("text", "expected"), GOOD.items())
def test_every_reader_takes_the_same_text_for_the_same_time(text: str, expected: float) -> None:
    run_file = RunFile.model_validate({"argv": ["true"], "wall_limit": text})

    assert parse_duration(text) == run_file.wall_limit == seconds(text, "timeout") == expected


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r'^is not a duration; write for example .*"1h30m"'):
        parse_duration(text)
    with pytest.raises(ValueError, match=r"^timeout = .* is not a duration; write for example"):
        seconds(text, "timeout")
    with pytest.raises(ValueError, match="is not a duration; write for example"):
        RunFile.model_validate({"argv": ["true"], "wall_limit": text})


@pytest.mark.parametrize("text", ["1w 2d", "3h 5m", "45s"])
def test_what_is_shown_can_be_written(text: str) -> None:
    shown = format_duration(parse_duration(text))

    assert shown is not None
    assert parse_duration(shown) == parse_duration(text)
