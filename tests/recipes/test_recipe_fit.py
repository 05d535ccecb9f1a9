"""Calibration: the constants come back from runs that were made with known ones, and the errors are told."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench import forecast as bench_forecast  # noqa: E402
from bench import forecast_results  # noqa: E402
from bench.engine import fit_calibration as fit  # noqa: E402
from corral.recipes import calibration, memory, models, speed  # noqa: E402
from corral.recipes.calibration import Calibration  # noqa: E402
from corral.recipes.forecast_case import MemoryPlan  # noqa: E402
from corral.recipes.forecast_report import report  # noqa: E402

# Where measured runs are kept once there are some; `bench/engine` writes them.
MEASURED = ROOT / "bench" / "results" / "engine-forecast-runs.json"
PRODUCT = ROOT / "bench" / "results" / "forecast.json"

TRUTH = replace(
    calibration.default(),
    live_layer=1.1,
    final_hidden=7.0,
    logit_bytes=6.2,
    workspace_bytes=4.2e8,
    graph_logit_bytes=7.0,
    train_efficiency=0.38,
    moved_times=12.0,
    pack_s=0.009,
    decode_efficiency=0.71,
    decode_layer_s=5e-5,
)


def rows(truth: Calibration, *, noise: float, seed: int = 0) -> list[dict[str, Any]]:
    """Runs as the benchmark would write them, of a world in which `truth` holds."""
    rng = random.Random(seed)
    found: list[dict[str, Any]] = []
    for model in ("qwen3-0.6b", "qwen3-4b"):
        for recompute in ("none", "full"):
            for tokens in (2048, 4096, 8192, 16384):
                for rank in (16, 64):
                    sampled = tokens == 8192
                    table: dict[str, Any] = {"recipe": "sft", "data": "x", "lora": {"rank": rank}}
                    data: dict[str, Any] = {"rows": 1000, "tokens": 400_000, "longest": 2000, "spread": 0.0}
                    plan = {"micro_tokens": tokens, "recompute": recompute}
                    if sampled:
                        table = {"recipe": "grpo", "environment": "e", "lora": {"rank": rank}}
                        data = {
                            "rows": 100,
                            "tokens": 25_600,
                            "longest": 256,
                            "completion": 256,
                            "spread": 0.0,
                        }
                        plan |= {"rows": 32 * rank // 4, "context": 512}
                    found.append(
                        {"model": model, "train": table, "gpu": "NVIDIA H200", "plan": plan, "data": data}
                    )
    for row in found:
        run = fit._read(row)
        case = replace(run.case, constants=truth)
        row["peak_bytes"] = memory.peak_bytes(case, run.plan) * (1 + rng.uniform(-noise, noise))
        row["step_s"] = speed.step_s(case, run.plan) * (1 + rng.uniform(-noise, noise))
    return found


def test_memory_constants_are_found_again_and_hardly_ever_too_low() -> None:
    runs = fit.read(json.dumps(rows(TRUTH, noise=0.01)))
    fitted = fit.fit_memory(runs, calibration.default())
    errors = fit.memory_errors(runs, fitted)
    assert len(errors) == 32
    assert median(map(abs, errors)) <= 0.03
    assert max(map(abs, errors)) <= 0.08
    assert min(errors) >= -0.03
    assert max(map(abs, fit.memory_errors(runs, calibration.default()))) > 0.08


def test_what_was_fitted_holds_for_runs_that_were_not_in_it() -> None:
    runs = fit.read(json.dumps(rows(TRUTH, noise=0.01, seed=1)))
    fitted = fit.fit_memory(runs[::2], calibration.default())
    errors = fit.memory_errors(runs[1::2], fitted)
    assert median(map(abs, errors)) <= 0.03
    assert min(errors) >= -0.03
    assert max(errors) <= 0.08


def test_time_constants_are_found_again() -> None:
    runs = fit.read(json.dumps(rows(TRUTH, noise=0.02)))
    fitted = fit.fit_speed(runs, calibration.default())
    assert median(map(abs, fit.speed_errors(runs, fitted))) <= 0.05
    assert max(map(abs, fit.speed_errors(runs, fitted))) <= 0.15
    assert fitted.train_efficiency == pytest.approx(TRUTH.train_efficiency, rel=0.2)


def test_without_runs_nothing_changes() -> None:
    assert fit.fit_memory([], calibration.default()) == calibration.default()
    assert fit.fit_speed([], calibration.default()) == calibration.default()


def test_the_file_that_is_written_is_the_one_that_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(rows(TRUTH, noise=0.0)[:6]))
    assert fit.main([str(path), "H200, 6 runs"]) == 0
    out, told = capsys.readouterr()
    made = tmp_path / "calibration.json"
    made.write_text(out)
    assert calibration.read(made.read_text("utf-8")).live_layer != calibration.default().live_layer
    origins = {row["name"]: row["from"] for row in json.loads(out)["constants"]}
    assert origins["live_layer"] == "H200, 6 runs"
    assert origins["start_s"] != "H200, 6 runs"
    assert "memory: 6 runs, median" in told
    assert fit.main([]) == 2


def test_a_run_of_any_shape_can_be_measured_and_a_strange_one_is_refused() -> None:
    shape = {key: value for key, value in asdict(models.catalogue()["qwen3-0.6b"]).items() if key != "params"}
    row = {**rows(TRUTH, noise=0.0)[0], "model": {**shape, "id": "mine", "layers": 3, "surplus": 1}}
    run = fit.read(json.dumps([row]))[0]
    assert run.case.facts.params == models.count_params(run.case.facts)
    assert run.plan == MemoryPlan(2048, "none")
    for wrong in ({"model": "nobody/nothing"}, {"gpu": "Voodoo 2"}):
        with pytest.raises(ValueError, match=r"nobody/nothing|Voodoo 2"):
            fit.read(json.dumps([{**row, **wrong}]))


def test_equations_without_a_solution_are_said_so() -> None:
    assert fit.solve([[2.0, 1.0], [1.0, 3.0]], [3.0, 5.0]) == pytest.approx([0.8, 1.4])
    assert fit.solve([[0.0, 1.0], [1.0, 0.0]], [2.0, 3.0]) == pytest.approx([3.0, 2.0])
    with pytest.raises(ValueError, match="do not determine"):
        fit.solve([[1.0, 1.0], [1.0, 1.0]], [1.0, 2.0])


def product_runs(*sets: str) -> list[dict[str, Any]]:
    kept = json.loads(PRODUCT.read_text("utf-8"))
    return [run for run in kept["runs"] if run["set"] in sets]


def test_the_shipped_constants_keep_their_bounds_on_the_measured_runs_en_d15() -> None:
    """DEF-09, EN-D15: peaks as `corral forecast report` compares them, of whole runs; those that
    constants were fitted to and those that they were not, each by themselves."""
    for sets in (("fit",), forecast_results.SHOWN):
        runs = fit.read(json.dumps([forecast_results.row(run) for run in product_runs(*sets)]))
        errors = fit.memory_errors(runs, calibration.default())
        assert len(errors) >= 4
        assert median(map(abs, errors)) <= 0.03
        assert max(map(abs, errors)) <= 0.08
        assert min(errors) >= -0.03


def test_the_shipped_constants_of_time_keep_their_bounds_on_the_runs_they_were_fitted_to() -> None:
    runs = fit.read(json.dumps(forecast_results.fitted_rows({"runs": product_runs("fit", "plain", "seen")})))
    assert len(runs) == 28
    assert median(map(abs, fit.speed_errors(runs, calibration.default()))) <= 0.10
    # On five hosts, each at a pace of its own, which was not recorded then.
    assert median(map(abs, fit.setup_errors(runs, calibration.default()))) <= 0.16


def test_what_held_out_runs_said_of_their_time_is_within_its_bounds() -> None:
    """What each run recorded before it began."""
    held_out = product_runs(*forecast_results.SHOWN)
    assert len(held_out) >= 7
    steps, whole = (
        [forecast_results.error(run, key, forecast_results.said_then(run)) for run in held_out]
        for key in ("step_s", "total_s")
    )
    assert median(map(abs, steps)) <= 0.10
    assert median(map(abs, whole)) <= 0.20


def test_a_table_says_which_of_its_numbers_were_measured() -> None:
    """What a run said is what it recorded, whatever the formula says by now."""
    runs = product_runs(*forecast_results.SHOWN)
    kept, then = {"machine": "H200", "runs": runs}, runs[0]["commit"]
    alone = forecast_results.page(kept, then)
    assert "Not a measurement" not in alone
    later = forecast_results.page(kept, "abc")
    assert later.startswith(alone.rstrip())
    assert "**Not a measurement.** `was` is as above; `said` is by the formula of commit abc." in later


def test_no_held_out_shape_is_fitted_to() -> None:
    fitted, held_out = ({one.shape for one in bench_forecast.SETS[name]} for name in ("fit", "held_out"))
    assert not fitted & held_out
    kept = {"runs": [{"set": "held_out"}]}
    assert forecast_results.fitted_rows(kept) == []


def test_the_speeds_of_the_engine_alone_keep_their_bound() -> None:
    """Without what a run does around its steps, which these did not."""
    runs = fit.read(MEASURED.read_text("utf-8"))
    assert len(runs) >= 10
    alone = replace(calibration.default(), sequence_s=1e-9)
    assert median(map(abs, fit.speed_errors(runs, alone))) <= 0.07


def test_forecasts_are_compared_with_what_happened() -> None:
    made = report(
        [
            {
                "run": "a",
                "forecast": {"peak_bytes": 110, "step_s": 1.0},
                "actual": {"peak_bytes": 100, "step_s": 2.0},
            },
            {"run": "b", "forecast": {"peak_bytes": 98}, "actual": {"peak_bytes": 100, "step_s": 2.0}},
            {"run": "c", "forecast": None, "actual": {"peak_bytes": 100}},
            {
                "forecast": {"peak_bytes": "much", "step_s": float("nan")},
                "actual": {"peak_bytes": 0, "step_s": 1},
            },
        ]
    )
    assert made.left_out == 2
    assert [(line.run, line.key) for line in made.lines] == [
        ("a", "peak_bytes"),
        ("a", "step_s"),
        ("b", "peak_bytes"),
    ]
    memory_summary, step_summary = made.summaries
    assert memory_summary.count == 2
    errors = (memory_summary.median, memory_summary.worst, memory_summary.under)
    assert errors == pytest.approx((0.06, 0.1, -0.02))
    assert step_summary.under == pytest.approx(-0.5)
