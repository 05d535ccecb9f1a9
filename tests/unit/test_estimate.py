"""The forecast becomes requirements and an estimate: what is shown is what placement goes by."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from support import forked

from corral.client.training.dataset import DataAmount
from corral.client.training.estimate import NOT_RENTED, FleetSnapshot, estimate_machines
from corral.client.training.placement import (
    ForecastSubject,
    data_facts,
    gpu_of,
    least_vram,
    settled,
    with_forecast,
    with_model,
)
from corral.domain.hosts.capability import ENGINE_PACKAGES, Capability, Requirements, judge
from corral.recipes import models
from corral.recipes.forecast import forecast
from corral.recipes.gpus import catalogue
from corral.recipes.train import parse, to_table
from corral.recipes.train_tables import DataFacts
from corral.wire.hosts import HostView
from corral.wire.runs import HostVerdict
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import PlacementTable, Resources

GIB = 1 << 30
TODAY = date(2026, 12, 1)
ENGINE = dict.fromkeys(ENGINE_PACKAGES, "1.0")
CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key}


def subject(model: str = "qwen3-4b", rows: int = 1000, **train: Any) -> ForecastSubject:
    made = parse(model, {"recipe": "sft", "data": "x.jsonl", **train})
    facts = models.facts(model)
    assert facts is not None
    return ForecastSubject(made, facts, DataFacts(rows, rows * 400, 2000))


def host(name: str, *gpus: tuple[str, int], alive: bool = True, **capability: Any) -> HostView:
    cards = [
        {"index": index, "name": card, "memory_bytes": memory, "compute_capability": "8.0"}
        for index, (card, memory) in enumerate(gpus)
    ]
    has = {"hostname": name, "os": "linux", "arch": "x86_64", "gpus": cards, "engine": ENGINE, **capability}
    return HostView.model_validate(
        {
            "id": f"h-{name}",
            "name": name,
            "slots": 1,
            "busy": 0,
            "draining": False,
            "alive": alive,
            "capability": has,
        }
    )


def placed(hosts: list[HostView], spec: RunSpec) -> FleetSnapshot:
    """As the server judges them."""
    verdicts = []
    for each in hosts:
        assert each.capability is not None
        found = judge(spec.requirements(), each.capability.capability(), host=each.name)
        reasons = list(found.shortfalls)
        verdicts.append(
            HostVerdict(host=each.name, host_id=each.id, eligible=found.eligible, reasons=reasons)
        )
    return FleetSnapshot(hosts, verdicts)


def spec_of(about: ForecastSubject, **resources: Any) -> RunSpec:
    return RunSpec(model=about.facts.id, train=to_table(about.train), resources=Resources(**resources))


A100 = ("NVIDIA A100-SXM4-80GB", 80 * GIB)
SMALL = ("NVIDIA GeForce RTX 3060", 6 * GIB)


def test_a_run_that_asks_for_a_gpu_gets_the_memory_that_the_forecast_names() -> None:
    """EN-D16."""
    about = subject()

    made = settled(Resources(gpus=1), about, [], engine=True)

    assert made.min_vram == least_vram(about)
    assert 8 * GIB < least_vram(about) < 24 * GIB


def test_what_the_user_wrote_stays() -> None:
    asked = Resources(gpus=1, min_vram=5)

    assert settled(asked, subject(), [host("big", A100)], engine=True) == asked
    assert settled(Resources(gpus=0), subject(), [host("big", A100)], engine=True).gpus == 0


def test_without_a_word_a_gpu_is_taken_where_a_living_host_has_one_that_it_fits() -> None:
    about = subject()

    assert settled(Resources(), about, [host("big", A100)], engine=True).gpus == 1
    assert settled(Resources(), about, [host("plain")], engine=True).gpus == 0
    assert settled(Resources(), about, [host("small", SMALL)], engine=True).gpus == 0
    assert settled(Resources(), about, [host("away", A100, alive=False)], engine=True).gpus == 0
    assert settled(Resources(), about, [host("bare", A100, engine={})], engine=True).gpus == 0
    assert settled(Resources(), about, [host("bare", A100, engine={})], engine=False).gpus == 1
    assert settled(Resources(labels=["fast"]), about, [host("big", A100)], engine=True).gpus == 0


def test_the_room_for_the_model_is_added_to_what_the_run_asks_of_the_disk() -> None:
    """A host that holds the run and not its model is no host for it; `why` says what the disk is for."""
    asked = with_model(Resources(min_disk=3 * GIB), 15 * GIB)
    assert asked.min_disk == 18 * GIB
    assert with_model(Resources(), 15 * GIB).min_disk == 15 * GIB
    assert with_model(Resources(), None) == Resources()

    need = spec_of(subject(), min_disk=asked.min_disk, gpus=0).requirements()
    has = Capability(
        "box", "linux", "x86_64", disk_bytes=10 * GIB, engine=dict.fromkeys(ENGINE_PACKAGES, "1")
    )
    assert judge(need, has, host="box").shortfalls == (
        "needs 18 GiB disk for itself and its model; the host has 10 GiB",
    )


def test_a_model_of_unknown_shape_asks_for_nothing() -> None:
    assert settled(Resources(gpus=1), None, [], engine=True).min_vram is None


@pytest.mark.parametrize(
    "larger", [{"lora": {"rank": 256}}, {"method": "full"}, {"max_length": 16384}, {"recompute": "none"}]
)
def test_more_is_asked_for_where_more_is_needed(larger: dict[str, Any]) -> None:
    usual, more = subject(), subject(**larger)
    more = replace(more, data=replace(more.data, longest=None))

    assert least_vram(more) > least_vram(usual)


def test_what_is_asked_for_is_enough_for_the_forecast_to_fit() -> None:
    """EN-D16."""
    about = subject()
    card = replace(next(iter(catalogue().values())), memory_bytes=least_vram(about) + (1 << 20))

    assert forecast(about.train, about.facts, card, about.data).fits


def test_tokens_are_guessed_from_bytes_and_bytes_are_tokens_for_a_byte_model() -> None:
    amount = DataAmount(rows=10, text_bytes=4000, longest_bytes=800)
    tiny, large = models.facts("corral/tiny"), models.facts("qwen3-4b")

    assert data_facts(amount, tiny, subject("corral/tiny").train).tokens == 4160
    assert data_facts(amount, large, subject().train).tokens == 1160
    assert data_facts(None, large, subject().train) == DataFacts()
    assert data_facts(DataAmount(rows=None), large, subject().train) == DataFacts()


def test_the_card_of_a_host_is_the_one_that_fits() -> None:
    both = host("both", SMALL, A100)

    found = gpu_of(both, Requirements(gpus=1, min_vram_bytes=20 * GIB))

    assert found is not None
    assert found.memory_bytes == 80 * GIB
    assert gpu_of(both, Requirements()) is None


def test_the_machine_that_is_taken_is_one_that_the_server_would_choose() -> None:
    """MT-D17: the machine named in the estimate is one that placement may choose with the same inputs."""
    about = subject()
    hosts = [host("small", SMALL), host("plain"), host("big", A100)]
    spec = spec_of(about, gpus=1, min_vram=least_vram(about))

    found = estimate_machines([about], spec, placed(hosts, spec), today=TODAY)

    assert found.taken == "big"
    against = {one.name: one.against for one in found.machines if one.kind == "host"}
    assert against["big"] == ()
    assert any("6" in reason and "GiB" in reason for reason in against["small"])
    assert any("GPU" in reason for reason in against["plain"])


def test_every_reason_is_told_and_cards_are_only_to_compare() -> None:
    about = subject("qwen3-8b", method="full")
    spec = spec_of(about, gpus=1)

    found = estimate_machines([about], spec, FleetSnapshot(), today=TODAY)

    assert found.taken is None
    assert all(NOT_RENTED in one.against for one in found.machines)
    (l4,) = [one for one in found.machines if one.name == "L4"]
    assert any("GiB of memory" in reason for reason in l4.against)


def test_a_slow_cheap_card_loses_to_a_fast_dear_one_that_costs_less_in_all() -> None:
    """MT-D16: what the whole run costs decides, not the hour."""
    about = subject("qwen3-8b", rows=2_000_000)

    found = estimate_machines([about], spec_of(about, gpus=1), FleetSnapshot(), today=TODAY)

    cards = [one for one in found.machines if one.forecast.fits and one.cost is not None]
    costs = [one.cost for one in cards if one.cost is not None]
    assert costs == sorted(costs)
    hourly = min(cards, key=lambda one: one.price_per_hour or 0)
    assert cards[0].name != hourly.name
    assert (cards[0].price_per_hour or 0) > (hourly.price_per_hour or 0)


def test_a_card_that_the_user_pins_is_the_only_one_without_a_reason() -> None:
    """MT-D44: the user can pin a card or a host, and the plan shows it."""
    about = subject()

    found = estimate_machines([about], spec_of(about, gpus=1, gpu=["H100"]), FleetSnapshot(), today=TODAY)

    fitting = {one.name for one in found.machines if one.against == (NOT_RENTED,)}
    assert fitting == {"H100 SXM", "H100 PCIe"}


def test_a_pinned_host_is_shown_and_no_card_takes_its_place() -> None:
    """MT-D44."""
    about = subject()
    hosts = [host("a", A100), host("b", A100)]
    spec = spec_of(about, gpus=1, hosts=["b"])

    found = estimate_machines([about], spec, placed(hosts, spec), today=TODAY)

    assert found.taken == "b"
    assert all("the run allows only b" in one.against for one in found.machines if one.kind == "card")


def test_prices_carry_their_source_and_age() -> None:
    """MT-D41, MT-C15: a static price is never called live."""
    found = estimate_machines([subject()], spec_of(subject(), gpus=1), FleetSnapshot(), today=TODAY)

    said = [one.price_from for one in found.machines if one.price_per_hour is not None and one.kind == "card"]
    assert said
    assert all(text is not None and ("days old" in text or "of an unknown day" in text) for text in said)


def test_a_run_for_the_cpu_is_compared_with_no_card() -> None:
    about = subject("corral/tiny")

    found = estimate_machines(
        [about], spec_of(about, gpus=0), placed([host("x")], spec_of(about)), today=TODAY
    )

    assert [one.name for one in found.machines] == ["x"]
    assert found.machines[0].gpu is None


def test_runs_of_a_group_add_up_and_the_largest_decides_on_the_memory() -> None:
    # Told how to go, so that the memory that a card has makes no difference.
    fixed: dict[str, Any] = {"micro_tokens": 4096, "recompute": "full"}
    small, large = subject(lora={"rank": 4}, **fixed), subject(lora={"rank": 512}, **fixed)

    alone = estimate_machines([small], spec_of(small, gpus=1), FleetSnapshot(), today=TODAY)
    group = estimate_machines([small, small, large], spec_of(small, gpus=1), FleetSnapshot(), today=TODAY)

    one, all_of_it = alone.machines[-1], next(m for m in group.machines if m.name == alone.machines[-1].name)
    assert group.runs == 3
    assert all_of_it.forecast.peak_bytes > one.forecast.peak_bytes
    assert all_of_it.total_s > 2 * one.total_s


def corral(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**CLEAN, "CORRAL_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
    return forked.run(arguments, env, cwd=folder)


@pytest.fixture
def run_toml(tmp_path: Path) -> Path:
    (tmp_path / "chat.jsonl").write_text('{"text": "hello"}\n' * 10)
    path = tmp_path / "run.toml"
    path.write_text('model = "qwen3-0.6b"\n[train]\nrecipe = "sft"\ndata = "chat.jsonl"\n')
    return path


def test_an_estimate_needs_neither_server_nor_torch_nor_a_gpu(run_toml: Path) -> None:
    """MT-C12: the estimate is local."""
    script = (
        "import sys\nsys.modules['torch'] = None\nsys.argv = ['corral', 'estimate', 'run.toml']\n"
        "from corral.cli.main import main\nmain()\n"
    )
    env = {**CLEAN, "CORRAL_HOME": str(run_toml.parent / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=run_toml.parent,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "L4" in done.stdout
    assert "no hosts are known" in done.stderr


def test_an_estimate_as_json_has_every_machine(run_toml: Path) -> None:
    done = corral(run_toml.parent, "estimate", "run.toml", "--json", "--set", "train.lora.rank=8")

    found = json.loads(done.stdout)
    assert (found["taken"], found["runs"], found["data"]["rows"]) == (None, 1, 10)
    assert {one["name"] for one in found["machines"]} == {card.name for card in catalogue().values()}
    assert found["machines"][0]["forecast"]["peak_bytes"] > 0
    weights = 2 * found["parameters"]
    assert found["disk"] == {"needed_bytes": weights, "model_bytes": weights}
    assert any("of disk" in note and "are for the model" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('argv = ["true"]', "only a training run"),
        ('model = "some/unknown"\n[train]\nrecipe = "sft"\ndata = "chat.jsonl"', "shape"),
        ('model = "qwen3-0.6b"\n[train]\nrecipe = "sft"\ndata = "none.jsonl"', "train.data"),
        ('model = "qwen3-0.6b"\n[train]\nrecipe = "stf"\ndata = "chat.jsonl"', "did you mean 'sft'?"),
    ],
)
def test_what_cannot_be_estimated_is_refused_with_a_hint(text: str, words: str, run_toml: Path) -> None:
    run_toml.write_text(text)

    done = corral(run_toml.parent, "estimate", "run.toml")

    assert done.returncode == 1
    assert words in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize("command", ["models", "gpus"])
def test_the_catalogues_are_shown_without_a_server(command: str, tmp_path: Path) -> None:
    shown = corral(tmp_path, command)
    listed = json.loads(corral(tmp_path, command, "--json").stdout)

    assert shown.returncode == 0
    assert all(entry["id"] in shown.stdout for entry in listed)


def test_every_price_of_a_card_has_its_source_and_age(tmp_path: Path) -> None:
    """MT-D41."""
    listed = json.loads(corral(tmp_path, "gpus", "--json").stdout)

    prices = [price for card in listed for price in card["prices"]]
    assert prices
    assert all(price["source"] for price in prices)
    assert {price["age_days"] is None for price in prices} == {True, False}
    assert all((price["age_days"] is None) == (price["published"] is None) for price in prices)


def test_a_run_for_the_cheapest_executor_says_how_long_it_takes_on_each_card() -> None:
    """Offers are ranked by expected cost to finish, not by hourly price: the server needs the times."""
    asked = PlacementTable(executors=["fleet", "cheapest"])
    times = with_forecast(asked, subject()).forecast_s

    assert times["b200"] < times["h100"] < times["a100-sxm"]
    assert set(with_forecast(asked, subject(method="full")).forecast_s) < set(times)
    assert with_forecast(PlacementTable(executors=["slurm"]), subject()).forecast_s == {}
    assert with_forecast(asked, None) is asked
