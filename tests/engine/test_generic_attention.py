"""The mask that a GPU is given says the same as the spans that a CPU goes through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from families_for_tests import VOCABULARY, answers, far, texts
from models_for_tests import KINDS, build
from torch import Tensor

from corral.engine.data.packing import Pack, pack
from corral.engine.model import generic_attention
from corral.engine.model.attention import _block_mask, layout_of
from corral.engine.model.generic_backbone import GenericBackbone

CPU = torch.device("cpu")


# Without a compiler, which is only for a GPU, it says that it is slow.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def a_pack() -> Pack:
    """Several blocks of 128 tokens, with borders inside them, shared prefixes and padding."""
    examples = [*texts(150, 40, 3), *answers(60, 31, 90, prompt=140), *texts(33, seed=1)]
    (part,) = pack(examples, 1024, share_prefix=True, multiple=640)
    return part


def both_ways(kind: Any, **changes: Any) -> tuple[Tensor, Tensor]:
    part = a_pack()
    layout = layout_of(part.segment, part.prefix, CPU)
    blocks = replace(layout, mask=_block_mask(layout.segment, layout.prefix, layout.spans))
    backbone = GenericBackbone(
        build(kind, max_position_embeddings=512, **changes), ref="a model", trained=True
    )
    with torch.no_grad():
        found = [
            backbone.train(part.tokens, part.positions, one, recompute=False)[: part.real]
            for one in (layout, blocks)
        ]
    return found[0], found[1]


@pytest.mark.parametrize("window", [20, 128, 200])
@pytest.mark.parametrize("kind", ["gemma3", "gemma2", "gpt_oss", "mistral"])
def test_windows_bounds_and_sinks_give_the_same_by_blocks_as_by_spans(kind: str, window: int) -> None:
    chosen = next(made for name, made in KINDS.items() if name.startswith(kind))

    spans, blocks = both_ways(chosen, sliding_window=window)

    assert far(blocks, spans) < 1e-5


def test_causal_layers_use_the_mask_that_is_there() -> None:
    spans, blocks = both_ways(KINDS["olmo2: norms behind"])

    assert far(blocks, spans) < 1e-5


def test_blocks_that_a_window_hides_are_not_read() -> None:
    length = 2048
    segment = torch.zeros(length, dtype=torch.int32)
    layout = layout_of(segment, segment - 1, CPU)
    mask = _block_mask(layout.segment, layout.prefix, layout.spans)

    def near(_b: Tensor, _h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (kv <= q) & (kv > q - 130)

    narrow = generic_attention._narrowed(replace(layout, mask=mask), torch.arange(length), near, 130)

    assert narrow.kv_num_blocks.tolist() == [[[1, 2, *[3] * 14]]]


def test_a_mask_that_is_not_ours_is_refused() -> None:
    heads = torch.zeros(1, 2, 3, 8)
    with pytest.raises(TypeError, match="does not hand on the mask"):
        generic_attention._attend(torch.nn.Identity(), heads, heads, heads, None)


def test_outside_a_pack_no_mask_is_made() -> None:
    model = build(KINDS["olmo2: norms behind"])
    model.set_attn_implementation(generic_attention.NAME)

    with pytest.raises(LookupError):
        model(torch.tensor([[1, 2, VOCABULARY - 1]]))
