"""When a training pass is replayed. What a replay computes is seen on a GPU only: bench/engine/check.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families_for_tests import pair

from corral.engine.model.attention import Layout, _block_mask, copy_layout, layout_of
from corral.engine.model.backbone import Backbone
from corral.engine.training.cuda_graphs import GraphedPass, GraphedPasses
from corral.recipes import memory, models
from corral.recipes.forecast_case import Device, ForecastCase, MemoryPlan
from corral.recipes.train import parse
from corral.recipes.train_tables import Lora

LORA = Lora(rank=2)


def a_layout(*lengths: int) -> Layout:
    """As on a GPU, but in ordinary memory."""
    segment = torch.tensor([n for n, length in enumerate(lengths) for _ in range(length)])
    plain = layout_of(segment, torch.full_like(segment, -1), torch.device("cpu"))
    mask = _block_mask(plain.segment, plain.prefix, plain.spans)
    return Layout(plain.segment, plain.prefix, plain.spans, mask)


class Captured:
    """Counts what was captured, and gives a stand-in."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.lengths: list[int] = []

    def __call__(
        self, _backbone: Backbone, _trained: Any, tokens: torch.Tensor, *_: Any, **__: Any
    ) -> GraphedPass:
        self.lengths.append(tokens.shape[0])
        if self.error is not None:
            raise self.error
        return GraphedPass.__new__(GraphedPass)


def replays(
    capture: Captured, *, lora: Lora | None = LORA, is_scarce: Callable[[], bool] = lambda: False
) -> GraphedPasses:
    engine = pair("qwen3", lora).engine
    assert isinstance(engine._backbone, Backbone)
    return GraphedPasses(engine._backbone, [], capture=capture, is_scarce=is_scarce)


def take(made: GraphedPasses, *lengths: int, recompute: bool = False) -> GraphedPass | None:
    tokens = torch.zeros(sum(lengths), dtype=torch.long)
    return made.take(tokens, tokens, a_layout(*lengths), recompute=recompute)


def test_the_first_passes_run_as_they_are_and_then_one_graph_serves_all() -> None:
    capture = Captured()
    made = replays(capture)
    assert [take(made, 100, 156) is None for _ in range(5)] == [True, True, False, False, False]
    assert capture.lengths == [256]


def test_another_length_or_recomputation_is_another_graph() -> None:
    capture = Captured()
    made = replays(capture)
    for _ in range(3):
        take(made, 256)
    assert take(made, 128) is None
    for _ in range(3):
        take(made, 128, recompute=True)
    assert capture.lengths == [256, 128]
    made.drop()
    assert take(made, 128, recompute=True) is None


def test_where_memory_does_not_suffice_for_a_graph_passes_go_on_without() -> None:
    capture = Captured(torch.OutOfMemoryError("no"))
    made = replays(capture)
    assert [take(made, 256) for _ in range(5)] == [None] * 5
    assert capture.lengths == [256]


def test_none_is_made_where_memory_is_scarce() -> None:
    capture = Captured()
    made = replays(capture, is_scarce=lambda: True)
    assert [take(made, 256) for _ in range(5)] == [None] * 5
    assert not capture.lengths


def test_a_model_that_is_trained_as_a_whole_is_not_replayed() -> None:
    assert not replays(Captured(), lora=None).pays(16)


@pytest.mark.parametrize(("name", "tokens", "pays"), [
    ("Qwen/Qwen3-0.6B", 8192, True),
    ("Qwen/Qwen3-0.6B", 16384, False),
    ("Qwen/Qwen3-4B", 4096, False),
])  # fmt: skip
def test_the_forecast_knows_when_the_engine_replays(name: str, tokens: int, pays: bool) -> None:
    facts = models.facts(name)
    assert facts is not None
    train = parse(facts.id, {"recipe": "sft", "data": "x"}, facts)
    assert memory.replayed(ForecastCase(train, facts, Device(None)), MemoryPlan(tokens, "none")) is pays
    made = replays(Captured())
    made._weights = models.block_params(facts) // facts.layers
    assert made.pays(tokens) is pays


def test_the_weights_of_a_layer_are_counted_without_the_adapter() -> None:
    engine = pair("qwen3", LORA).engine
    assert isinstance(engine._backbone, Backbone)
    layer = engine.loaded.model.model.layers[0]
    frozen = [p for name, p in layer.named_parameters() if "base_layer" in name]
    assert GraphedPasses(engine._backbone, [])._weights == sum(p.numel() for p in frozen)


def test_what_a_pack_says_of_itself_is_copied_whole() -> None:
    source, target = a_layout(100, 30, 126, 128), a_layout(384)
    wanted = a_layout(100, 30, 126, 128)
    copy_layout(source, target)
    assert source.mask is not None
    assert target.mask is not None
    assert wanted.mask is not None
    assert torch.equal(target.segment, wanted.segment)
    assert torch.equal(target.mask.to_dense(), wanted.mask.to_dense())
    for name in ("q_num_blocks", "full_kv_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(target.mask, name), getattr(wanted.mask, name))
    # The rule reads the tensors that were written to.
    sees = target.mask.mask_mod
    zero = torch.tensor(0)
    assert not sees(zero, zero, torch.tensor(110), torch.tensor(50))
    assert sees(zero, zero, torch.tensor(110), torch.tensor(105))


def test_on_a_cpu_nothing_is_replayed() -> None:
    engine = pair("qwen3", LORA).engine
    assert engine._replays is None
