"""That training teaches: by reward alone from scratch, and by examples a real model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jobs_for_tests as jobs
import pytest
import torch

from corral.engine.data.chat import Renderer
from corral.engine.data.sequences import Example
from corral.engine.engine import Engine, Options
from corral.engine.training import advantages, losses
from corral.engine.training.sft import held_out_loss
from corral.recipes.train_tables import Lora

# One seed shows that it learns; `make soak` shows how far it comes, and that the seed was not luck.
LONG = os.environ.get("CORRAL_MODEL_PROFILE") == "long"
SEEDS, STEPS, GOAL = ([0, 1, 2], 80, 0.9) if LONG else ([0], 40, 0.7)


@pytest.mark.parametrize("seed", SEEDS)
def test_reward_alone_teaches_the_tiny_model_sums(tmp_path: Path, seed: int) -> None:
    table = {
        "recipe": "grpo",
        "environment": "arithmetic",
        "steps": STEPS,
        "schedule": "linear",
        "prompts_per_step": 16,
        "learning_rate": 1e-3,
        "max_length": 64,
        "save_every": STEPS,
        "eval_rows": 25,
        "grpo": {"group_size": 16, "max_completion": 3, "entropy_coef": 0.05},
    }
    jobs.here(jobs.write(tmp_path, {"model": "corral/tiny", "seed": seed, "train": table}))
    history = json.loads((tmp_path / "output" / "metrics.json").read_bytes())["history"]
    rewards = [row["reward"] for row in history if "reward" in row]
    assert rewards[0] < 0.15
    assert sum(rewards[-10:]) / 10 > GOAL


def test_examples_lower_the_held_out_loss_of_a_real_model(smollm2_cache: Path) -> None:
    pytest.importorskip("gguf")
    torch.set_num_threads(1)
    engine = Engine.load(
        "smollm2-135m", lora=Lora(), options=Options(micro_tokens=512), cache_dir=smollm2_cache
    )
    renderer = Renderer(engine.loaded.tokenizer)
    cities = ["Oslo", "Rome", "Lima", "Cairo", "Paris", "Quito", "Seoul", "Tunis", "Delhi", "Dakar"]
    rows = []
    for city in cities:
        talk = [
            {"role": "user", "content": f"Say hello to {city}."},
            {"role": "assistant", "content": f"{city}, ahoy! The tide is kind to you today."},
        ]
        rendered = renderer.conversation(talk, None)
        rows += [(sample.tokens, sample.mask) for sample in rendered]
    kept, held_out = rows[:7], rows[7:]
    before = held_out_loss(engine, held_out, 0).interval.mean
    for step in range(6):
        batch: list[Example] = advantages.supervised(kept[step % 2 :: 2])
        engine.forward_backward(batch, losses.cross_entropy())
        engine.optim_step(5e-4)
    after = held_out_loss(engine, held_out, 6).interval.mean
    assert after < before / 2
