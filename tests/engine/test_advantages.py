"""From rewards to weights: shaping, comparison within groups, and what each loss type divides by."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.engine.data.packing import pack
from corral.engine.data.sequences import Example
from corral.engine.environments.transcript import SampledSequence
from corral.engine.sampling.rollouts import Episode
from corral.engine.training import advantages
from corral.engine.training.advantages import ThinkingMarkers
from corral.recipes.train_tables import Grpo

THINK = ThinkingMarkers(opening=(7,), closing=(8,))
KINDS: tuple[Any, ...] = ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "gspo")


def attempt(group: int, samples: list[SampledSequence], reward: float | None) -> Episode:
    return Episode("train", 0, group, 0, samples, [], 0, reward, {})


def sample(*turns: tuple[list[int], list[int]], reason: str = "stop") -> SampledSequence:
    """Of turns: what is given and what is sampled then, with a logprob of -token / 10."""
    tokens: list[int] = []
    mask: list[float] = []
    for given_here, sampled in turns:
        tokens += [*given_here, *sampled]
        mask += [0.0] * len(given_here) + [1.0] * len(sampled)
    return SampledSequence(tokens, mask, [-t / 10 for t in tokens], reason, 0)


def episode(group: int, length: int, reward: float | None, reason: str = "stop") -> Episode:
    return attempt(group, [sample(([3, 4, 5 + group], [9] * length), reason=reason)], reward)


def total(examples: list[Example], stream: str = "policy") -> float:
    return sum(sum(example.streams[stream]) for example in examples)


rewards = st.lists(
    st.lists(st.one_of(st.none(), st.just(math.nan), st.floats(-10, 10)), min_size=1, max_size=8),
    min_size=1,
    max_size=5,
)


@given(rewards, st.sampled_from(["group", "batch", "none"]))
def test_a_groups_advantages_cancel_out_and_keep_the_order(groups: Any, scale: Any) -> None:
    for group, found in zip(groups, advantages.advantages(groups, scale), strict=True):
        assert len(found) == len(group)
        assert all(math.isfinite(value) for value in found)
        assert math.fsum(found) == pytest.approx(0, abs=1e-6)
        known = [(r, a) for r, a in zip(group, found, strict=True) if r is not None and not math.isnan(r)]
        assert all(a <= b + 1e-9 for (r, a), (s, b) in pairwise(known) if r <= s)
        lost = [a for r, a in zip(group, found, strict=True) if r is None or math.isnan(r)]
        assert lost == [0.0] * len(lost)


def test_the_deviation_has_bessels_correction() -> None:
    group = [1.0, 0.0, 0.0, 2.0]
    (found,) = advantages.advantages([group], "group")
    deviation = statistics.stdev(group)
    assert found == pytest.approx([(r - 0.75) / (deviation + 1e-4) for r in group])
    # TRL's number for one right answer in two: 0.5 / (0.7071 + 1e-4).
    assert advantages.advantages([[1.0, 0.0]], "group")[0][0] == pytest.approx(0.70701, abs=1e-5)


def test_the_batchs_deviation_is_over_all_groups() -> None:
    groups = [[1.0, 0.0], [5.0, 3.0]]
    deviation = statistics.stdev([1.0, 0.0, 5.0, 3.0])
    assert advantages.advantages(groups, "batch") == [
        pytest.approx([0.5 / (deviation + 1e-4), -0.5 / (deviation + 1e-4)]),
        pytest.approx([1 / (deviation + 1e-4), -1 / (deviation + 1e-4)]),
    ]
    assert advantages.advantages(groups, "none") == [[0.5, -0.5], [1.0, -1.0]]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_give_exactly_nothing(scale: Any) -> None:
    """In floats the mean of 0.1 is not always 0.1, and what is left is divided by 1e-4."""
    groups = [[0.1] * 3, [0.7] * 7, [1.0, 0.0]]
    found = advantages.advantages(groups, scale)
    assert found[:2] == [[0.0] * 3, [0.0] * 7]
    assert found[2][0] > 0


def test_an_unscored_sample_neither_learns_nor_counts_in_its_group() -> None:
    with_hole, without = ([[1.0, None, 0.0, math.nan, math.inf]], [[1.0, 0.0]])
    (found,) = advantages.advantages(with_hole, "group")
    (expected,) = advantages.advantages(without, "group")
    assert [found[0], found[2]] == expected
    assert [found[1], found[3], found[4]] == [0.0, 0.0, 0.0]
    assert advantages.advantages([[None, 3.0]], "group") == [[0.0, 0.0]]


def test_flat_groups_and_unscored_samples_are_counted() -> None:
    made = [
        *(episode(0, 3, 1.0) for _ in range(2)),
        *(episode(1, 3, r) for r in (0.0, 1.0)),
        *(episode(2, 3, r) for r in (None, 0.5)),
        *(episode(3, 3, r) for r in (math.nan, None)),
    ]
    scores = advantages.score(made, Grpo())
    assert (scores.groups, scores.flat, scores.unscored) == (4, 3, 3)
    assert scores.frac_flat == 0.75
    assert scores.mean == pytest.approx(0.7)
    assert scores.std == pytest.approx(statistics.stdev([1, 1, 0, 1, 0.5]))
    assert scores.rewards[4] is None


def test_without_any_reward_the_mean_is_unknown() -> None:
    scores = advantages.score([episode(0, 2, None), episode(0, 2, None)], Grpo())
    assert (scores.mean, scores.std, scores.unscored) == (None, None, 2)
    assert advantages.score([], Grpo()).frac_flat == 0.0


def test_groups_need_not_lie_side_by_side() -> None:
    mixed = [episode(0, 1, 1.0), episode(1, 1, 5.0), episode(0, 1, 0.0), episode(1, 1, 9.0)]
    scores = advantages.score(mixed, Grpo(scale="none"))
    assert scores.advantages == [0.5, -2.0, -0.5, 2.0]


# Weights


def test_what_each_loss_type_divides_by() -> None:
    """EN-C01: the loss is the sum of weight * token loss."""
    lengths = [4, 1, 0, 5]

    def of(kind: str) -> list[float]:
        return advantages.weights(lengths, kind, max_completion=10)

    assert of("grpo") == [1 / 16, 1 / 4, 1 / 4, 1 / 20]  # the mean over sequences of their mean
    assert of("gspo") == of("grpo")
    assert of("dapo") == of("bnpo") == of("cispo") == [1 / 10] * 4  # the mean over tokens
    assert of("dr_grpo") == [1 / 40] * 4  # a constant
    with pytest.raises(ValueError, match="vtrace"):
        of("vtrace")


@pytest.mark.parametrize("kind", KINDS)
def test_no_tokens_are_no_division_by_zero(kind: str) -> None:
    assert all(math.isfinite(w) for w in advantages.weights([0, 0], kind, max_completion=1))
    assert advantages.weights([], kind, max_completion=1) == []


def test_the_weights_of_a_batch_sum_to_one_where_the_loss_is_a_mean() -> None:
    made = [episode(0, n, float(n)) for n in (1, 5, 12)]
    for kind in KINDS:
        built = advantages.build(made, Grpo(loss=kind, max_completion=12))
        assert total(built) == pytest.approx(0.5 if kind == "dr_grpo" else 1.0)


def test_truncated_samples_can_be_left_out_but_still_count_in_their_group() -> None:
    made = [episode(0, 2, 1.0), episode(0, 8, 0.0, "length")]
    kept, masked = (advantages.build(made, Grpo(loss="dapo", mask_truncated=m)) for m in (False, True))
    assert [len(kept), len(masked)] == [2, 1]
    assert masked[0].streams["policy"][-1] == 1 / 2
    assert kept[0].streams["policy"][-1] == 1 / 10
    assert masked[0].streams["advantage"] == kept[0].streams["advantage"]
    assert masked[0].streams["advantage"][-1] > 0
    assert advantages.score(made, Grpo()).truncated == 1


# Shaping


def test_overlong_answers_are_punished_over_the_last_tokens() -> None:
    """DAPO, equation 13, with a limit of 20 and a buffer of 5."""

    def at(length: int) -> float:
        return advantages.overlong(length, max_completion=20, buffer=5)

    assert [at(n) for n in (1, 15, 16, 18, 20, 21, 90)] == [0, 0, -0.2, -0.6, -1, -1, -1]
    assert advantages.overlong(20, max_completion=20, buffer=0) == 0


def test_the_punishment_changes_the_reward_before_it_is_compared() -> None:
    made = [episode(0, 4, 1.0), episode(0, 10, 1.0), episode(0, 9, None)]
    grpo = Grpo(max_completion=10, overlong_buffer=4, overlong_penalty=0.5, scale="none")
    scores = advantages.score(made, grpo)
    assert scores.rewards == [1.0, 0.5, None]
    assert scores.advantages == [0.25, -0.25, 0.0]
    assert scores.overlong == 2
    assert advantages.score(made, Grpo(max_completion=10)).flat == 1


def test_the_limit_is_one_turns_so_many_short_turns_are_not_overlong() -> None:
    short = attempt(0, [sample(([3], [9] * 6), ([4], [9] * 6))], 1.0)
    long = attempt(0, [sample(([3], [9] * 2), ([4], [9] * 10))], 1.0)
    scores = advantages.score([short, long], Grpo(max_completion=10, overlong_buffer=4))
    assert scores.rewards == [1.0, 0.0]


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (sample(([3], [9, 9])), 0),
        (sample(([3], [7, 9, 9, 8, 9])), 2),
        (sample(([3, 7], [9, 9, 8, 9])), 2),  # the prompt opens it
        (sample(([3, 7, 8], [9, 9])), 0),  # the prompt opens and closes it: thinking is off
        (sample(([3], [7, 9, 9, 9])), 3),  # never closed
        (sample(([3, 7], [9, 9]), ([4], [9, 9])), 2),  # never closed, and the next turn does not think
        (sample(([3, 7], [9, 8, 9]), ([4, 7], [9, 9, 8, 9])), 3),  # both turns
        (sample(([7, 9, 9, 8, 3], [9])), 0),  # thought earlier, not sampled here
    ],
)
def test_sampled_tokens_of_thinking_are_counted(made: SampledSequence, count: int) -> None:
    assert advantages.thinking_tokens(made, THINK) == count


def test_markers_may_be_several_tokens() -> None:
    markers = ThinkingMarkers(opening=(1, 2), closing=(1, 3))
    assert advantages.thinking_tokens(sample(([5], [1, 2, 9, 1, 9, 1, 3, 9])), markers) == 3


def test_the_thinking_penalty_works_in_one_turn_and_in_several() -> None:
    """MT-D35: in several turns it is the share of all their room."""
    one = attempt(0, [sample(([3, 7], [9] * 5 + [8, 9]))], 1.0)
    two = attempt(0, [sample(([3, 7], [9] * 5 + [8, 9]), ([4], [9] * 3))], 1.0)
    split = attempt(0, [sample(([3, 7], [9] * 5 + [8, 9])), sample(([4, 7], [9] * 9 + [8]))], 1.0)
    none = attempt(0, [sample(([3], [9] * 7))], 1.0)
    grpo = Grpo(max_completion=10, thinking_length_penalty=0.4)
    scores = advantages.score([one, two, split, none], grpo, markers=THINK)
    assert scores.rewards == pytest.approx([1 - 0.4 * 0.5, 1 - 0.4 * 0.25, 1 - 0.4 * 0.7, 1.0])
    assert scores.thinking == 5 + 5 + 14
    assert scores.advantages[3] > 0 > scores.advantages[2]


def test_a_thinking_penalty_without_markers_is_refused() -> None:
    """MT-D35: honoured or refused, never ignored."""
    with pytest.raises(ValueError, match="thinking_length_penalty"):
        advantages.build([episode(0, 2, 1.0)], Grpo(thinking_length_penalty=0.1))


# Examples


def test_an_example_carries_what_its_loss_needs() -> None:
    made = [episode(0, 2, 1.0), episode(0, 3, 0.0)]
    first, _ = advantages.build(made, Grpo(loss="dapo", scale="none", beta=0.1, entropy_coef=0.1))
    assert first.tokens == [3, 4, 5, 9, 9]
    assert first.streams == {
        "policy": [0, 0, 0, 0.2, 0.2],
        "advantage": [0, 0, 0, 0.5, 0.5],
        "old": [0, 0, 0, -0.9, -0.9],
        "sampled": [0, 0, 0, -0.9, -0.9],
        "kl": [0, 0, 0, 0.2, 0.2],
        "entropy": [0, 0, 0, 0.2, 0.2],
    }
    (plain, _) = advantages.build(made, Grpo(loss="dapo"))
    assert plain.streams.keys() == {"policy", "advantage", "old", "sampled"}


def test_tokens_that_were_not_sampled_have_no_weight() -> None:
    turns = attempt(0, [sample(([3, 4], [9, 9]), ([5, 5, 5], [9]))], 1.0)
    other = attempt(0, [sample(([3, 4], [9]))], 0.0)
    first, _ = advantages.build([turns, other], Grpo(loss="dapo"))
    assert first.streams["policy"] == [0, 0, 0.25, 0.25, 0, 0, 0, 0.25]


@pytest.mark.parametrize("kind", KINDS)
def test_the_samples_of_one_episode_share_its_advantage_and_count_as_one(kind: Any) -> None:
    """EN-C27, EN-D05: a history that could not be continued begins a new sample."""
    whole = attempt(0, [sample(([3, 4], [9] * 6))], 1.0)
    split = attempt(0, [sample(([3, 4], [9] * 2)), sample(([3, 5, 6], [9] * 4))], 1.0)
    other = attempt(0, [sample(([3, 4], [9] * 2))], 0.0)
    one = advantages.build([whole, other], Grpo(loss=kind))
    two = advantages.build([split, other], Grpo(loss=kind))
    assert [len(one), len(two)] == [2, 3]
    assert total(two[:2]) == pytest.approx(total(one[:1]))
    assert total(two[2:]) == pytest.approx(total(one[1:]))
    assert {a for e in two[:2] for a in e.streams["advantage"] if a} == set(one[0].streams["advantage"]) - {0}


def test_groups_share_their_prompt_and_only_that() -> None:
    made = [
        attempt(4, [sample(([3, 4, 5], [9, 1]))], 1.0),
        attempt(4, [sample(([3, 4, 5], [9, 2])), sample(([3, 4, 6], [9]))], 0.0),
        attempt(5, [sample(([3, 4, 5, 6], [1]))], 1.0),
        attempt(5, [sample(([3, 4, 7, 6], [1]))], 0.0),  # the environment gave it another
    ]
    built = advantages.build(made, Grpo())
    assert [(e.group, e.prefix) for e in built] == [(4, 3), (4, 3), (-1, 0), (5, 2), (5, 2)]
    (one,) = pack(built, 64, share_prefix=True)
    assert one.real < sum(len(example.tokens) for example in built)


def test_episodes_without_samples_count_but_make_no_example() -> None:
    """A crash costs one sample: its group goes on without it."""
    crashed = attempt(0, [], None)
    cut = attempt(0, [SampledSequence([3, 4], [0.0, 0.0], [0.0, 0.0], "stop", 0)], None)
    built = advantages.build([crashed, cut, episode(0, 2, 1.0), episode(0, 2, 0.0)], Grpo(loss="grpo"))
    assert len(built) == 2
    assert total(built) == pytest.approx(2 / 4)


def test_examples_that_move_nothing_can_be_dropped() -> None:
    made = [episode(0, 2, 1.0), episode(0, 2, 1.0), episode(1, 2, 1.0), episode(1, 2, 0.0)]
    built = advantages.build(made, Grpo())
    assert advantages.contributing(built) == built[2:]
    pulled = advantages.build(made, Grpo(beta=0.1))
    assert advantages.contributing(pulled) == pulled
    taught = advantages.supervised([([1, 2], [0.0, 1.0]), ([1, 2], [0.0, 0.0])])
    assert advantages.contributing(taught) == taught[:1]


def test_supervised_weights_are_a_mean_over_the_batch() -> None:
    """EN-D21, EN-C31: of tokens and of samples."""
    one, two = advantages.supervised([([1, 2, 3], [0.0, 1.0, 0.5]), ([4, 5], [0.0, 2.5])])
    assert one.streams["ce"] == [0.0, 0.25, 0.125]
    assert two.streams["ce"] == [0.0, 0.625]
    assert advantages.supervised([([1], [0.0])])[0].streams["ce"] == [0.0]
    # Nothing predicts a first token, so it does not count, as in TRL.
    assert advantages.supervised([([1, 2, 3], [1.0, 1.0, 1.0])])[0].streams["ce"] == [0.0, 0.5, 0.5]
    unlearn = advantages.supervised([([1, 2], [0.0, -1.0]), ([1, 2], [0.0, 1.0])])
    assert [e.streams["ce"][1] for e in unlearn] == [-0.5, 0.5]


def test_a_stream_can_be_put_in_anothers_place() -> None:
    built = advantages.build([episode(0, 2, 1.0), episode(0, 2, 0.0)], Grpo())
    columns = [[0.0, 0.0, 0.0, -1.0, -2.0]] * 2
    again = advantages.with_stream(built, "old", columns)
    assert [e.streams["old"] for e in again] == columns
    assert [e.streams["sampled"] for e in again] == [e.streams["sampled"] for e in built]
    assert [(e.tokens, e.group, e.prefix) for e in again] == [(e.tokens, e.group, e.prefix) for e in built]
    with pytest.raises(ValueError, match="zip"):
        advantages.with_stream(built, "ref", columns[:1])
