"""Compression: what is decoded is what was said, to the precision that it promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from corral.diloco.codec import BLOCK, Codec, Compression, Vector, padded

NUMBERS = arrays.arrays(
    np.float32, 2 * BLOCK, elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False), fill=st.just(0.0)
)


@given(NUMBERS)
@settings(max_examples=30, deadline=None)
def test_none_is_exact_and_bf16_is_torchs(numbers: Vector) -> None:
    assert np.array_equal(Codec("none").decode(Codec("none").encode(numbers)), numbers)
    narrow = torch.from_numpy(numbers.copy()).bfloat16().float().numpy()
    assert np.array_equal(Codec("bf16").decode(Codec("bf16").encode(numbers)), narrow)


@pytest.mark.parametrize(("compression", "steps"), [("int8", 127), ("int4", 7)])
@given(numbers=NUMBERS)
@settings(max_examples=30, deadline=None)
def test_integers_are_off_by_half_a_step_of_their_block_at_most(
    compression: Compression, steps: int, numbers: Vector
) -> None:
    codec = Codec(compression)
    found = codec.decode(codec.encode(numbers))
    step = np.abs(numbers.reshape(-1, BLOCK)).max(axis=1, keepdims=True) / steps
    off = np.abs(found - numbers).reshape(-1, BLOCK)
    assert (off <= step * 0.500001 + 1e-30).all()


@pytest.mark.parametrize("compression", ["none", "bf16", "int8", "int4"])
def test_any_run_of_blocks_is_decoded_alone(compression: Compression) -> None:
    codec = Codec(compression)
    numbers = padded(np.random.default_rng(0).normal(size=5 * BLOCK - 7).astype(np.float32))
    data = codec.encode(numbers)
    assert data.shape == (5, codec.block_bytes)
    whole = codec.decode(data)
    assert np.array_equal(codec.decode(data[2:4]), whole[2 * BLOCK : 4 * BLOCK])


def test_payloads_are_as_small_as_they_say() -> None:
    sizes = [Codec(one).block_bytes / BLOCK for one in ("none", "bf16", "int8", "int4")]
    assert sizes == [4.0, 2.0, 1.00390625, 0.50390625]
