"""What `corral sample` asks, on the wire and in the terminal."""

from __future__ import annotations

from typing import Any

import pytest

from corral.cli.training.sample import _form_notes
from corral.domain.errors import InvalidInput
from corral.wire.base import validated
from corral.wire.spec.train import SampleRequest

MESSAGES = [{"role": "user", "content": "3+4="}]


def test_a_question_is_messages_or_a_prompt() -> None:
    """HOUR3-02: and workers that know of no prompts see none."""
    given = validated(SampleRequest, {"messages": MESSAGES}, what="the question")
    assert "prompt" not in given.model_dump(mode="json")
    given = validated(SampleRequest, {"prompt": "3+4="}, what="the question")
    assert given.model_dump(mode="json")["prompt"] == "3+4="
    for wrong in ({}, {"messages": MESSAGES, "prompt": "3+4="}):
        with pytest.raises(InvalidInput, match="`messages` or `prompt`"):
            validated(SampleRequest, wrong, what="the question")


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        ({}, []),
        ({"form": "chat", "trained_as": None}, ["note: asked as a chat"]),
        ({"form": "chat", "trained_as": "chat"}, ["note: asked as a chat, as it was trained"]),
        (
            {"form": "chat", "trained_as": "text"},
            [
                "note: asked as a chat; it was trained as plain text, without a chat template:"
                " ask so with --prompt TEXT, or -m without --system"
            ],
        ),
    ],
)
def test_an_answer_says_in_which_form_the_model_was_asked(answer: dict[str, Any], note: list[str]) -> None:
    """HOUR3-02."""
    assert _form_notes(answer) == note
