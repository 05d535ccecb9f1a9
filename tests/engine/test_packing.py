"""Packing: every example comes back exactly, nobody sees a neighbour, and it costs no time."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.engine.data.packing import Pack, PackingError, pack, plan
from corral.engine.data.sequences import Example
from corral.recipes import calibration
from corral.recipes.speed import StepLoad, grouped_packs


def example(tokens: list[int], *, trained_from: int = 1, group: int = -1, prefix: int = 0) -> Example:
    weights = [0.0] * trained_from + [0.5 + i for i in range(len(tokens) - trained_from)]
    return Example(tokens, {"ce": weights}, group, prefix)


def visible(pack: Pack) -> torch.Tensor:
    """The attention rule of the contract, pair by pair."""
    segment, prefix = pack.segment.tolist(), pack.prefix.tolist()
    rule = [
        [s <= t and segment[s] in (segment[t], prefix[t]) for s in range(len(segment))]
        for t in range(len(segment))
    ]
    return torch.tensor(rule, dtype=torch.bool)


def unpack(pack: Pack) -> dict[int, tuple[list[int], list[int], dict[str, list[float]]]]:
    """What each example of a pack is, as its own last token sees it: tokens, positions, streams."""
    seen = visible(pack)
    found = {}
    for place, index in enumerate(pack.index):
        start, end = pack.spans[place]
        past = seen[end].nonzero().flatten()
        own = end - start
        streams = {
            name: [0.0] * (len(past) - own) + values[start:end].tolist()
            for name, values in pack.streams.items()
        }
        assert pack.targets[start:end].tolist() == pack.tokens[past].tolist()[len(past) - own :]
        found[index] = (pack.tokens[past].tolist(), pack.positions[past].tolist(), streams)
    return found


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Example], int, int]:
    capacity = draw(st.integers(8, 48))
    examples = []
    for group in range(draw(st.integers(0, 5))):
        prefix = draw(st.integers(1, capacity // 2))
        prompt = draw(st.lists(st.integers(1, 9), min_size=prefix, max_size=prefix))
        for _ in range(draw(st.integers(1, 6))):
            tail = draw(st.lists(st.integers(1, 9), max_size=capacity - prefix))
            examples.append(
                example([*prompt, *tail], trained_from=prefix, group=group, prefix=prefix),
            )
    for tokens in draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=capacity), max_size=6)):
        examples.append(Example(tokens, {"policy": [0.0, *([1.5] * (len(tokens) - 1))]}))
    examples = draw(st.permutations(examples))
    return examples, capacity, draw(st.sampled_from([1, 4, 16]))


@settings(max_examples=80)
@given(batches(), st.booleans())
def test_every_example_is_recovered_exactly(batch: tuple[list[Example], int, int], share: bool) -> None:
    """EN-D01: packed sequences are the separate sequences."""
    examples, capacity, multiple = batch
    packs = pack(examples, capacity, share_prefix=share, multiple=multiple)
    found = {index: value for one in packs for index, value in unpack(one).items()}
    assert sorted(index for one in packs for index in one.index) == list(range(len(examples)))
    names = {name for each in examples for name in each.streams}
    for index, each in enumerate(examples):
        tokens, positions, streams = found[index]
        assert tokens == list(each.tokens)
        assert positions == list(range(len(tokens)))
        for name in names:
            assert streams[name] == list(each.streams.get(name, [0.0] * len(tokens)))


@settings(max_examples=60)
@given(batches(), st.booleans())
def test_no_token_sees_another_example(batch: tuple[list[Example], int, int], share: bool) -> None:
    examples, capacity, multiple = batch
    for one in pack(examples, capacity, share_prefix=share, multiple=multiple):
        seen = visible(one)
        for t, s in seen.nonzero().tolist():
            if one.example[t] >= 0:
                assert one.example[s] in (one.example[t], -1)
                assert s < one.real
        for t in range(len(one.tokens)):
            # What a token sees, itself included, is one unbroken run of positions from 0.
            assert sorted(one.positions[seen[t]].tolist()) == list(range(int(one.positions[t]) + 1))


@settings(max_examples=60)
@given(batches(), st.booleans())
def test_a_pack_keeps_its_promises(batch: tuple[list[Example], int, int], share: bool) -> None:
    examples, capacity, multiple = batch
    for one in pack(examples, capacity, share_prefix=share, multiple=multiple):
        size = len(one.tokens)
        assert one.real <= capacity
        assert size % multiple == 0
        assert size - one.real < multiple
        assert (one.example[one.real :] == -1).all()
        assert (one.targets[one.real :] == 0).all()
        assert set(one.segment[: one.real].tolist()).isdisjoint(one.segment[one.real :].tolist())
        for stream in one.streams.values():
            assert stream.shape == (size,)
            assert stream.dtype is torch.float32
            assert (stream[one.example == -1] == 0).all()
        assert one.tokens.dtype is one.targets.dtype is one.positions.dtype is torch.int64
        assert one.example.dtype is one.segment.dtype is one.prefix.dtype is torch.int32


def test_a_group_in_one_pack_holds_its_prompt_once() -> None:
    prompt = [7, 8, 9]
    examples = [example([*prompt, *([k] * (k + 1))], trained_from=3, group=4, prefix=3) for k in (1, 2, 3)]
    [one] = pack(examples, 64, share_prefix=True)
    assert one.tokens.tolist() == [7, 8, 9, 1, 1, 9, 2, 2, 2, 9, 3, 3, 3, 3]
    assert one.targets.tolist() == [8, 9, 1, 1, 0, 2, 2, 2, 0, 3, 3, 3, 3, 0]
    assert one.positions.tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5, 2, 3, 4, 5, 6]
    assert one.segment.tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3]
    assert one.prefix.tolist() == [-1, -1, *([0] * 12)]
    assert one.example.tolist() == [-1, -1, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2]
    assert one.spans == [(2, 4), (5, 8), (9, 13)]
    assert one.index == [0, 1, 2]


def test_a_group_too_large_for_a_pack_is_split_and_repeats_its_prompt() -> None:
    examples = [example([5] * 10 + [k] * 6, trained_from=10, group=0, prefix=10) for k in range(1, 7)]
    packs = pack(examples, 24, share_prefix=True)
    assert [len(one.index) for one in packs] == [2, 2, 2]
    assert [one.real for one in packs] == [23, 23, 23]


def test_groups_are_cut_where_whole_ones_would_leave_packs_half_empty() -> None:
    """Eight groups of 1131 tokens: two do not fit 2048, but parts of them do."""
    examples = [
        example([5] * 100 + [k] * 128, trained_from=100, group=group, prefix=100)
        for group in range(8)
        for k in range(8)
    ]
    packs = pack(examples, 2048, share_prefix=True)
    assert len(packs) == 5
    assert sorted(index for one in packs for index in one.index) == list(range(64))
    load = StepLoad(8 * (100 + 8 * 128), 64 * 128, 64, 228, 0.0, 100, 128, 64, 8)
    assert grouped_packs(load, 2048, calibration.default()) == 5


def test_sharing_takes_fewer_tokens_than_not_sharing() -> None:
    examples = [example([5] * 100 + [k] * 20, trained_from=100, group=0, prefix=100) for k in range(8)]
    shared = sum(one.real for one in pack(examples, 4096, share_prefix=True))
    apart = sum(one.real for one in pack(examples, 4096, share_prefix=False))
    assert (shared, apart) == (99 + 8 * 21, 8 * 120)


def test_values_without_a_weight_may_be_set_inside_a_shared_prefix() -> None:
    streams = {"policy": [0.0, 0.0, 1.0], "advantage": [2.0, 2.0, 2.0]}
    [one] = pack([Example([1, 2, k], streams, 0, 2) for k in (3, 4)], 16, share_prefix=True)
    assert one.streams["advantage"].tolist() == [0.0, 2.0, 0.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        ([example([1]), example([1] * 9)], "example 1 has 9 tokens; a pack holds 8"),
        ([Example([], {})], "example 0 has no tokens"),
        ([Example([1, 2], {"ce": [0.0]})], "example 0 has 2 tokens and 1 values of stream 'ce'"),
        ([Example([1, 2], {}, 0, 3)], "example 0 has 2 tokens and a prefix of 3"),
        (
            [example([1, 2, 3], trained_from=2, group=3, prefix=2), example([1, 9, 3], group=3, prefix=2)],
            "examples 0 and 1 of group 3 begin with different prefixes",
        ),
        (
            [example([1, 2, 3], trained_from=1, group=3, prefix=2) for _ in range(2)],
            "example 0 has a non-zero 'ce' inside the prefix that its group shares",
        ),
    ],
)
def test_an_example_that_cannot_be_packed_is_named(examples: list[Example], said: str) -> None:
    with pytest.raises(PackingError, match=said):
        pack(examples, 8, share_prefix=True)


def test_nothing_to_pack_is_no_packs() -> None:
    assert pack([], 8, share_prefix=True) == []
    assert plan([], 8) == []


@given(st.lists(st.integers(0, 60), max_size=120), st.integers(60, 200))
def test_a_plan_places_each_once_within_capacity_and_is_the_same_again(
    lengths: list[int], capacity: int
) -> None:
    packs = plan(lengths, capacity)
    assert sorted(index for one in packs for index in one) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in one) <= capacity for one in packs)
    assert packs == plan(lengths, capacity)
    # No two packs could have been one: what best-fit decreasing promises.
    loads = sorted(sum(lengths[index] for index in one) for one in packs)
    if len(loads) > 1:
        assert loads[0] + loads[1] > capacity or loads[0] == 0


def test_a_plan_is_as_tight_as_trls() -> None:
    """EN-C02, EN-C28: TRL's `bfd` is the oracle."""
    pack_dataset = pytest.importorskip("trl.data_utils").pack_dataset
    datasets = pytest.importorskip("datasets")
    rng = random.Random(5)
    lengths = [min(2048, max(48, int(rng.lognormvariate(5.8, 0.8)))) for _ in range(400)]
    rows = datasets.Dataset.from_dict({"input_ids": [[1] * length for length in lengths]})
    theirs = pack_dataset(rows, 4096, "bfd")
    assert Counter(map(len, theirs["input_ids"])) == Counter(
        sum(lengths[index] for index in one) for one in plan(lengths, 4096)
    )


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On a busy machine two threads wait for each other longer than either works."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_large_batch_packs_in_50_ms() -> None:
    """EN-C28: what is known of a batch is made once, on the CPU, faster than a step."""
    examples = [
        Example([i] * 400, {"ce": [0.0] * 200 + [1.0] * 200}, group=i // 8, prefix=0) for i in range(512)
    ]
    best = min(_seconds(examples) for _ in range(5))
    assert best < 0.05


def _seconds(examples: list[Example]) -> float:
    began = time.process_time()  # not the wall clock: other tests run beside this one
    pack(examples, 4096, share_prefix=False, multiple=128)
    return time.process_time() - began
