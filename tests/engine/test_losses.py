"""The losses against the papers' formulas, written out token by token in double precision, and what makes
them fit for packs: slices add up, tokens without weight do nothing, the device is never waited for."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from corral.engine.training import losses
from corral.engine.training.losses import KINDS, Loss
from corral.recipes.train import parse

TOKENS = 60


def streams(seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Four examples of different lengths with untrained tokens in and between them, and padding."""
    rng = torch.Generator().manual_seed(seed)
    example = torch.tensor([0] * 20 + [-1] * 3 + [1] * 7 + [2] * 1 + [3] * 22 + [-1] * 7, dtype=torch.int32)
    weight = torch.rand(TOKENS, generator=rng) + 0.1
    weight[(torch.rand(TOKENS, generator=rng) < 0.3) | (example < 0)] = 0
    advantage = torch.randn(5, generator=rng)[example.long()]
    found = {name: 0.4 * torch.randn(TOKENS, generator=rng) - 2 for name in ("old", "ref", "sampled")}
    kl = weight * 0.7
    return found | {
        "policy": weight,
        "kl": kl,
        "entropy": weight,
        "advantage": advantage,
        "ce": weight,
    }, example


def scores(seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logprob = 0.4 * torch.randn(TOKENS, generator=rng) - 2
    return logprob.requires_grad_(), torch.rand(TOKENS, generator=rng).requires_grad_()


def added(parts: list[losses.Sums]) -> losses.Sums:
    total: losses.Sums = {}
    for part in parts:
        losses.add_sums(total, part)
    return total


def both(loss: Loss, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The loss and its slopes by logprob and by entropy."""
    logprob, entropy = scores()
    columns, example = streams(seed)
    value, _ = loss(logprob, entropy, columns, example)
    slopes = torch.autograd.grad(value, (logprob, entropy), allow_unused=True)
    by_logprob, by_entropy = (torch.zeros(TOKENS) if slope is None else slope for slope in slopes)
    return value.detach(), by_logprob, by_entropy


def written_out(term: Callable[[Any, float, Any], Any], kind: str) -> tuple[Tensor, Tensor]:
    """sum of weight * -term(ratio, advantage, logprob), as the papers have it, and its slope by logprob."""
    columns, example = streams()
    now = scores()[0].detach().double().requires_grad_()
    old, weight, advantage = (columns[name].double() for name in ("old", "policy", "advantage"))
    total = torch.zeros((), dtype=torch.float64)
    for t in range(TOKENS):
        if weight[t] == 0:
            continue
        own = [s for s in range(TOKENS) if example[s] == example[t] and weight[s] != 0]
        members = own if kind == "gspo" else [t]
        # GSPO: s_i = (pi(y) / pi_old(y)) ** (1 / |y|).
        ratio = torch.stack([now[s] - old[s] for s in members]).mean().exp()
        total = total - weight[t] * term(ratio, float(advantage[t]), now[t])
    (slope,) = torch.autograd.grad(total, now)
    return total.detach(), slope


def clipped(low: float, high: float) -> Callable[[Tensor, float, Tensor], Tensor]:
    """PPO: the lower of the free and the bounded objective, by cases."""

    def term(ratio: Tensor, advantage: float, _: Tensor) -> Tensor:
        if advantage > 0:
            return ratio * advantage if ratio <= 1 + high else torch.tensor((1 + high) * advantage)
        return ratio * advantage if ratio >= 1 - low else torch.tensor((1 - low) * advantage)

    return term


FORMULAS: dict[str, Callable[[Tensor, float, Tensor], Tensor]] = {
    **{kind: clipped(0.2, 0.28) for kind in ("grpo", "dapo", "dr_grpo", "bnpo", "ppo")},
    "gspo": clipped(0.05, 0.08),
    "cispo": lambda ratio, advantage, logprob: min(float(ratio.detach()), 1.3) * advantage * logprob,
    "importance_sampling": lambda ratio, advantage, _: ratio * advantage,
}
CLIPS = {"gspo": (0.05, 0.08), "cispo": (0.2, 1.3)}


@pytest.mark.parametrize("kind", KINDS)
def test_each_loss_is_its_papers_formula(kind: losses.Kind) -> None:
    low, high = CLIPS.get(kind, (0.2, 0.28))
    value, slope, _ = both(losses.policy(kind, clip_low=low, clip_high=high))
    expected, its_slope = written_out(FORMULAS[kind], kind)
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(slope.double(), its_slope, rtol=1e-5, atol=1e-6)
    assert its_slope.count_nonzero() > 10


def test_a_two_sided_bound_holds_bad_tokens_too() -> None:
    def term(ratio: Tensor, advantage: float, logprob: Tensor) -> Tensor:
        if advantage < 0 and ratio > 1.4:
            return torch.tensor(1.4 * advantage)
        return clipped(0.2, 0.2)(ratio, advantage, logprob)

    value, slope, _ = both(losses.policy("dapo", delta=1.4))
    expected, its_slope = written_out(term, "dapo")
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(slope.double(), its_slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kl", ["k3", "k3_corrected"])
def test_the_kl_term_is_the_k3_estimate(kl: losses.Kl) -> None:
    columns, _ = streams()
    now = scores()[0].detach().double().requires_grad_()
    away = columns["ref"].double() - now
    estimate = away.exp() - away - 1
    if kl == "k3_corrected":
        ratio = torch.where(columns["policy"] != 0, now - columns["old"].double(), 0.0).exp()
        estimate = estimate * ratio
    expected = 0.3 * (columns["kl"].double() * estimate).sum()
    (its_slope,) = torch.autograd.grad(expected, now)

    with_kl, without = (both(losses.policy("dapo", beta=beta, kl=kl)) for beta in (0.3, 0.0))
    torch.testing.assert_close((with_kl[0] - without[0]).double(), expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close((with_kl[1] - without[1]).double(), its_slope, rtol=1e-4, atol=1e-6)


def test_the_corrected_kl_has_the_gradient_of_the_true_kl() -> None:
    """The mean over samples of the old policy, taken exactly over a vocabulary of six."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    old, ref = (torch.log_softmax(torch.randn(6, dtype=torch.float64), 0) for _ in range(2))
    logs = torch.log_softmax(logits, 0)
    (true,) = torch.autograd.grad((logs.exp() * (logs - ref)).sum(), logits, retain_graph=True)

    slopes = {}
    for kl in ("k3", "k3_corrected"):
        columns = {"policy": old.exp(), "kl": old.exp(), "old": old, "ref": ref, "advantage": torch.zeros(6)}
        loss = losses.policy("importance_sampling", beta=1.0, kl=kl)
        value, _ = loss(logs, None, columns, None)
        (slopes[kl],) = torch.autograd.grad(value, logits, retain_graph=True)
    torch.testing.assert_close(slopes["k3_corrected"], true, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(slopes["k3"], true, atol=1e-2)


def test_the_entropy_bonus_is_a_weighted_mean_that_lowers_the_loss() -> None:
    columns, _ = streams()
    with_bonus, without = (both(losses.policy("dapo", entropy_coef=c)) for c in (0.1, 0.0))
    bonus = 0.1 * (columns["entropy"] * scores()[1].detach()).sum()
    torch.testing.assert_close(without[0] - with_bonus[0], bonus, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(with_bonus[2], -0.1 * columns["entropy"])
    assert without[2].abs().sum() == 0


def test_an_entropy_bonus_without_entropies_is_refused() -> None:
    columns, example = streams()
    with pytest.raises(ValueError, match="entropy"):
        losses.policy("dapo", entropy_coef=0.1)(scores()[0], None, columns, example)


def test_cross_entropy_weighs_every_token_by_itself() -> None:
    """EN-D21, EN-C31."""
    columns, example = streams()
    logprob, entropy = scores()
    value, sums = losses.cross_entropy()(logprob, entropy, columns, example)
    torch.testing.assert_close(value, -(columns["ce"] * logprob).sum())
    (slope,) = torch.autograd.grad(value, logprob)
    torch.testing.assert_close(slope, -columns["ce"])
    assert sums["tokens"] == (columns["ce"] != 0).sum()
    torch.testing.assert_close(sums["weight"], columns["ce"].sum())


LOCAL: list[Loss] = [
    losses.cross_entropy(),
    *(losses.policy(kind, beta=0.1, entropy_coef=0.01) for kind in KINDS if kind != "gspo"),
    losses.policy("dapo", correct="token_truncate", anchor="self"),
    losses.policy("dapo", correct="token_mask"),
]
WHOLE: list[Loss] = [
    losses.policy("gspo", beta=0.1, entropy_coef=0.01),
    losses.policy("dapo", correct="sequence_mask"),
    losses.policy("cispo", correct="sequence_truncate"),
]


@given(cuts=st.lists(st.integers(0, TOKENS), max_size=6), which=st.sampled_from(LOCAL))
@settings(max_examples=80)
def test_the_slices_of_a_local_loss_add_up_to_the_whole(cuts: list[int], which: Loss) -> None:
    assert which.local
    columns, example = streams()
    logprob, entropy = scores()
    whole, sums = which(logprob, entropy, columns, example)
    slope = torch.autograd.grad(whole, logprob)[0]
    edges = [0, *sorted(cuts), TOKENS]
    parts, slopes = [], []
    for start, end in pairwise(edges):
        here = slice(start, end)
        own = logprob.detach()[here].requires_grad_()
        some = {name: column[here] for name, column in columns.items()}
        value, its_sums = which(own, entropy[here], some, example[here])
        parts.append((value.detach(), its_sums))
        slopes.append(torch.autograd.grad(value, own)[0])
    torch.testing.assert_close(torch.stack([value for value, _ in parts]).sum(), whole.detach())
    torch.testing.assert_close(torch.cat(slopes), slope)
    torch.testing.assert_close(added([its_sums for _, its_sums in parts]), sums)


@pytest.mark.parametrize("which", WHOLE, ids=lambda loss: f"{loss.kind}-{loss.correct}")
def test_a_loss_of_sequences_needs_whole_examples_but_no_order_of_them(which: Loss) -> None:
    assert not which.local
    columns, example = streams()
    logprob, entropy = (value.detach() for value in scores())
    value, sums = which(logprob, entropy, columns, example)
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))
    mixed = which(
        logprob[order], entropy[order], {name: c[order] for name, c in columns.items()}, example[order]
    )
    torch.testing.assert_close(mixed, (value, sums))
    # Only the trained tokens, as a head that skips the others gives them; their ids may exceed their number.
    on = columns["policy"] != 0
    few = which(logprob[on], entropy[on], {n: c[on] for n, c in columns.items()}, example[on] + 1000)
    torch.testing.assert_close(few[0], value)
    parts = [
        which(logprob[one], entropy[one], {n: c[one] for n, c in columns.items()}, example[one])
        for one in (example == i for i in range(-1, 4))
    ]
    torch.testing.assert_close(torch.stack([part[0] for part in parts]).sum(), value)
    torch.testing.assert_close(added([part[1] for part in parts]), sums)


def test_a_loss_of_sequences_without_examples_is_refused() -> None:
    columns, _ = streams()
    with pytest.raises(ValueError, match="example"):
        losses.policy("gspo")(scores()[0], None, columns, None)


@pytest.mark.parametrize("which", LOCAL + WHOLE, ids=lambda loss: getattr(loss, "kind", "cross_entropy"))
def test_what_stands_at_a_token_without_weight_changes_nothing(which: Loss) -> None:
    columns, example = streams()
    logprob, entropy = scores()
    value = which(logprob, entropy, columns, example)[0]
    slope = torch.autograd.grad(value, logprob)[0]
    off = columns["policy"] == 0
    wild = {
        name: column if name in ("policy", "kl", "entropy", "ce") else torch.where(off, math.nan, column)
        for name, column in columns.items()
    }
    odd = torch.where(off, -math.inf, logprob.detach()).requires_grad_()
    strange = torch.where(off, math.nan, entropy.detach())
    same, sums = which(odd, strange, wild, example)
    torch.testing.assert_close(same, value)
    torch.testing.assert_close(torch.autograd.grad(same, odd)[0], slope)
    assert all(math.isfinite(total) for total in sums.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("away", [200.0, -200.0])
def test_a_ratio_beyond_floats_gives_a_finite_gradient(kind: losses.Kind, away: float) -> None:
    columns, example = streams()
    logprob, _ = scores()
    columns |= {"old": columns["old"] - away, "ref": columns["ref"] + away}
    value, _ = losses.policy(kind, beta=0.1)(logprob, None, columns, example)
    (slope,) = torch.autograd.grad(value, logprob)
    assert torch.isfinite(value)
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("which", LOCAL + WHOLE, ids=lambda loss: getattr(loss, "kind", "cross_entropy"))
def test_no_loss_waits_for_the_device(which: Loss) -> None:
    """A fake tensor has no value: to ask for one, as .item() or a branch does, raises."""
    columns, example = streams()
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(column) for name, column in columns.items()}
        logprob = mode.from_tensor(scores()[0].detach()).requires_grad_()
        entropy = mode.from_tensor(scores()[1].detach()).requires_grad_()
        value, sums = which(logprob, entropy, fake, mode.from_tensor(example))
        torch.autograd.backward(value)
        assert value.shape == ()
        assert all(total.shape == () and not total.requires_grad for total in sums.values())


@pytest.mark.parametrize("which", [LOCAL[0], LOCAL[2], *WHOLE], ids=lambda loss: getattr(loss, "kind", "ce"))
def test_every_loss_compiles_to_one_graph(which: Loss) -> None:
    columns, example = streams()
    logprob, entropy = scores()
    compiled = torch.compile(which.__call__, fullgraph=True, backend="aot_eager")
    value = which(logprob, entropy, columns, example)[0]
    same = compiled(logprob, entropy, columns, example)[0]
    torch.testing.assert_close(same, value)
    torch.testing.assert_close(torch.autograd.grad(same, logprob)[0], torch.autograd.grad(value, logprob)[0])


def test_half_precision_comes_in_and_single_goes_out() -> None:
    columns, example = streams()
    logprob = scores()[0].detach().bfloat16().requires_grad_()
    low = {name: column.bfloat16() for name, column in columns.items()}
    value, sums = losses.policy("dapo", beta=0.1)(logprob, None, low, example)
    exact, _ = losses.policy("dapo", beta=0.1)(
        logprob.float(), None, {name: column.float() for name, column in low.items()}, example
    )
    assert value.dtype == torch.float32
    assert {total.dtype for total in sums.values()} == {torch.float32}
    torch.testing.assert_close(value, exact, rtol=0, atol=0)


def test_metrics_are_means_over_trained_tokens() -> None:
    """EN-D03: the distance between sampler and trainer is among them."""
    columns, example = streams()
    logprob, entropy = (value.detach() for value in scores())
    _, sums = losses.policy("dapo", clip_high=0.28, beta=0.1)(logprob, entropy, columns, example)
    shown = losses.summary({name: float(total) for name, total in sums.items()})
    on = columns["policy"] != 0
    ratio = (logprob - columns["old"]).exp()[on]
    advantage = columns["advantage"][on]
    assert shown["ratio"] == pytest.approx(float(ratio.mean()), rel=1e-5)
    assert shown["entropy"] == pytest.approx(float(entropy[on].mean()), rel=1e-5)
    assert shown["gap"] == pytest.approx(float((logprob - columns["sampled"])[on].abs().mean()), rel=1e-5)
    low, high = (ratio < 0.8) & (advantage < 0), (ratio > 1.28) & (advantage > 0)
    assert shown["clip_low"] == pytest.approx(float(low.float().mean()))
    assert shown["clip_high"] == pytest.approx(float(high.float().mean()))
    assert shown["clip_high"] > 0
    assert losses.summary({"tokens": 0.0, "ratio": 0.0}) == {}


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_a_token_whose_sampler_logprob_is_unknown_is_taken_as_it_is(mode: losses.Correct) -> None:
    columns, example = streams()
    loss = losses.policy("dapo", correct=mode)
    first = int(columns["policy"].nonzero()[0])
    unknown, equal = columns["sampled"].clone(), columns["sampled"].clone()
    unknown[first], equal[first] = math.nan, columns["old"][first]
    value, sums = loss(scores()[0], None, columns | {"sampled": unknown}, example)
    torch.testing.assert_close(value, loss(scores()[0], None, columns | {"sampled": equal}, example)[0])
    assert all(math.isfinite(amount) for amount in sums.values())


def test_losses_of_other_streams_can_be_added() -> None:
    """A batch may hold supervised and sampled examples at once."""
    policy, supervised = losses.policy("gspo"), losses.cross_entropy()
    mixed = losses.together(policy, supervised)
    columns, example = streams()
    logprob, entropy = scores()
    parts = [loss(logprob, entropy, columns, example) for loss in (policy, supervised)]
    value, sums = mixed(logprob, entropy, columns, example)
    torch.testing.assert_close(value, parts[0][0] + parts[1][0])
    assert mixed.needs == policy.needs | {"ce"}
    assert not mixed.local
    torch.testing.assert_close(sums["1/nll"], parts[1][1]["nll"])
    assert losses.together(policy) is policy


def test_a_loss_names_the_streams_that_it_reads() -> None:
    cases: dict[Loss, set[str]] = {
        losses.cross_entropy(): {"ce"},
        losses.policy("dapo"): {"policy", "advantage", "old"},
        losses.policy("dapo", anchor="self"): {"policy", "advantage"},
        losses.policy("gspo", beta=0.1): {"policy", "advantage", "old", "kl", "ref"},
        losses.policy("dapo", entropy_coef=0.1): {"policy", "advantage", "old", "entropy"},
        losses.policy("dapo", correct="token_mask"): {"policy", "advantage", "old", "sampled"},
    }
    columns, example = streams()
    logprob, entropy = scores()
    for loss, needs in cases.items():
        assert loss.needs == needs
        loss(logprob, entropy, {name: columns[name] for name in needs}, example)


def tinkers(name: str, ratio: Tensor, logprob: Tensor, advantage: Tensor) -> Tensor:
    bounded = ratio.clamp(0.8, 1.2)
    return {
        "importance_sampling": -(ratio * advantage).sum(),
        "ppo": -torch.min(ratio * advantage, bounded * advantage).sum(),
        "cispo": -(bounded.detach() * logprob * advantage).sum(),
    }[name]


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo"])
def test_tinkers_names_give_tinkers_sums(name: str) -> None:
    """EN-C10: one datum, where Tinker has no weights; its thresholds are of the ratio itself."""
    columns, _ = streams()
    logprob, _ = scores()
    ratio = (logprob - columns["old"]).exp()
    expected = tinkers(name, ratio, logprob, columns["advantage"])
    value, _ = losses.tinker(name)(logprob, None, columns | {"policy": torch.ones(TOKENS)}, None)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(
        torch.autograd.grad(value, logprob)[0], torch.autograd.grad(expected, logprob)[0]
    )


def test_tinkers_thresholds_are_taken_and_others_refused() -> None:
    """EN-C10."""
    loss = losses.tinker("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1})
    assert loss == losses.tinker("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1})
    assert loss != losses.tinker("ppo")
    assert losses.tinker("cross_entropy") == losses.cross_entropy()
    assert not losses.tinker("gspo").local
    with pytest.raises(ValueError, match="dance"):
        losses.tinker("dance")
    with pytest.raises(ValueError, match="clip_hi"):
        losses.tinker("ppo", {"clip_hi": 1.0})
    with pytest.raises(ValueError, match="unknown policy loss 'vtrace'"):
        losses.policy("vtrace")  # type: ignore[arg-type]


def test_a_runs_table_makes_its_loss() -> None:
    def made(recipe: str, **grpo: object) -> Loss:
        table: dict[str, object] = {"recipe": recipe}
        table |= {"data": "rows.jsonl"} if recipe == "sft" else {"environment": "arithmetic", "grpo": grpo}
        return losses.make(parse("corral/tiny", table))

    assert made("sft") == losses.cross_entropy()
    assert made("grpo") == losses.policy("dapo", clip_low=0.2, clip_high=0.28)
    assert made("grpo", loss="cispo") == losses.policy("cispo", clip_high=5.0)
    assert made("grpo", loss="gspo") == losses.policy("gspo", clip_low=3e-4, clip_high=4e-4, anchor="self")
    assert made("grpo", loss="gspo", iterations=2) == losses.policy("gspo", clip_low=3e-4, clip_high=4e-4)
    assert made("grpo", loss="dr_grpo", beta=0.1, entropy_coef=0.01) == losses.policy(
        "dr_grpo", clip_high=0.28, beta=0.1, entropy_coef=0.01
    )
