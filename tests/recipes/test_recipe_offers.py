"""Ranking machines by what the whole run costs, with every reason against the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from corral.recipes import gpus, models
from corral.recipes.gpus import GpuFacts
from corral.recipes.models import ModelFacts
from corral.recipes.offers import Machine, Offer, offers
from corral.recipes.train import parse
from corral.recipes.train_tables import DataFacts

GIB = 1 << 30
SFT: dict[str, Any] = {"recipe": "sft", "data": "x.jsonl"}
GRPO: dict[str, Any] = {"recipe": "grpo", "environment": "arithmetic"}
CHAT = DataFacts(rows=100_000, tokens=40_000_000, longest=2000)


def card(name: str) -> GpuFacts:
    found = gpus.find(name)
    assert found is not None
    return found


def shape(name: str) -> ModelFacts:
    found = models.facts(name)
    assert found is not None
    return found


def ranked(model: str, machines: list[Machine], table: dict[str, Any] | None = None) -> list[Offer]:
    return offers(parse(model, table or SFT), shape(model), CHAT, machines)


def rent(name: str, per_hour: float, **more: Any) -> Machine:
    return Machine(name, card(name), price_per_hour=per_hour, setup_s=180, **more)


def test_a_fast_dear_card_beats_a_slow_cheap_one_where_the_whole_run_is_cheaper_mt_d16() -> None:
    """MT-D16."""
    slow, fast = rent("a40", 0.44), rent("h100", 1.70)
    long = ranked("qwen3-4b", [slow, fast])
    assert [offer.machine.name for offer in long] == ["h100", "a40"]
    costs = [offer.cost for offer in long]
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[0] < costs[1]
    # A run so short that setup is most of it goes to the cheap one.
    short = ranked("qwen3-4b", [slow, fast], {**SFT, "steps": 3})
    assert [offer.machine.name for offer in short] == ["a40", "h100"]


def test_the_setup_of_a_machine_counts() -> None:
    slow_start, quick_start = rent("h100", 2.0), rent("h100", 2.0)
    slow_start, quick_start = (
        replace(slow_start, name="slow", setup_s=4000),
        replace(quick_start, name="quick"),
    )
    assert ranked("qwen3-4b", [slow_start, quick_start])[0].machine.name == "quick"


def test_ones_own_machine_comes_first_and_of_two_the_faster() -> None:
    own, other, rented = (
        Machine("own-4090", card("rtx-4090")),
        Machine("own-h100", card("h100")),
        rent("a40", 0.44),
    )
    names = [offer.machine.name for offer in ranked("qwen3-0.6b", [rented, own, other])]
    assert names == ["own-h100", "own-4090", "a40"]


def test_every_machine_is_listed_and_every_reason_against_it_is_said() -> None:
    machines = [
        rent("h200", 4.54),
        rent("l4", 0.39, unavailable="RunPod was not asked: no key"),
        Machine("laptop", None, ram_bytes=8 * GIB, cores=8),
        Machine("old", replace(card("h100"), id="v100", name="V100", capability=(7, 0))),
        replace(rent("h100", 3.0), name="dear", price_per_hour=None),
    ]
    found = {offer.machine.name: offer for offer in ranked("qwen3-8b", machines)}
    assert found["h200"].possible
    assert found["l4"].against[0] == "RunPod was not asked: no key"
    assert any("GiB of memory, has 8.0" in reason for reason in found["laptop"].against)
    assert "V100 has no bf16" in found["old"].against
    assert ranked("qwen3-8b", machines)[0].machine.name == "h200"


def test_a_provider_that_could_not_be_asked_is_in_the_plan_mt_d20() -> None:
    silent = rent("h100", 1.90, unavailable="Lambda did not answer within 10 s")
    found = ranked("qwen3-4b", [silent, rent("a40", 0.44)])
    assert found[0].machine.name == "a40"
    assert found[1].against == ("Lambda did not answer within 10 s",)


def test_a_run_that_fits_nowhere_is_told_why_for_each_machine() -> None:
    found = ranked("qwen3-8b", [rent("l4", 0.39), rent("a40", 0.44)], {**SFT, "method": "full"})
    assert not any(offer.possible for offer in found)
    assert all("GiB of memory, has" in offer.against[0] for offer in found)


def test_the_best_machine_is_one_that_can_be_had_mt_d17() -> None:
    """Only what can be had is possible, however cheap the rest would be."""
    machines = [rent("l4", 0.01, unavailable="not offered today"), rent("h100", 3.29)]
    best = ranked("qwen3-4b", machines)[0]
    assert best.possible
    assert best.machine in machines
    assert best.machine.unavailable is None


def test_a_price_that_is_not_known_comes_last_among_the_possible() -> None:
    unknown = replace(rent("b200", 1.0), price_per_hour=None)
    assert ranked("qwen3-0.6b", [unknown, rent("a40", 0.44)])[-1].machine.name == "b200"


MARKET = [
    Machine(f"{price.provider}/{one.id}", one, price_per_hour=price.per_hour, setup_s=180)
    for one in gpus.catalogue().values()
    for price in one.prices
]


def test_every_card_is_first_choice_for_some_run_or_marked_mt_d19() -> None:
    """MT-D19: with some limit of time, that is: no other possible card is both cheaper and faster."""
    first: set[str] = set()
    long = DataFacts(rows=100_000, tokens=200_000_000, longest=16_384)
    prompts = DataFacts(rows=1000, tokens=100_000, longest=200, turns=1)
    for model, table, data in (
        ("smollm2-135m", SFT, replace(CHAT, rows=100, tokens=40_000)),
        ("qwen3-0.6b", {**SFT, "method": "full"}, CHAT),
        ("qwen3-0.6b", GRPO, prompts),
        ("qwen3-4b", SFT, CHAT),
        ("qwen3-4b", GRPO, prompts),
        ("qwen3-8b", GRPO, prompts),
        ("qwen3-8b", {**SFT, "max_length": 16_384}, long),
        ("qwen3-4b", {**SFT, "method": "full"}, CHAT),
    ):
        best_s = float("inf")
        for offer in offers(parse(model, table), shape(model), data, MARKET):
            assert offer.machine.gpu is not None
            if offer.possible and offer.forecast.total_s < best_s:
                best_s = offer.forecast.total_s
                first.add(offer.machine.gpu.id)
    unmarked = {name for name, one in gpus.catalogue().items() if not one.never_first}
    assert unmarked <= first
