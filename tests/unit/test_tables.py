"""Tables and lines on narrow terminals: nothing is broken, and nothing is lost."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from rich.text import Text

from corral.cli.display.curves import small_curves, sparkline
from corral.cli.display.progress_line import status_line
from corral.cli.display.tables import hanging_lines, left_beside, pair_lines, table_lines
from corral.wire.runs import RunView

RUN, LEASE = "r-3gj5cxkzpkvd", "l-m4k9sr49gjvb"
COLUMNS = ("RUN", "NAME", "STATE", "PROJECT", "PARAMS", "HOST", "WHY", "DIGEST")
ROW = (
    *(RUN, "a-longer-name-of-a-grid", "succeeded", "default"),
    *("learning_rate=0.001  width=128", "big-machine-7"),
    *(f"the host that had {LEASE} went away, and nobody has seen it since then", "0123456789abcdef" * 4),
)


def laid_out(width: int, *, rows: int = 2, spare: tuple[str, ...] = ()) -> list[str]:
    cells = [[Text(cell) for cell in ROW] for _ in range(rows)]
    return [line.plain for line in table_lines(COLUMNS, cells, width=width, spare=spare)]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200, 4096])
def test_a_table_fits_its_terminal_and_breaks_no_id(width: int) -> None:
    """NEW-09: what has no room beside the others stands below its row."""
    lines = laid_out(width)

    assert max(map(len, lines)) <= width
    words = re.split(r"\s+", " ".join(lines))
    assert words.count(RUN) == words.count(LEASE) == 2
    for cell in ROW[:-1]:
        assert set(cell.split()) <= set(words)
    assert "".join(lines).replace(" ", "").count(ROW[-1]) == 2
    assert lines[1].startswith(RUN)


def test_what_says_the_same_everywhere_goes_first() -> None:
    """NEW-09: the project of a list of one project."""
    narrow = laid_out(120, spare=("PROJECT", "NAME"))
    assert "PROJECT" not in narrow[0]
    assert "PROJECT" in laid_out(4096, spare=("PROJECT", "NAME"))[0]


def test_a_wide_table_is_as_it_was() -> None:
    first, second = laid_out(4096, rows=1)

    assert first.split() == list(COLUMNS)
    assert (
        second == "  ".join(cell.ljust(len(name)) for cell, name in zip(ROW, COLUMNS, strict=True)).rstrip()
    )


def test_long_values_and_lines_go_on_indented() -> None:
    """NEW-09."""
    pairs = [line.plain for line in pair_lines("detail", Text("word " * 30), margin=8, width=40)]
    line = [line.plain for line in hanging_lines(Text(f"claim  {'x=1  ' * 12}{LEASE}"), 40)]

    assert pairs[0].startswith("detail  word")
    assert all(one.startswith("        word") for one in pairs[1:])
    assert max(map(len, pairs + line)) <= 40
    assert any(LEASE in one for one in line)
    assert all(one.startswith("      ") for one in line[1:])


def test_a_curve_takes_the_room_that_is_left() -> None:
    """NEW-09: sparklines went over four lines."""
    assert left_beside(("A", "B"), [[Text("xxxx"), Text("yy")]], width=80) == 80 - (4 + 2 + 2) - 2
    assert len(sparkline([float(n) for n in range(100)], 25)) == 25
    assert set(sparkline([123.4] * 59, 25)) == {"▄"}


def test_curves_over_one_another_share_a_scale() -> None:
    """NEW-05: the worse run is drawn above the better one, wherever each begins and ends."""
    good, bad = [(1.0, 4.0), (2.0, 2.0), (3.0, 0.0)], [(1.0, 4.0), (2.0, 4.0)]

    head, *lines = small_curves({"a=1": good, "a=22": bad}, width=80)

    assert "step 1 to 3, 0 to 4" in head
    assert [line.split()[-1] for line in lines] == ["0", "4"]
    assert "▁" in lines[0]
    assert "▁" not in lines[1]
    assert max(map(len, lines)) <= 80
    assert small_curves({"a": []}, width=80) == []


@pytest.mark.parametrize("width", [55, 60, 79])
def test_a_narrow_status_line_keeps_the_loss(width: int) -> None:
    """NEW-09: it was the first to go."""
    run = RunView(
        id=RUN,
        project="p",
        name="n",
        kind="train",
        state="running",
        priority=0,
        created_at=0,
        started_at=0,
        attempt=1,
        host="big-machine-7",
        progress={"phase": "training", "step": 9, "total": 20, "eta": "2m 5s"},
        metrics={"loss": 1.23456, "tokens_per_s": 36_800.0, "mfu": 0.414, "memory_gib": 32.5},
    )

    line = status_line(run, 9.9, width)

    assert len(line) <= width
    assert "loss 1.235" in line
    assert "45%" in line


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", ["gpus", "models"])
def test_a_command_fits_the_terminal_that_it_is_in(command: str, width: int) -> None:
    """NEW-09."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"TERM": "dumb"}
    code = f"from corral.cli.training.{command} import {command} as command; command()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=there, stdout=there, stderr=subprocess.DEVNULL, env=env
    ):
        os.close(there)
        shown = b""
        try:
            while chunk := os.read(here, 65536):
                shown += chunk
        except OSError:
            # The other side is closed.
            pass
    os.close(here)

    lines = shown.decode().splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= width
