"""Drawing a token: a fair draw, from the right tokens, that depends on its seed and place alone."""

from __future__ import annotations

import math

import pytest
import torch
from families_for_tests import CLOSE
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from corral.engine.sampling.next_token import draw, gumbel, limit

WORDS = 40


def logits_of(rows: int, words: int = WORDS, *, spread: float = 2.0, seed: int = 0) -> Tensor:
    return torch.randn(rows, words, generator=torch.Generator().manual_seed(seed)) * spread


def drawn(
    logits: Tensor, seed: Tensor, position: Tensor, *, temperature: float = 1.0, k: int = 0, p: float = 1.0
) -> tuple[Tensor, Tensor]:
    rows = logits.shape[0]
    return draw(
        logits,
        torch.full((rows,), temperature),
        seed,
        position,
        torch.arange(logits.shape[1]),
        torch.full((rows,), k),
        torch.full((rows,), p),
    )


def surprise(counts: Tensor, expected: Tensor) -> float:
    """How many standard deviations chi-square lies above what chance gives; cells of few are put together."""
    order = expected.argsort()
    small = expected[order].cumsum(0) < 20
    rare, common = order[small], order[~small]
    right = torch.cat((expected[common], expected[rare].sum().reshape(1))).double()
    found = torch.cat((counts[common], counts[rare].sum().reshape(1))).double()
    right, found = right[right > 0], found[right > 0]
    chi = ((found - right) ** 2 / right).sum().item()
    freedom = len(right) - 1
    return (chi - freedom) / math.sqrt(2 * freedom)


ROWS = 60_000
SEEDS = {
    "a seed for each draw": (torch.arange(ROWS), torch.full((ROWS,), 17)),
    "a position for each draw": (torch.full((ROWS,), 17), torch.arange(ROWS)),
    "seeds far apart": (torch.arange(ROWS) * 0x1_0000_0001, torch.full((ROWS,), 3)),
    "a group at consecutive positions": (torch.arange(ROWS) % 8 + 1000, torch.arange(ROWS) // 8),
}


@pytest.mark.parametrize("which", SEEDS)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_draws_follow_the_softmax(which: str, temperature: float) -> None:
    logits = logits_of(1)
    tokens, _ = drawn(logits.expand(ROWS, -1), *SEEDS[which], temperature=temperature)
    expected = (logits[0] / temperature).softmax(-1) * ROWS
    assert abs(surprise(tokens.bincount(minlength=WORDS), expected)) < 5


@pytest.mark.parametrize("step", [(0, 1), (1, 0), (1, 1), (1 << 32, 0)], ids=str)
def test_neighbouring_draws_know_nothing_of_each_other(step: tuple[int, int]) -> None:
    words = 6
    logits = logits_of(1, words, spread=0.5).expand(ROWS, -1)
    seed, position = torch.arange(ROWS) * 7, torch.arange(ROWS) % 1000
    first, _ = drawn(logits, seed, position)
    second, _ = drawn(logits, seed + step[0], position + step[1])
    p = logits[0].softmax(-1)
    assert (
        abs(
            surprise((first * words + second).bincount(minlength=words**2), (p[:, None] * p).flatten() * ROWS)
        )
        < 5
    )


def test_the_noise_is_gumbels() -> None:
    noise = gumbel(torch.arange(100), torch.arange(100), torch.arange(20_000))
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)


@pytest.mark.parametrize("place", [(0, 20, 118930), (1, 0, 31158), (3, 29, 80254)], ids=str)
def test_the_noise_is_never_infinite(place: tuple[int, int, int]) -> None:
    """Here all bits of the hash are ones. Infinite noise would choose a token whatever its probability, once
    in a hundred draws from a vocabulary of 150,000."""
    seed, position, token = place
    noise = gumbel(torch.tensor([seed]), torch.tensor([position]), torch.tensor([token]))
    assert torch.isfinite(noise).all()


def test_a_draw_depends_on_its_own_row_only() -> None:
    logits = logits_of(64, 300)
    seed, position = torch.arange(64), torch.arange(64) * 3
    together = drawn(logits, seed, position)
    for row in (0, 13, 63):
        one = slice(row, row + 1)
        alone = drawn(logits[one], seed[one], position[one])
        assert alone[0].item() == together[0][row].item()
        assert alone[1].item() == pytest.approx(together[1][row].item(), abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**32, 2**63 - 1, -(2**63)])
