"""The check that nothing is left running, checked."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.waiting import eventually

from repo.leftovers import __file__ as script
from repo.leftovers import main


def test_a_command_that_cleans_up_passes() -> None:
    assert main(["true"]) == 0


def test_the_status_of_the_command_is_kept() -> None:
    assert main(["sh", "-c", "exit 5"]) == 5


def test_a_process_that_was_left_is_named_and_ended(capsys: pytest.CaptureFixture[str]) -> None:
    left = "setsid sleep 77 >/dev/null 2>&1 &"

    assert main(["sh", "-c", left], patience_s=0.5) == 1
    assert "sleep 77" in capsys.readouterr().err


def test_being_ended_ends_the_command_too(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = ["sh", "-c", f"echo $$ > {pid_file}.part; mv {pid_file}.part {pid_file}; exec sleep 78"]
    with subprocess.Popen([sys.executable, str(script), *command]) as wrapper:
        eventually(pid_file.exists, "the command to begin")
        wrapper.send_signal(signal.SIGTERM)
        assert wrapper.wait(30) != 0

    assert not psutil.pid_exists(int(pid_file.read_text()))
