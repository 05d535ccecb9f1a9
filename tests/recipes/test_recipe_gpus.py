"""The table of cards."""

from __future__ import annotations

from datetime import date

import pytest

from corral.recipes.gpus import catalogue, find


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H200", "h200"),
        ("H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("rtx 4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
    ],
)
def test_a_card_is_found_by_the_name_that_its_driver_gives(name: str, card: str) -> None:
    found = find(name)
    assert found is not None
    assert found.id == card


def test_an_unknown_card_is_not_guessed() -> None:
    assert find("NVIDIA H2000") is None
    assert find("") is None


def test_no_two_cards_share_a_name() -> None:
    names = [name for card in catalogue().values() for name in (card.id, card.name, *card.aliases)]
    for name in names:
        assert sum(find(name) is card for card in catalogue().values()) == 1


def test_every_price_shows_its_source_and_its_own_age_mt_d41() -> None:
    """DEF-06, FL-D11, MT-D41: the age is that of the price, not of our reading; an unknown one is told."""
    for card in catalogue().values():
        for price in card.prices:
            text = price.describe(date(2026, 11, 25))
            assert price.provider in text
            assert price.source in text
            if price.published is None:
                assert "of an unknown day, read on 2026-11-15" in text
                assert price.age_days(date(2026, 11, 25)) is None
            else:
                assert price.published < price.read
                assert f"of {price.published}, 153 days old" in text
            assert 0 < price.per_hour < 100


def test_the_numbers_of_cards_are_plausible() -> None:
    for card in catalogue().values():
        assert 20 << 30 <= card.memory_bytes < 256 << 30
        assert 1e14 <= card.flops < 3e15
        assert 2e11 <= card.bytes_per_s < 1e13
        assert card.capability >= (8, 0)  # older ones have no bf16
        assert card.aliases
