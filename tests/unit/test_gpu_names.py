"""Names of GPUs in a run: words of the model's name, wherever it runs."""

from __future__ import annotations

import pytest

from corral.domain.hosts.capability import is_called


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA-H100-80GB-HBM3", "h100 80gb"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("A100-40GB", "A100"),
    ],
)
def test_words_of_the_name_are_enough(model: str, name: str) -> None:
    assert is_called(model, ["no other", name])


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA L40S", "L4"),
        ("NVIDIA A100-SXM4-80GB", "A10"),
        ("NVIDIA H200", "H20"),
        ("NVIDIA GH200", "H200"),
    ],
)
def test_a_part_of_a_word_is_another_card(model: str, name: str) -> None:
    """A run for an L4 was given an L40S, which costs twice as much."""
    assert not is_called(model, [name])