def test_every_64_bit_seed_is_a_seed_of_its_own(seed: int) -> None:
    logits = torch.zeros(200, 1000)
    position = torch.arange(200)
    ours = drawn(logits, torch.full((200,), seed), position)[0]
    other = drawn(logits, torch.full((200,), 12345), position)[0]
    assert torch.equal(ours, drawn(logits, torch.full((200,), seed), position)[0])
    assert (ours == other).float().mean() < 0.05


def warped(logits: Tensor, temperature: float, k: int, p: float) -> Tensor:
    """What transformers' own sampling leaves."""
    steps = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if k:
        steps.append(TopKLogitsWarper(k))
    if p < 1:
        steps.append(TopPLogitsWarper(p))
    left = steps(torch.zeros(logits.shape[0], 1, dtype=torch.long), logits)
    assert isinstance(left, Tensor)
    return left


@pytest.mark.parametrize("p", [1.0, 0.95, 0.5, 1e-6])
@pytest.mark.parametrize("k", [0, 1, 5, 1000])
def test_top_k_and_top_p_leave_what_transformers_leaves(k: int, p: float) -> None:
    logits = logits_of(50, 200)
    ours = limit(logits / 0.8, torch.full((50,), k), torch.full((50,), p))
    theirs = warped(logits, 0.8, k, p)
    assert torch.equal(ours.isinf(), theirs.isinf())
    torch.testing.assert_close(ours, theirs)


def test_limits_that_are_off_exclude_nothing() -> None:
    """A request without limits may lie in a batch with one that has them: its rarest tokens stay possible."""
    logits = logits_of(4, 50_000, spread=4.0)
    left = limit(logits, torch.zeros(4, dtype=torch.long), torch.ones(4))
    assert torch.equal(left, logits)


def test_each_row_has_its_own_limits() -> None:
    logits = logits_of(3, 100)
    left = limit(logits, torch.tensor([3, 0, 7]), torch.tensor([1.0, 0.3, 0.4]))
    for row, (k, p) in enumerate([(3, 1.0), (0, 0.3), (7, 0.4)]):
        assert torch.equal(left[row], warped(logits[row : row + 1], 1.0, k, p)[0])


@pytest.mark.parametrize(("k", "p"), [(5, 1.0), (0, 0.8), (12, 0.7)])
def test_limited_draws_follow_what_is_left(k: int, p: float) -> None:
    logits = logits_of(1)
    rows = 20_000
    tokens, _ = drawn(
        logits.expand(rows, -1), torch.arange(rows), torch.zeros(rows), temperature=1.3, k=k, p=p
    )
    expected = warped(logits, 1.3, k, p)[0].softmax(-1) * rows
    assert not tokens.bincount(minlength=WORDS)[expected == 0].any()
    assert abs(surprise(tokens.bincount(minlength=WORDS), expected)) < 5


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_logprob_is_of_the_softmax_before_any_limit(temperature: float) -> None:
    """EN-D03: as the trainer computes it."""
    logits = logits_of(30, 100)
    tokens, logprobs = drawn(logits, torch.arange(30), torch.arange(30), temperature=temperature, k=3, p=0.6)
    right = (logits / temperature).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    assert (logprobs - right).abs().max() < CLOSE


def test_at_temperature_0_the_most_likely_token_is_taken_with_its_plain_logprob() -> None:
    logits = logits_of(30, 100)
    tokens, logprobs = drawn(logits, torch.arange(30), torch.arange(30), temperature=0.0)
    assert torch.equal(tokens, logits.argmax(-1))
    assert (logprobs - logits.log_softmax(-1).amax(-1)).abs().max() < CLOSE


def test_hot_and_cold_rows_may_lie_in_one_batch() -> None:
    logits = logits_of(2, 100)
    seed = torch.tensor([4, 4])
    args = (seed, seed, torch.arange(100))
    mixed, _ = draw(logits, torch.tensor([0.0, 1.5]), *args)
    assert mixed[0] == logits[0].argmax()
    assert mixed[1] == draw(logits, torch.tensor([1.5, 1.5]), *args)[0][1]
