"""The check that nothing is left running, checked."""

from __future__ import annotations

import pytest

from repo.leftovers import main


def test_a_command_that_cleans_up_passes() -> None:
    assert main(["true"]) == 0


def test_the_status_of_the_command_is_kept() -> None:
    assert main(["sh", "-c", "exit 5"]) == 5


def test_a_process_that_was_left_is_named_and_ended(capsys: pytest.CaptureFixture[str]) -> None:
    left = "setsid sleep 77 >/dev/null 2>&1 &"

    assert main(["sh", "-c", left], patience_s=0.5) == 1
    assert "sleep 77" in capsys.readouterr().err
