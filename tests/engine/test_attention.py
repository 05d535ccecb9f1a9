"""Who sees whom in a pack: the rule as a dense table is the oracle for every way of computing it."""

from __future__ import annotations

import pytest
import torch
from families_for_tests import texts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from corral.engine.data.packing import Pack, pack
from corral.engine.data.sequences import Example
from corral.engine.model.attention import _block_mask, by_blocks, by_spans, layout_of

CPU = torch.device("cpu")
BLOCK = 128


def sees(segment: Tensor, prefix: Tensor) -> Tensor:
    """The rule itself, pair by pair."""
    there = segment.unsqueeze(0)
    places = torch.arange(segment.shape[0])
    near = (segment.unsqueeze(1) == there) | (prefix.unsqueeze(1) == there)
    return near & (places.unsqueeze(0) <= places.unsqueeze(1))


def densely(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Tensor:
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    near = torch.einsum("qhd,khd->hqk", q, k) * scale
    return torch.einsum("hqk,khd->qhd", near.masked_fill(~visible, float("-inf")).softmax(-1), v)


@st.composite
def packs(draw: st.DrawFn) -> Pack:
    """Sequences and groups in any mixture, with lengths near the borders of blocks, sometimes padded."""
    lengths = st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 255, 256, 257, 300]))
    examples: list[Example] = []
    for group in range(draw(st.integers(1, 3))):
        prefix = draw(lengths)
        members = draw(st.lists(lengths, min_size=1, max_size=3))
        shared = [Example([0] * (prefix + own), {}, group=group, prefix=prefix) for own in members]
        examples += shared if draw(st.booleans()) else [Example([0] * own, {}) for own in members]
    (made,) = pack(examples, 10_000, share_prefix=True, multiple=draw(st.sampled_from([1, 1, 128, 200])))
    return made


def by_lists(mask: BlockMask) -> Tensor:
    """What a kernel would compute from the lists of blocks: whole ones unseen, partial ones by the rule."""
    length = mask.seq_lengths[0]
    count = -(-length // BLOCK)
    places = torch.arange(length)
    rule = mask.mask_mod(places, places, places.unsqueeze(1), places.unsqueeze(0))
    found = torch.zeros(count * BLOCK, count * BLOCK, dtype=torch.bool)
    inside = torch.zeros_like(found)
    inside[:length, :length] = rule
    for numbers, indices, whole in (
        (mask.kv_num_blocks, mask.kv_indices, False),
        (mask.full_kv_num_blocks, mask.full_kv_indices, True),
    ):
        assert numbers is not None
        assert indices is not None
        for row in range(count):
            for column in indices[0, 0, row, : int(numbers[0, 0, row])].tolist():
                at = (slice(row * BLOCK, row * BLOCK + BLOCK), slice(column * BLOCK, column * BLOCK + BLOCK))
                assert not found[at].any(), "a block is listed twice"
                found[at] = True if whole else inside[at]
    return found[:length, :length]


@given(packs())
@settings(max_examples=60, derandomize=True)
def test_the_lists_of_blocks_are_exactly_the_rule(made: Pack) -> None:
    """Every pair that sees lies in a listed block, and one listed as whole has no pair that does not."""
    layout = layout_of(made.segment, made.prefix, CPU)
    mask = _block_mask(layout.segment, layout.prefix, layout.spans)
    assert torch.equal(by_lists(mask), sees(made.segment, made.prefix))


@given(packs())
@settings(max_examples=15, derandomize=True)
def test_the_backward_pass_reads_the_same_blocks(made: Pack) -> None:
    layout = layout_of(made.segment, made.prefix, CPU)
    mask = _block_mask(layout.segment, layout.prefix, layout.spans)
    for forward, backward in (
        ((mask.kv_num_blocks, mask.kv_indices), (mask.q_num_blocks, mask.q_indices)),
        ((mask.full_kv_num_blocks, mask.full_kv_indices), (mask.full_q_num_blocks, mask.full_q_indices)),
    ):
        assert pairs(*forward) == {(row, column) for column, row in pairs(*backward)}


def pairs(numbers: Tensor | None, indices: Tensor | None) -> set[tuple[int, int]]:
    assert numbers is not None
    assert indices is not None
    return {
        (row, column)
        for row, listed in enumerate(indices[0, 0].tolist())
        for column in listed[: int(numbers[0, 0, row])]
    }


def heads(length: int, *, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(length, n, 8, generator=draw) for n in (4, kv_heads, kv_heads))
    for tensor in (q, k, v):
        tensor.requires_grad_()
    return q, k, v


@given(packs(), st.sampled_from([1, 2, 4]))
@settings(max_examples=25, derandomize=True)
def test_attention_by_spans_is_the_rule_forward_and_backward(made: Pack, kv_heads: int) -> None:
    layout = layout_of(made.segment, made.prefix, CPU)
    inputs = heads(len(made.tokens), kv_heads=kv_heads)
    slope = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(0))

    ours = by_spans(layout.spans, 0.3)(*inputs)
    theirs = densely(*inputs, sees(made.segment, made.prefix), 0.3)

    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for one, other in zip(
        torch.autograd.grad(ours, inputs, slope), torch.autograd.grad(theirs, inputs, slope), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@given(packs(), st.sampled_from([1, 2, 4]))
@settings(max_examples=10, derandomize=True)
def test_attention_by_blocks_equals_attention_by_spans(made: Pack, kv_heads: int) -> None:
    layout = layout_of(made.segment, made.prefix, CPU)
    q, k, v = (t.detach() for t in heads(len(made.tokens), kv_heads=kv_heads))  # flex has no backward here
    mask = _block_mask(layout.segment, layout.prefix, layout.spans)

    ours = by_blocks(mask, 0.3)(q, k, v)

    torch.testing.assert_close(ours, by_spans(layout.spans, 0.3)(q, k, v), atol=1e-5, rtol=1e-5)


def test_no_dense_mask_is_made_for_a_gpu() -> None:
    """EN-D10: what is sent grows with the blocks, not with the pairs of tokens."""
    (made,) = pack(texts(*[512] * 16), 8192, share_prefix=False)
    layout = layout_of(made.segment, made.prefix, CPU)
    mask = _block_mask(layout.segment, layout.prefix, layout.spans)
    lists = [t for t in mask.as_tuple() if isinstance(t, Tensor)]
    assert max(t.numel() for t in lists) == (8192 // BLOCK) ** 2
    read = sum(int(t.sum()) for t in (mask.kv_num_blocks, mask.full_kv_num_blocks) if t is not None)
    assert read == 16 * (4 * 5 // 2)
