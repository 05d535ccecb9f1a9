"""Progress of what lasts: on a terminal, and only there."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

COUNT = """
import time
from corral.cli.display.bars import count_bar
with count_bar("cancel", 300, after_s={after_s}) as told:
    for done in (100, 200, 300):
        told(done)
        time.sleep(0.15)
print("said")
"""


def on_a_terminal(code: str) -> str:
    """What a program writes to a terminal on its stderr."""
    here, there = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen([sys.executable, "-c", code], stderr=there, stdout=subprocess.PIPE, env=env)
    os.close(there)
    found = b""
    try:
        while chunk := os.read(here, 65536):
            found += chunk
    except OSError:
        # The other side is closed.
        pass
    said, _ = child.communicate(timeout=60)
    assert said == b"said\n"
    os.close(here)
    return found.decode()


@pytest.mark.parametrize(("after_s", "is_shown"), [(0.0, True), (60.0, False)])
def test_a_bar_is_shown_once_the_work_has_lasted(after_s: float, is_shown: bool) -> None:
    shown = on_a_terminal(COUNT.format(after_s=after_s))

    assert ("cancel" in shown and "200/300" in shown) is is_shown


def test_nothing_moves_where_there_is_no_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT.format(after_s=0.0)], capture_output=True, text=True, check=True
    )

    assert (done.stdout, done.stderr) == ("said\n", "")
