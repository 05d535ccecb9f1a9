"""Memory, time and cost before a run: what must hold whatever the constants are."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench.engine import fit_calibration as fit  # noqa: E402
from corral.recipes import calibration, gpus, memory, models, speed  # noqa: E402
from corral.recipes import memory_plan as plan  # noqa: E402
from corral.recipes.calibration import Calibration  # noqa: E402
from corral.recipes.forecast import Forecast, forecast, forecast_plan  # noqa: E402
from corral.recipes.forecast_case import CodePart, Device, ForecastCase, MemoryPlan  # noqa: E402
from corral.recipes.gpus import GpuFacts  # noqa: E402
from corral.recipes.models import ModelFacts, block_params, lora_params  # noqa: E402
from corral.recipes.train import parse  # noqa: E402
from corral.recipes.train_tables import DataFacts  # noqa: E402

GIB = 1 << 30
SFT: dict[str, Any] = {"recipe": "sft", "data": "x.jsonl"}
GRPO: dict[str, Any] = {"recipe": "grpo", "environment": "arithmetic"}
CHAT = DataFacts(rows=3200, tokens=3200 * 400, longest=2000)
PROMPTS = DataFacts(rows=1000, tokens=100_000, longest=200, turns=1)


def card(name: str) -> GpuFacts:
    found = gpus.find(name)
    assert found is not None
    return found


def shape(name: str) -> ModelFacts:
    found = models.facts(name)
    assert found is not None
    return found


def case(
    model: str, table: dict[str, Any], gpu: str | None = "h200", data: DataFacts | None = None
) -> ForecastCase:
    facts = shape(model)
    data = data or (CHAT if table["recipe"] == "sft" else PROMPTS)
    device = Device(card(gpu) if gpu else None, cores=2, ram_bytes=24 * GIB)
    return ForecastCase(parse(model, table), facts, device, data)


def said(model: str, table: dict[str, Any], gpu: str | None = "h200", **more: Any) -> Forecast:
    data = CHAT if table["recipe"] == "sft" else PROMPTS
    return forecast(parse(model, table), shape(model), card(gpu) if gpu else None, data, **more)


EVERYTHING = [
    (model, table, gpu)
    for model in ("corral/tiny", "qwen3-0.6b", "qwen3-4b")
    for table in (SFT, GRPO, {**SFT, "method": "full"}, {**GRPO, "lora": {"rank": 128}})
    for gpu in (None, "l4", "h200")
]


@pytest.mark.parametrize(("model", "table", "gpu"), EVERYTHING)
def test_the_parts_add_up_and_the_numbers_are_sane(
    model: str, table: dict[str, Any], gpu: str | None
) -> None:
    one = said(model, table, gpu, cores=2, ram_bytes=24 * GIB, price_per_hour=2.0)
    assert sum(one.parts.values()) == one.peak_bytes
    assert all(size > 0 for size in one.parts.values())
    assert one.peak_bytes > shape(model).params * 2
    assert one.needed_bytes > one.peak_bytes
    assert one.budget_bytes is not None
    assert one.fits == (one.peak_bytes <= one.budget_bytes)
    assert one.fits == (not any("more than there is" in note for note in one.notes))
    assert one.total_s > one.setup_s + one.steps * one.step_s
    assert one.cost == pytest.approx(2.0 * one.total_s / 3600)
    assert (one.mfu is None) == (gpu is None)
    assert one.mfu is None or 0 < one.mfu < 0.6
    assert one.rows == 0 or one.rows <= 128
    json.dumps(one.to_table())


def test_more_of_anything_never_needs_less_memory() -> None:
    base = MemoryPlan(8192, "none", 128, 512)
    run = case("qwen3-0.6b", GRPO)
    peak = memory.peak_bytes(run, base)
    for bigger in (replace(base, micro_tokens=16384), replace(base, rows=256), replace(base, context=1024)):
        assert memory.peak_bytes(run, bigger) > peak
    assert memory.peak_bytes(run, replace(base, recompute="full")) < peak
    assert memory.peak_bytes(case("qwen3-0.6b", {**GRPO, "lora": {"rank": 64}}), base) > peak
    assert memory.peak_bytes(case("qwen3-4b", GRPO), base) > peak
    assert memory.peak_bytes(case("qwen3-0.6b", {**GRPO, "precision": "fp32"}), base) > peak


def test_recomputation_keeps_one_input_per_layer_and_token() -> None:
    run = case("qwen3-4b", {**SFT, "recompute": "full"})
    one = memory.parts(run, MemoryPlan(16384, "full"))
    assert one["inputs"] == 36 * 16384 * 2560 * 2
    without = memory.parts(run, MemoryPlan(16384, "none"))
    assert "inputs" not in without
    assert without["activations"] > 10 * one.get("activations", 0)


def test_known_parts_are_exact() -> None:
    run = case("qwen3-0.6b", GRPO)
    one = memory.parts(run, MemoryPlan(8192, "none", rows=128, context=500))
    assert one["weights"] == 596_049_920 * 2
    assert one["optimizer"] == 10_092_544 * 16
    # 128 rows of 8 pages and a spare one; keys and values of 28 layers of 8 heads of 128, in bf16.
    assert one["cache"] == (128 * 8 + 1) * 64 * 2 * 28 * 8 * 128 * 2
    assert memory.fused_elements(run.facts, 16, ("o_proj",)) == 16 * (2048 + 1024)
    # Below each of the four frozen matrices, of each layer: what reads 1024, 2048 or 3072 numbers.
    assert one["room"] == 28 * 16 * (3 * 1024 + 2048 + 2 * 1024 + 3072) * 2
    full = memory.parts(case("qwen3-0.6b", {**SFT, "method": "full"}), MemoryPlan(2048, "full"))
    assert full["optimizer"] == 596_049_920 * 14


def test_logits_never_exist_all_at_once() -> None:
    run = case("qwen3-0.6b", SFT)
    small, large = (memory.phases(run, MemoryPlan(tokens, "none"))["head"] for tokens in (16384, 32768))
    assert small.terms["logit_bytes"] == large.terms["logit_bytes"] == 2048 * 151_936


def test_the_fastest_plan_that_fits_is_taken_and_nothing_is_recomputed_without_need() -> None:
    roomy, tight = said("qwen3-4b", SFT, "h200"), said("qwen3-4b", {**SFT, "max_length": 8192}, "l4")
    assert roomy.recompute == "none"
    run = case("qwen3-4b", SFT)
    for other in plan.candidates(run):
        budget = plan.budget_bytes(run)
        assert budget is not None
        if memory.peak_bytes(run, other) <= budget:
            assert speed.step_s(run, other) >= roomy.step_s / 1.02
    assert tight.fits
    large = forecast(
        parse("qwen3-8b", {**SFT, "max_length": 8192}),
        shape("qwen3-8b"),
        card("l4"),
        replace(CHAT, longest=8192),
    )
    assert large.fits
    assert large.recompute == "full"


def test_what_the_user_fixes_is_kept() -> None:
    one = said("qwen3-0.6b", {**SFT, "micro_tokens": 4096, "recompute": "full"})
    assert (one.micro_tokens, one.recompute) == (4096, "full")


def test_fewer_sequences_are_sampled_at_once_where_the_cache_does_not_fit() -> None:
    table = {**GRPO, "max_length": 8192, "grpo": {"group_size": 32, "max_completion": 4096}}
    roomy, tight = said("qwen3-0.6b", table, "b200"), said("qwen3-0.6b", table, "l4")
    assert tight.fits
    assert tight.rows < roomy.rows


def test_a_pack_always_holds_the_longest_sequence() -> None:
    for longest in (100, 2000, 20_000):
        run = case("qwen3-0.6b", {**SFT, "max_length": 32_768}, data=replace(CHAT, longest=longest))
        assert min(one.micro_tokens for one in plan.candidates(run)) >= longest
    many_turns = case("qwen3-0.6b", GRPO, data=replace(PROMPTS, turns=None))
    assert plan.longest_sequence(many_turns) == 2048
    assert plan.longest_sequence(case("qwen3-0.6b", GRPO)) == 456


def test_what_does_not_fit_says_by_how_much() -> None:
    one = said("qwen3-8b", {**SFT, "method": "full"}, "l4")
    assert not one.fits
    assert "GiB more than there is" in one.notes[0]


def test_a_faster_card_and_less_work_take_less_time() -> None:
    assert said("qwen3-4b", SFT, "h100").step_s < said("qwen3-4b", SFT, "a100-pcie").step_s
    assert said("qwen3-0.6b", SFT).step_s < said("qwen3-4b", SFT).step_s
    assert said("qwen3-4b", GRPO).step_s < said("qwen3-4b", {**GRPO, "grpo": {"iterations": 2}}).step_s
    assert said("qwen3-4b", GRPO).step_s < said("qwen3-4b", {**GRPO, "grpo": {"beta": 0.1}}).step_s
    assert said("qwen3-4b", SFT).step_s < said("qwen3-4b", {**SFT, "method": "full"}).step_s
    assert said("qwen3-4b", SFT).step_s < said("qwen3-4b", {**SFT, "pack": False}).step_s
    alone = said("corral/tiny", SFT, None, cores=1)
    assert said("corral/tiny", SFT, None, cores=4).step_s < alone.step_s


def test_an_adapter_needs_two_thirds_of_full_trainings_work_en_c29() -> None:
    """EN-C29."""
    facts = shape("qwen3-4b")
    lora, full = parse("m", SFT), parse("m", {**SFT, "method": "full"})
    share = speed.flops_per_token(lora, facts, length=500) / speed.flops_per_token(full, facts, length=500)
    assert share == pytest.approx(0.67, abs=0.02)
    dense = 6 * (models.block_params(facts) + facts.vocab * facts.hidden)
    assert speed.flops_per_token(full, facts, length=0) == pytest.approx(dense)


def test_packs_are_counted_whole_and_on_average() -> None:
    constants = replace(calibration.default(), pack_fill=1.0)
    exact = speed.StepLoad(tokens=8192, trained=8192, pieces=16, mean=512, spread=0)
    assert speed.expected_packs(exact, 4096, constants) == 2
    assert speed.expected_packs(replace(exact, tokens=8193), 4096, constants) == 3
    # Half of such steps need a third pack.
    assert speed.expected_packs(replace(exact, spread=0.8), 4096, constants) == pytest.approx(2.5, abs=0.1)
    assert speed.expected_packs(replace(exact, tokens=2000, spread=0.1), 4096, constants) == pytest.approx(1)
    many = replace(exact, tokens=1e6, spread=0.8)
    assert speed.expected_packs(many, 4096, constants) == pytest.approx(1e6 / 4096 + 0.5, rel=0.01)


def test_decoding_is_slower_than_its_bandwidth_bound_but_not_by_much() -> None:
    run = case("qwen3-0.6b", GRPO)
    facts = run.facts
    for rows in (64, 256, 512):
        weights = block_params(facts) + facts.vocab * facts.hidden
        bound = 2 * (weights + 2 * facts.layers * facts.kv_width * rows * 640) / card("h200").bytes_per_s
        assert 1 < speed.decode_step_s(run, rows, 640) / bound < 6


def test_a_model_that_runs_on_transformers_own_layers_is_said_to_be_slower() -> None:
    def noted(method: str, **changes: Any) -> bool:
        train = parse("qwen3-4b", {**SFT, "method": method})
        one = forecast(train, replace(shape("qwen3-4b"), **changes), card("h200"), CHAT)
        return any("transformers' own layers" in note for note in one.notes)

    assert noted("lora", family="gemma3_text")
    assert noted("full", family="qwen2", attention_bias=True)
    assert not noted("lora", family="qwen2", attention_bias=True)
    assert not noted("full")


def test_unknown_rows_and_lengths_are_said_to_be_assumed() -> None:
    one = forecast(parse("qwen3-4b", SFT), shape("qwen3-4b"), card("h200"))
    assert any("rows are not counted" in note for note in one.notes)
    assert any("lengths are not known" in note for note in one.notes)
    assert one.steps == 32
    strange = gpus.seen("Somebody's card", 32 * GIB)
    assert strange is not None
    one = forecast(parse("qwen3-4b", SFT), shape("qwen3-4b"), strange, CHAT)
    assert any("speed of Somebody's card is not known" in note for note in one.notes)
    assert one.cost is None


def test_a_card_as_a_host_reports_it_keeps_its_own_memory() -> None:
    seen = gpus.seen("NVIDIA H200", 100 * GIB)
    assert seen is not None
    assert (seen.id, seen.memory_bytes) == ("h200", 100 * GIB)
    assert gpus.seen("Somebody's card", None) is None


def test_a_plan_that_is_given_is_forecast_as_it_is() -> None:
    run = case("qwen3-0.6b", SFT)
    one = forecast_plan(run, MemoryPlan(4096, "none"))
    assert one.plan == MemoryPlan(4096, "none")
    assert one.peak_bytes == memory.peak_bytes(run, MemoryPlan(4096, "none"))


def test_the_time_of_evaluations_and_setup_is_in_the_total() -> None:
    """MT-D11."""
    plain, often = said("qwen3-4b", SFT), said("qwen3-4b", {**SFT, "eval_fraction": 0.1, "eval_every": 1})
    assert often.steps < plain.steps
    assert often.total_s - often.steps * often.step_s > plain.total_s - plain.steps * plain.step_s
    waiting = said("qwen3-4b", SFT, machine_setup_s=300)
    assert waiting.total_s == pytest.approx(plain.total_s + 300)
    assert waiting.setup_s == pytest.approx(plain.setup_s + 300)


def test_every_constant_has_a_unit_and_an_origin_en_d16() -> None:
    """EN-D16."""
    rows = json.loads(calibration.source())["constants"]
    assert all(row["unit"] and row["from"] and isinstance(row["fitted"], bool) for row in rows)
    assert {row["name"] for row in rows if row["fitted"]} == {*fit.MEMORY, *fit.SPEED, *fit.SETUP}
    assert isinstance(calibration.default(), Calibration)


@pytest.mark.parametrize("change", [{"value": -1}, {"value": "2"}, {"value": True}, {"name": "nothing"}])
def test_constants_that_are_no_good_are_refused(change: dict[str, Any]) -> None:
    whole = json.loads(calibration.source())
    whole["constants"][0] |= change
    with pytest.raises(ValueError, match=r"nothing|saved_hidden"):
        calibration.read(json.dumps(whole))


def test_forecasting_imports_nothing_but_the_standard_library_en_d17() -> None:
    """EN-D17: `estimate` works without torch, without a GPU, and does not depend on torch's own trackers."""
    script = (
        "import sys\n"
        "import corral.recipes.offers, corral.recipes.forecast_report\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(roots - sys.stdlib_module_names - {'corral', '__main__'}))\n"
    )
    out = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_peak_is_what_the_card_must_have_free() -> None:
    """DEF-09: context and graphs are in it, and every figure comes from it alone."""
    constants = calibration.default()
    one = said("qwen3-4b", SFT)
    assert one.parts["context"] == constants.context_bytes
    assert one.needed_bytes == int(one.peak_bytes / (1 - constants.margin))
    assert one.budget_bytes == int(card("h200").memory_bytes * (1 - constants.margin))
    assert "context" not in said("qwen3-4b", SFT, None).parts


