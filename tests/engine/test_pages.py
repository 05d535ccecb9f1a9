"""The key-value cache: who uses a page, and what lies in it."""

from __future__ import annotations

import torch
from families_for_tests import build
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.engine.model.decoder import Decoder
from corral.engine.model.kernels import PAGE
from corral.engine.sampling.kv_cache import SPARE, KvCache


def made(count: int = 9) -> KvCache:
    return KvCache.allocate(Decoder(build("qwen3"), trained=False), count)


def test_pages_begin_as_zeros_and_the_spare_one_is_never_handed_out() -> None:
    pages = made()
    assert pages.keys.shape == pages.values.shape == (2, 9, 2, PAGE, 16)
    assert not pages.keys.any()
    assert not pages.values.any()
    assert sorted(pages.take(8)) == [page for page in range(9) if page != SPARE]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=60))
@settings(max_examples=50, derandomize=True)
def test_a_page_is_free_exactly_when_nobody_uses_it(steps: list[tuple[int, int]]) -> None:
    pages = KvCache(
        torch.zeros(1, 9, 1, PAGE, 1), torch.zeros(1, 9, 1, PAGE, 1), [0] * 9, list(range(8, 0, -1))
    )
    held: list[list[int]] = []
    for kind, amount in steps:
        if kind == 0 and amount <= len(pages.free):
            held.append(pages.take(amount))
        elif kind == 1 and held:
            shared = list(held[amount % len(held)])
            pages.share(shared)
            held.append(shared)
        elif kind >= 2 and held:
            pages.release(held.pop(amount % len(held)))
        uses = [sum(page in row for row in held) for page in range(9)]
        assert pages.uses == uses
        assert sorted(pages.free) == [page for page in range(1, 9) if not uses[page]]


def test_a_copy_is_of_all_layers_and_leaves_its_source() -> None:
    pages = made()
    pages.keys.normal_()
    pages.values.normal_()
    before = pages.keys.clone(), pages.values.clone()

    pages.copy([1, 1, 2], [5, 6, 7])

    for cache, old in zip((pages.keys, pages.values), before, strict=True):
        assert torch.equal(cache[:, [5, 6, 7]], old[:, [1, 1, 2]])
        assert torch.equal(cache[:, [0, 1, 2, 3, 4, 8]], old[:, [0, 1, 2, 3, 4, 8]])


def test_keys_and_values_are_stored_where_they_are_told_to_be() -> None:
    pages = made()
    k, v = torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    at, offsets = torch.tensor([4, 4, 2]), torch.tensor([0, 63, 5])

    pages.store(1, at, offsets, k, v)

    assert torch.equal(pages.keys[1][at, :, offsets], k)
    assert torch.equal(pages.values[1][at, :, offsets], v)
    assert pages.keys.ne(0).sum() == k.numel()


def test_pages_are_counted_up() -> None:
    assert [KvCache.needed(tokens) for tokens in (1, 63, 64, 65, 128, 129)] == [1, 1, 1, 2, 2, 3]
