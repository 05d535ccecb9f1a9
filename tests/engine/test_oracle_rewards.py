"""From rewards to gradients our side equals TRL's, which is only told what was sampled and what it earned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trl_oracle import (
    END,
    FAMILY,
    MAX_COMPLETION,
    Graded,
    alone,
    assert_same,
    called,
    graded,
    grpo_trainer,
    separate,
    tokenizer,
)

from corral.engine.environments.transcript import SampledSequence
from corral.engine.sampling.rollouts import Episode
from corral.engine.training import advantages, losses
from corral.recipes.train_tables import Grpo

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its libraries'

# Prompt, completion, reward; the first four are one group.
SAMPLED: list[tuple[str, list[int], float | None]] = [
    ("w5 w6 w7", [9, 10, 11, END], 1.0),
    ("w5 w6 w7", [9, 12, END], 0.0),
    ("w5 w6 w7", list(range(20, 20 + MAX_COMPLETION)), 0.25),
    ("w5 w6 w7", [30, 31, 32, 33, 34, END], 1.0),
    ("w8 w9", [40, END], None),
    ("w8 w9", [41, 42, 43, END], -2.0),
    ("w8 w9", list(range(50, 50 + MAX_COMPLETION)), 3.5),
    ("w8 w9", [44, 45, 46, 47, 48, 49, END], 0.5),
]


def episodes() -> list[Episode]:
    """With logprobs of a sampler that is somewhat off."""
    rng = torch.Generator().manual_seed(3)
    made = []
    for place, (text, completion, reward) in enumerate(SAMPLED):
        prompt = tokenizer()(text)["input_ids"]
        with torch.no_grad():
            logprob = alone(torch.tensor([*prompt, *completion]))[0][len(prompt) - 1 :]
        sampled = (logprob + 0.4 * torch.randn(logprob.shape, generator=rng)).tolist()
        given = [0.0] * len(prompt)
        reason = "stop" if completion[-1] == END else "length"
        mask = given + [1.0] * len(completion)
        sample = SampledSequence([*prompt, *completion], mask, given + sampled, reason, len(prompt))
        made.append(Episode("train", 0, place // 4, 0, [sample], [], 0, reward, {}))
    return made


def trls(*, with_sampler: bool, **config: Any) -> tuple[Graded, dict[str, torch.Tensor]]:
    """TRL's loss and gradients, and what it made of the rewards."""
    trainer = grpo_trainer(**config)
    prompts = [tokenizer()(text)["input_ids"] for text, _, _ in SAMPLED]
    completions = [completion for _, completion, _ in SAMPLED]
    texts = tokenizer().batch_decode(completions)
    logprobs = [
        [logprob for logprob, m in zip(e.samples[0].logprobs, e.samples[0].mask, strict=True) if m]
        for e in episodes()
    ]
    trainer._generate = lambda _: (
        *(prompts, completions, None, texts),
        *(logprobs if with_sampler else None, {}, None, None),
    )
    trainer.use_vllm = with_sampler  # TRL looks at the sampler's logprobs only then
    rows = [{"prompt": text, "points": reward} for text, _, reward in SAMPLED]
    batch = trainer._generate_and_score_completions(rows)
    return graded(trainer.model, trainer._compute_loss(trainer.model, batch)), batch


@pytest.mark.parametrize("mask_truncated", [False, True], ids=["kept", "masked"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("kind", FAMILY)
def test_from_rewards_to_gradients_equals_trl(kind: Any, scale: Any, mask_truncated: bool) -> None:
    """EN-C01: with a completion that has no reward, two that were cut, and groups of different spread."""
    oracle, batch = trls(
        with_sampler=False,
        scale_rewards=scale,
        mask_truncated_completions=mask_truncated,
        epsilon_high=5.0,
        entropy_coef=0.01,
        **called(kind),
    )
    grpo = Grpo(
        loss=kind,
        scale=scale,
        mask_truncated=mask_truncated,
        max_completion=MAX_COMPLETION,
        entropy_coef=0.01,
    )
    scores = advantages.score(episodes(), grpo)
    torch.testing.assert_close(torch.tensor(scores.advantages), batch["advantages"], rtol=1e-5, atol=1e-6)
    assert (scores.unscored, scores.truncated) == (1, 2)
    loss = losses.policy(kind, clip_high=5.0, anchor="self", entropy_coef=0.01)
    assert_same(separate(advantages.build(episodes(), grpo, scores=scores), loss), oracle)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("kind", ["dapo", "gspo", "cispo"])
def test_the_correction_for_the_sampler_equals_trls(kind: Any, mode: Any) -> None:
    """EN-C01: TRL corrects so only with vLLM; EN-D03: here every sampler gives logprobs."""
    oracle, _ = trls(
        with_sampler=True,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_max=1.2,
        vllm_importance_sampling_clip_min=0.5,
        epsilon_high=5.0,
        **called(kind),
    )
    loss = losses.policy(kind, clip_high=5.0, anchor="self", correct=mode, correct_low=0.5, correct_high=1.2)
    examples = advantages.build(episodes(), Grpo(loss=kind, max_completion=MAX_COMPLETION))
    assert_same(separate(examples, loss), oracle)
