"""Triton kernels. This can be imported where Triton is not installed; its functions cannot be called."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined"

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # there is none for this platform: only a GPU needs it
    triton = None

PAGE = 64
# A tensor core multiplies at least this many rows; fewer query heads than that are padded.
_MIN_ROWS = 16


if triton is not None:

    @triton.jit
    def _attend(
        q_ptr,
        k_ptr,
        v_ptr,
        table_ptr,
        length_ptr,
        out_ptr,
        top_ptr,
        sum_ptr,
        scale,
        table_stride,
        PARTS: tl.constexpr,
        KV_HEADS: tl.constexpr,
        GROUP: tl.constexpr,
        ROWS: tl.constexpr,
        SIZE: tl.constexpr,
        PAGE_LEN: tl.constexpr,
    ):
        """One sequence, one key head and its queries, one part of the pages: softmax as it goes."""
        row = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        part = tl.program_id(2)
        length = tl.load(length_ptr + row)
        pages = tl.cdiv(length, PAGE_LEN)
        share = tl.cdiv(pages, PARTS)
        first = part * share
        last = tl.minimum(first + share, pages)
        group = tl.arange(0, ROWS)
        size = tl.arange(0, SIZE)
        at = tl.arange(0, PAGE_LEN)
        heads = KV_HEADS * GROUP
        q_at = (row * heads + head * GROUP + group[:, None]) * SIZE + size[None, :]
        q = tl.load(q_ptr + q_at, mask=group[:, None] < GROUP, other=0.0)
        top = tl.full([ROWS], -1.0e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, SIZE], tl.float32)
        # As an argument a Python float may come as fp64, which would make everything after it so.
        factor = tl.cast(scale, tl.float32) * 1.4426950408889634
        for page in range(first, last):
            number = tl.load(table_ptr + row * table_stride + page).to(tl.int64)
            base = (number * KV_HEADS + head) * PAGE_LEN * SIZE
            there = page * PAGE_LEN + at < length
            k = tl.load(k_ptr + base + at[None, :] * SIZE + size[:, None], mask=there[None, :], other=0.0)
            v = tl.load(v_ptr + base + at[:, None] * SIZE + size[None, :], mask=there[:, None], other=0.0)
            near = tl.dot(q, k, input_precision="ieee") * factor
            near = tl.where(there[None, :], near, -1.0e30)
            higher = tl.maximum(top, tl.max(near, 1))
            shrink = tl.exp2(top - higher)
            weight = tl.exp2(near - higher[:, None])
            total = total * shrink + tl.sum(weight, 1)
            mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
            top = higher
        slot = ((row * PARTS + part) * heads + head * GROUP + group).to(tl.int64)
        inside = group < GROUP
        if PARTS == 1:
            done = (mixed / total[:, None]).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + slot[:, None] * SIZE + size[None, :], done, mask=inside[:, None])
        else:
            tl.store(out_ptr + slot[:, None] * SIZE + size[None, :], mixed, mask=inside[:, None])
            tl.store(top_ptr + slot, top, mask=inside)
            tl.store(sum_ptr + slot, total, mask=inside)

    @triton.jit
    def _join(
        mixed_ptr, top_ptr, sum_ptr, out_ptr, PARTS: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr
    ):
        """The parts of one head of one sequence, put together."""
        row = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        part = tl.arange(0, PARTS)
        size = tl.arange(0, SIZE)
        slot = (row * PARTS + part) * HEADS + head
        top = tl.load(top_ptr + slot)
        highest = tl.max(top, 0)
        weight = tl.exp2(top - highest)
        total = tl.sum(tl.load(sum_ptr + slot) * weight, 0)
        mixed = tl.load(mixed_ptr + slot[:, None] * SIZE + size[None, :])
        out = tl.sum(mixed * weight[:, None], 0) / total
        tl.store(out_ptr + (row * HEADS + head) * SIZE + size, out.to(out_ptr.dtype.element_ty))


def attend_pages(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor, scale: float
) -> Tensor:
    """Attention of one query per sequence over its pages.

    q [B, heads, D]; keys and values [pages, kv_heads, PAGE, D]; table int32 [B, most pages]; lengths int32
    [B], at least 1. Few sequences are cut into parts, so that the whole chip has work.
    """
    rows, heads, size = q.shape
    kv_heads = keys.shape[1]
    parts = 1
    while parts < 16 and rows * kv_heads * parts < 256:
        parts *= 2
    out = torch.empty_like(q)
    mixed = out if parts == 1 else q.new_empty((rows, parts, heads, size), dtype=torch.float32)
    top = out if parts == 1 else q.new_empty((rows, parts, heads), dtype=torch.float32)
    total = out if parts == 1 else torch.empty_like(top)
    _attend[(rows, kv_heads, parts)](
        q.contiguous(),
        keys,
        values,
        table,
        lengths,
        mixed,
        top,
        total,
        scale,
        table.stride(0),
        PARTS=parts,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        ROWS=max(_MIN_ROWS, triton.next_power_of_2(heads // kv_heads)),
        SIZE=size,
        PAGE_LEN=PAGE,
        num_warps=4,
        num_stages=3,
    )
    if parts > 1:
        _join[(rows, heads)](mixed, top, total, out, PARTS=parts, HEADS=heads, SIZE=size, num_warps=2)
    return out
