"""Step time and allocated memory over many settings, in the engine alone: what speeds are fitted to. Whole
runs, and their peaks, are measured by bench/forecast.py."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from bench.engine import ours, shapes

NAMES = {"qwen3-0.6b": "Qwen/Qwen3-0.6B", "qwen3-4b": "Qwen/Qwen3-4B"}


class Setting(NamedTuple):
    model: str
    micro_tokens: int
    recompute: bool = False
    rank: int = 16
    packs: int = 1
    # Of grpo: prompts, completions of each, tokens of a prompt and of a completion.
    grpo: tuple[int, int, int, int] | None = None


SETTINGS = (
    Setting("qwen3-0.6b", 8192),
    Setting("qwen3-4b", 8192, recompute=True),
    Setting("qwen3-0.6b", 8192, grpo=(8, 8, 128, 128)),
    Setting("qwen3-4b", 8192),
    Setting("qwen3-0.6b", 32768),
    Setting("qwen3-4b", 16384, recompute=True),
    Setting("qwen3-0.6b", 8192, recompute=True),
    Setting("qwen3-4b", 8192, grpo=(8, 8, 128, 128)),
    Setting("qwen3-0.6b", 8192, rank=64),
    Setting("qwen3-4b", 4096, recompute=True, rank=64),
    Setting("qwen3-0.6b", 4096),
    Setting("qwen3-4b", 4096),
    Setting("qwen3-0.6b", 16384, grpo=(32, 8, 256, 256)),
    Setting("qwen3-0.6b", 32768, recompute=True),
    Setting("qwen3-4b", 8192, rank=4),
    Setting("qwen3-0.6b", 4096, rank=8, packs=4),
    Setting("qwen3-4b", 4096, rank=128, packs=2),
    Setting("qwen3-0.6b", 4096, recompute=True, rank=128),
    Setting("qwen3-4b", 32768, recompute=True),
    Setting("qwen3-0.6b", 24576),
    Setting("qwen3-4b", 12288),
    Setting("qwen3-0.6b", 4096, grpo=(4, 16, 512, 64)),
    Setting("qwen3-4b", 16384, grpo=(16, 8, 256, 128)),
    Setting("qwen3-0.6b", 12288, rank=32),
    Setting("qwen3-0.6b", 16384, recompute=True),
)


def run(deadline_s: float, numbers: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
    """One record for each setting, or for those of some numbers, until the time is up."""
    began = time.monotonic()
    for setting in SETTINGS if numbers is None else [SETTINGS[number] for number in numbers]:
        if time.monotonic() - began > deadline_s:
            return
        # Each setting is a run of its own: nothing compiled or allocated for the last one is left.
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        try:
            yield measured(setting)
        except torch.OutOfMemoryError:
            continue


def measured(setting: Setting) -> dict[str, Any]:
    lora = {"lora": {"rank": setting.rank}}
    plan: dict[str, Any] = {
        "micro_tokens": setting.micro_tokens,
        "recompute": "full" if setting.recompute else "none",
    }
    if setting.grpo is None:
        rate = ours.sft(
            setting.model,
            micro_tokens=setting.micro_tokens,
            packs=setting.packs,
            recompute=setting.recompute,
            rank=setting.rank,
            steps=4,
            # Until passes are replayed: see corral/engine/training/cuda_graphs.py.
            warm=4,
        )
        tokens, sequences = rate.work
        mean = tokens / sequences
        train: dict[str, Any] = {"recipe": "sft", "data": "x", "batch_size": round(sequences), **lora}
        data = {"rows": round(sequences), "tokens": round(tokens), "longest": shapes.LONGEST, "spread": 0.0}
    else:
        prompts, group, prompt, new = setting.grpo
        rate = ours.grpo(
            setting.model,
            prompts=prompts,
            group=group,
            prompt=prompt,
            new=new,
            steps=3,
            micro_tokens=setting.micro_tokens,
            rank=setting.rank,
        )
        plan |= {"rows": prompts * group, "context": prompt + new}
        mean = prompt
        train = {
            "recipe": "grpo",
            "environment": "arithmetic",
            "prompts_per_step": prompts,
            "grpo": {"group_size": group, "max_completion": new},
            **lora,
        }
        data = {
            "rows": prompts,
            "tokens": prompts * prompt,
            "longest": prompt,
            "spread": 0.0,
            "completion": float(new),
            "turns": 1,
        }
    return {
        "what": rate.what,
        "model": NAMES[setting.model],
        "gpu": "h200",
        "train": train,
        "plan": plan,
        "data": data,
        "mean_tokens": mean,
        "allocated_bytes": round(rate.peak_gib * ours.GIB),
        "step_s": rate.step_s,
        "first_s": rate.first_s,
    }
