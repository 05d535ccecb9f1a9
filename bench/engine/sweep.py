"""Step time and allocated memory over many settings, in the engine alone: what speeds are fitted to. Whole
runs, and their peaks, are measured by bench/forecast.py."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch

from bench.engine import ours, shapes
from bench.forecast_shapes import SHAPES


class Setting(NamedTuple):
    """`sft`: rows of a step and their mean tokens. `grpo`: prompts, completions of each, tokens of a prompt
    and of a completion."""

    model: str
    micro_tokens: int
    rank: int = 16
    sft: tuple[int, int] | None = None
    grpo: tuple[int, int, int, int] | None = None
    recompute: bool = False


# Packs of every size that a plan takes, of models that bench/forecast.py does not hold out.
SETTINGS = (
    Setting("tinyllama", 3072, 4, sft=(64, 150)),
    Setting("qwen2.5-3b", 1152, 64, sft=(8, 600)),
    Setting("qwen2.5-0.5b", 12_288, 8, grpo=(16, 16, 100, 256)),
    Setting("mistral-7b/4", 6144, sft=(16, 300)),
    Setting("smollm-1.7b", 12_288, 8, sft=(24, 400)),
    Setting("qwen2.5-1.5b", 4096, grpo=(2, 32, 100, 512)),
    Setting("qwen3-1.7b", 4096, sft=(32, 200), recompute=True),
    Setting("llama-1b", 1536, 2, sft=(16, 300)),
    Setting("smollm-1.7b", 2048, 32, grpo=(8, 8, 100, 128)),
    Setting("qwen3-0.6b", 12_288, sft=(32, 300)),
    Setting("nemo-12b/5", 2048, 2, sft=(16, 300)),
    Setting("mistral-7b/4", 2048, 2, grpo=(8, 4, 200, 64)),
    Setting("qwen3-4b/2", 6144, 128, sft=(24, 300)),
    Setting("small-360m", 3072, 64, sft=(32, 300)),
    Setting("llama-3b", 6144, 8, grpo=(8, 16, 100, 128)),
    Setting("qwen3-8b/4", 8192, sft=(16, 900)),
    Setting("qwen2.5-3b", 6144, 16, sft=(24, 500), recompute=True),
)


def run(deadline_s: float, numbers: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
    """One record for each setting, or for those of some numbers, until the time is up."""
    began = time.monotonic()
    torch.set_num_threads(1)  # as in a run: see corral/engine/inputs.py
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
    plan: dict[str, Any] = {
        "micro_tokens": setting.micro_tokens,
        "recompute": "full" if setting.recompute else "none",
    }
    if setting.sft is not None:
        rows, tokens = setting.sft
        lengths = shapes.spread(rows * 22, tokens)
        rate = ours.sft(
            setting.model,
            batches=ours.batches(lengths, rows),
            micro_tokens=setting.micro_tokens,
            recompute=setting.recompute,
            rank=setting.rank,
            # Until passes are replayed: see corral/engine/training/cuda_graphs.py.
            warm=4,
        )
        train: dict[str, Any] = {"recipe": "sft", "data": "x", "batch_size": rows}
        data: dict[str, Any] = {
            "rows": len(lengths),
            "tokens": sum(lengths),
            "longest": max(lengths),
            "trained": sum(lengths),
            "spread": statistics.pstdev(lengths) / statistics.mean(lengths),
        }
    else:
        assert setting.grpo is not None
        prompts, group, prompt, new = setting.grpo
        rate = ours.grpo(
            setting.model,
            prompts=prompts,
            group=group,
            prompt=prompt,
            new=new,
            steps=5,
            micro_tokens=setting.micro_tokens,
            rank=setting.rank,
        )
        plan |= {"rows": prompts * group, "context": prompt + new}
        train = {
            "recipe": "grpo",
            "environment": "arithmetic",
            "prompts_per_step": prompts,
            "grpo": {"group_size": group, "max_completion": new},
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
        "model": facts(setting.model),
        "gpu": "h200",
        "train": {**train, "lora": {"rank": setting.rank}},
        "plan": plan,
        "data": data,
        "allocated_bytes": round(rate.peak_gib * ours.GIB),
        "step_s": rate.step_s,
        "sampling_s": rate.sampling_s,
        "first_s": rate.first_s,
    }


def facts(name: str) -> dict[str, Any]:
    """Of corral/recipes/models.py, as the forecast reads them from the model's config."""
    shape = SHAPES[name]
    said = asdict(shape)
    family = said.pop("kind")
    return {
        **said,
        "id": name,
        "family": family,
        "context": 32_768,
        "qk_norm": family == "qwen3",
        "attention_bias": family == "qwen2",
    }
