"""What a model wrote, as the terminal sees it."""

from __future__ import annotations

import pytest

from corral.cli.training.sample import _show_samples


def test_control_characters_of_a_model_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _show_samples([{"phase": "after", "completion": "a\x1b[2J\x08b\nüñ", "reason": "stop"}])
    assert capsys.readouterr().out == "after: a\\x1b[2J\\x08b\nüñ\n"
