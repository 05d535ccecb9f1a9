"""What the recipes say of the engine is what the engine is."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from corral.recipes import calibration, models


def engine(name: str) -> Any:
    pytest.importorskip("torch")
    return importlib.import_module(f"corral.engine.{name}")


def test_the_catalogue_describes_the_tiny_model_as_it_is() -> None:
    config = engine("model.tiny").config()
    read, listed = models.from_config(config.to_dict(), id="corral/tiny"), models.catalogue()["corral/tiny"]
    for name in (
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "intermediate",
        "vocab",
        "tied",
        "context",
    ):
        assert getattr(read, name) == getattr(listed, name), name
    assert read.params == listed.params


def test_the_families_are_those_that_the_decoder_runs() -> None:
    assert engine("model.decoder").FAMILIES == models.FAMILIES


def test_sizes_that_memory_is_counted_in_are_the_engines() -> None:
    constants = calibration.default()
    assert constants.chunk_tokens == engine("engine")._CHUNK
    assert constants.prefill_tokens == engine("sampling.sampler")._PREFILL
    assert constants.replay_work == engine("training.cuda_graphs")._MOST_WORK
    assert constants.page_tokens == engine("model.kernels").PAGE
