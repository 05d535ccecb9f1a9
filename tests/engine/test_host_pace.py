"""A host that sets runs up slowly is known to do so from its second run on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from corral.engine.model import compiled_code, host_pace
from corral.recipes import gpus, models
from corral.recipes.forecast import Forecast, forecast
from corral.recipes.train import parse


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def said(pace: float) -> Forecast:
    facts, gpu = models.facts("qwen3-0.6b"), gpus.find("h200")
    assert facts is not None
    train = parse(facts.id, {"recipe": "sft", "data": "chat.jsonl"}, facts)
    # Weights that are there already: what comes over the network has a pace of its own.
    return forecast(train, replace(facts, source="folder"), gpu, pace=pace)


def test_the_next_set_up_is_forecast_at_the_pace_of_the_last_ones() -> None:
    """DEF-08, DEF-09: a forecast that is true through the product, on hosts of different speed."""
    first = said(host_pace.usual())
    assert first.pace == 1.0

    # One run is as much as what is usual everywhere.
    host_pace.remember(first, 1.5 * first.setup_s)
    second = said(host_pace.usual())
    assert second.setup_s == pytest.approx(1.25 * first.setup_s)

    # What is left is the pace of the host, not that of the last forecast.
    host_pace.remember(second, 1.5 * first.setup_s)
    assert host_pace.usual() == pytest.approx(1.5)


def test_one_odd_run_and_a_broken_file_do_not_count() -> None:
    usual = said(1.0)
    for times in (1.2, 1.2, 100.0):
        host_pace.remember(usual, times * usual.setup_s)
    assert host_pace.usual() == pytest.approx(1.2)

    (compiled_code.folder() / "pace.json").write_text('{"not": "a list"')
    assert host_pace.usual() == 1.0