def test_what_the_compiled_layer_keeps_is_counted_and_not_fitted() -> None:
    """DEF-09: so shapes that no constant was fitted to are as near as those that were."""
    run = case("qwen3-4b", SFT)
    facts = run.facts
    kept = 4 * facts.hidden + 3 * (facts.query_width + facts.kv_width) + 3 * facts.intermediate
    assert memory.parts(run, MemoryPlan(8192, "none"))["activations"] == facts.layers * 8192 * kept * 2


def test_a_replayed_pass_keeps_its_memory_while_the_head_works() -> None:
    small, large = MemoryPlan(8192, "none"), MemoryPlan(16384, "none")
    run = case("qwen3-0.6b", SFT)
    assert memory.replayed(run, small)
    found = memory.phases(run, small)
    assert found["replay"].total(run.constants) > found["head"].total(run.constants)
    assert "replay" not in memory.phases(run, large)


def test_code_that_is_compiled_already_shortens_the_set_up() -> None:
    """DEF-09: a second run of a shape set up in 19 s and not in 49."""
    constants = calibration.default()
    every: frozenset[CodePart] = frozenset({"training", "sampling", "libraries"})
    cold, warm = said("qwen3-4b", GRPO), said("qwen3-4b", GRPO, compiled=every)
    first_s = constants.first_start_s + constants.compile_s + constants.compile_sampler_s
    assert cold.setup_s - warm.setup_s == pytest.approx(first_s)
    assert cold.total_s - warm.total_s == pytest.approx(cold.setup_s - warm.setup_s)
    assert any("starts about" in note for note in cold.notes)
    assert not any("starts about" in note for note in warm.notes)
    half = said("qwen3-4b", GRPO, compiled=frozenset({"sampling", "libraries"}))
    assert warm.setup_s < half.setup_s < cold.setup_s
    assert any(f"starts about {constants.compile_s:.0f} s" in note for note in half.notes)


def test_a_large_adapter_takes_its_time_to_attach() -> None:
    """Its numbers are drawn on the host: at rank 64 a 3B shape took 3 s more to its first step than at 8."""
    narrow, wide = (said("qwen3-4b", {**SFT, "lora": {"rank": rank}}) for rank in (8, 256))
    facts, rate = shape("qwen3-4b"), calibration.default().attach_weights_per_s
    more = lora_params(facts, 256, "all-linear") - lora_params(facts, 8, "all-linear")
    assert wide.setup_s - narrow.setup_s == pytest.approx(more / rate)
    assert wide.setup_s - narrow.setup_s > 10


def test_a_folder_is_not_fetched() -> None:
    train = parse("qwen3-4b", SFT)
    there = forecast(train, replace(shape("qwen3-4b"), source="folder"), card("h200"), CHAT)
    fetched = forecast(train, replace(shape("qwen3-4b"), source="hub"), card("h200"), CHAT)
    assert there.setup_s + 10 < fetched.setup_s
