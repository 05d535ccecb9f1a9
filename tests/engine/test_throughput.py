"""What a run says of its speed, its set-up and its memory."""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from jobs_for_tests import grpo, here, sft
from support.clock import ManualClock

from corral.engine.environments.run_environment import measure_prompts, open_environment
from corral.engine.model import compiled_code, tiny
from corral.engine.reports.events import StepStatus, line
from corral.engine.spec import JobPaths, read
from corral.engine.training.peak_memory import PeakMemory
from corral.engine.training.throughput import ThroughputMeter
from corral.recipes import models
from corral.recipes.forecast_case import MemoryPlan
from corral.recipes.train import parse


def stepped(meter: ThroughputMeter, clock: ManualClock, *took_s: float) -> list[StepStatus]:
    found = []
    for seconds in took_s:
        meter.begin()
        meter.count(1000)
        clock.advance(seconds)
        step = len(meter.steps_s) + 1
        found.append(meter.end_step(step, 30, headline="loss", metrics={"loss": 1.0}))
    return found


def test_the_rate_is_the_steps_own_from_the_second_step_on() -> None:
    """DEF-08: the first step compiles; twenty steps later its time is still no part of a speed."""
    clock = ManualClock()
    meter = ThroughputMeter(flops_per_token=1e6, peak_flops=1e10, clock=clock.monotonic)

    first, second, *rest = stepped(meter, clock, 59.0, *[0.5] * 24)

    assert (first.tokens_per_s, first.mfu, first.eta_s) == (None, None, None)
    assert "tokens_per_s" not in first.metrics
    assert first.metrics["step_s"] == 59.0
    assert "tok/s" not in line(first)
    assert (second.tokens_per_s, second.mfu, second.eta_s) == (2000.0, 0.2, 14.0)
    assert {status.tokens_per_s for status in rest} == {2000.0}


def test_compiling_and_making_graphs_is_set_up() -> None:
    """DEF-08: what the first steps and the first evaluation took longer than others."""
    clock = ManualClock()
    meter = ThroughputMeter(clock=clock.monotonic, evaluations_s=[21.0, 1.0, 1.0])

    stepped(meter, clock, 30.5, 0.5, 2.5, 0.5, 0.5, 0.5)

    assert meter.usual_step_s() == 0.5
    assert meter.warming_s() == 30.0 + 2.0 + 20.0


@pytest.mark.parametrize("took_s", [(), (3.0,)])
def test_a_run_of_one_step_has_no_usual_one_to_compare_with(took_s: tuple[float, ...]) -> None:
    clock = ManualClock()
    meter = ThroughputMeter(clock=clock.monotonic)
    stepped(meter, clock, *took_s)
    assert meter.warming_s() == 0.0
    assert meter.usual_step_s() == (took_s[0] if took_s else None)


@pytest.mark.skipif(sys.platform != "linux", reason="another unit")
def test_the_peak_of_a_run_without_a_gpu_is_its_resident_memory() -> None:
    """DEF-09."""
    assert PeakMemory.begin().bytes() == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_the_record_says_what_the_forecast_was_made_from(tmp_path: Path) -> None:
    """DEF-09: peak, step and set-up as they were, with the shape, the settings and the data of the run."""
    here(sft(tmp_path, steps=4))

    said = json.loads((tmp_path / "output" / "forecast.json").read_bytes())

    assert said["facts"]["layers"] == 4
    assert said["train"]["batch_size"] == 8
    assert said["forecast"]["data"]["rows"] == 80
    assert said["forecast"]["compiled"] == []
    assert said["actual"]["setup_s"] >= said["actual"]["warming_s"] >= 0
    assert said["actual"]["peak_bytes"] > 0
    parts = said["actual"]["setup_parts_s"]
    assert set(parts) == {"start", "load", "data", "adapter"}
    assert 0 < sum(parts.values()) <= said["actual"]["setup_s"]
    assert said["actual"]["step_parts_s"]["waiting"] <= said["actual"]["step_s"]


def test_the_parts_of_a_step_are_told_without_the_first_steps() -> None:
    clock = ManualClock()
    meter = ThroughputMeter(clock=clock.monotonic)
    for sampling, waiting in [(9.0, 9.0), (9.0, 9.0), (9.0, 9.0), (2.0, 0.5), (4.0, 0.0)]:
        meter.begin()
        meter.spend("sampling", sampling / 2)
        meter.spend("sampling", sampling / 2)
        if waiting:
            meter.spend("waiting", waiting)
        meter.end_step(1, 5, headline="loss", metrics={"loss": 1.0})
    assert meter.usual_parts_s() == {"sampling": 3.0, "waiting": 0.25}
    assert ThroughputMeter().usual_parts_s() == {}


def test_the_cache_is_made_for_the_prompts_that_a_run_has(tmp_path: Path) -> None:
    """DEF-09: an environment with tasks of its own for evaluation had a cache for max_length."""
    path = grpo(tmp_path, max_length=2000)
    spec = read(path)
    train = parse(spec.model, spec.table)
    places = JobPaths(path, tmp_path / "output", tmp_path / "checkpoints")
    _, tokenizer = tiny.build()

    with open_environment(train, places, {}) as process:
        found = measure_prompts(process, tokenizer, train)

    assert process.description.eval
    assert found.facts.longest is not None
    assert found.context == found.usual == found.facts.longest + train.grpo.max_completion < 100


def test_what_was_compiled_is_known_to_the_next_run_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DEF-09: a second run of a shape sets up in half the time, and its forecast says so."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    facts = models.facts("qwen3-0.6b")
    assert facts is not None
    train, plan = (
        parse("qwen3-0.6b", {"recipe": "grpo", "environment": "e"}),
        MemoryPlan(8192, "none", 64, 512),
    )
    keys = compiled_code.keys(train, facts, plan, device="H200")
    assert compiled_code.known(keys) == frozenset()

    compiled_code.remember(keys.values())

    assert compiled_code.known(keys) == {"training", "sampling", "libraries"}
    longer = compiled_code.keys(train, facts, replace(plan, micro_tokens=4096), device="H200")
    assert compiled_code.known(longer) == {"sampling", "libraries"}
    deeper = compiled_code.keys(train, replace(facts, layers=30), plan, device="H200")
    assert compiled_code.known(deeper) == {"training", "sampling", "libraries"}
    for other in (replace(facts, hidden=2048), replace(facts, qk_norm=False)):
        # What every run on the host loads is there, whatever its model is.
        assert compiled_code.known(compiled_code.keys(train, other, plan, device="H200")) == {"libraries"}
    assert not compiled_code.known(compiled_code.keys(train, facts, plan, device="L4"))
