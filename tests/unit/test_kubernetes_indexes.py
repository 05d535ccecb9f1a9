"""Completion indexes as Kubernetes writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kubernetes_server.indexes import compressed, parsed, wrong_indexes


@pytest.mark.parametrize(
    ("indexes", "text"),
    [([], ""), ([0], "0"), ([3, 4], "3,4"), ([1, 3, 4, 5, 7], "1,3-5,7"), ([0, 2, 3, 4], "0,2-4")],
)
def test_three_in_a_row_are_compressed(indexes: list[int], text: str) -> None:
    assert compressed(indexes) == text


@given(st.sets(st.integers(0, 200)))
def test_what_is_written_can_be_read(indexes: set[int]) -> None:
    assert parsed(compressed(indexes), below=201) == indexes
    assert not indexes or wrong_indexes(compressed(indexes), below=201) == ""


def test_indexes_that_a_job_no_longer_has_are_left_out() -> None:
    assert parsed("0-5", below=3) == {0, 1, 2}


@pytest.mark.parametrize("text", ["", "a", "1-", "3-1", "1,1", "2,1", "0-9", "-1"])
def test_wrong_indexes_are_told(text: str) -> None:
    assert wrong_indexes(text, below=5)
