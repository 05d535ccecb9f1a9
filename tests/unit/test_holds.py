"""Why a run is held: the text of the column and its kind."""

from __future__ import annotations

import pytest

from corral.domain.runs.holds import Hold, HoldKind, held_by, hold_kind, parse_hold, waits_for


@pytest.mark.parametrize(
    ("text", "hold"),
    [
        ("waits for r-1", Hold(HoldKind.PARENTS, "r-1")),
        ("waits for r-1 and 2 more", Hold(HoldKind.PARENTS, "r-1 and 2 more")),
        ("held by ada", Hold(HoldKind.PERSON, "ada")),
        ("held by removed", Hold(HoldKind.PERSON, "removed")),
        ("backoff", Hold(HoldKind.BACKOFF)),
        ("concurrency", Hold(HoldKind.CONCURRENCY)),
        ("removed", Hold(HoldKind.REMOVED)),
    ],
)
def test_a_text_is_read_as_it_was_written(text: str, hold: Hold) -> None:
    assert parse_hold(text) == hold
    assert str(hold) == text


@pytest.mark.parametrize("text", [None, "", "dependency", "backoffs", "not removed"])
def test_another_text_has_no_kind(text: str | None) -> None:
    assert hold_kind(text) is None


def test_texts_name_the_first_parent_and_the_person() -> None:
    assert waits_for(["r-1"]) == "waits for r-1"
    assert waits_for(["r-1", "r-2", "r-3"]) == "waits for r-1 and 2 more"
    assert held_by("user:ada") == "held by ada"
    assert held_by("corral") == "held by corral"
