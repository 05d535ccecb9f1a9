"""TRL's side: its own trainers, in the configuration that works best without packages from the network."""

from __future__ import annotations

import logging
import random
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from bench.engine import shapes
from bench.engine.ours import GIB, Rate

logging.disable(logging.WARNING)


class _Clock(TrainerCallback):
    """When each optimiser step began and ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def times(self, warm: int) -> list[float]:
        return [b - a for a, b in zip(self.ends[warm - 1 :], self.ends[warm:], strict=False)]


def _lora() -> LoraConfig:
    return LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def words(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose every token is a word: `t17` is 17."""
    table = {f"t{n}": n for n in range(vocabulary)}
    plain = Tokenizer(models.WordLevel(table, unk_token="t0"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=plain, padding_side="left")
    made.pad_token, made.eos_token = "t1", "t2"
    return made


def sft(
    made: PreTrainedModel,
    name: str,
    *,
    length: int,
    batch: int,
    recompute: bool,
    packing: bool = True,
    steps: int = 8,
    warm: int = 3,
) -> Rate:
    count = (steps + warm) * batch * (length // 300 + 2 if packing else 1)
    rows = Dataset.from_list([{"input_ids": text} for text in shapes.texts(shapes.lengths(count))])
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            output_dir=folder,
            max_steps=steps + warm,
            per_device_train_batch_size=batch,
            packing=packing,
            max_length=length,
            gradient_checkpointing=recompute,
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),
            learning_rate=1e-4,
            logging_steps=1000,
            report_to=[],
            save_strategy="no",
            dataset_kwargs={"skip_prepare_dataset": False},
            optim="adamw_torch_fused",
        )
        tokenizer = words(made.config.vocab_size)
        trainer = SFTTrainer(
            model=made,
            args=config,
            train_dataset=rows,
            processing_class=tokenizer,
            peft_config=_lora(),
            callbacks=[clock],
        )
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        trainer.train()
        tokens = [
            int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["input_ids"].numel()
            for _, batch in zip(range(4), iter(trainer.get_train_dataloader()), strict=False)
        ]
    times = clock.times(warm)
    peak = torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else 0.0
    middle = sorted(times)[len(times) // 2]
    mean = sum(tokens) / len(tokens)
    laid, again = "packed" if packing else "padded", "full" if recompute else "none"
    what = f"TRL sft {name}, {batch} x {length}, {laid}, recompute {again}"
    rate = mean * len(times) / sum(times)
    flops = shapes.flops_per_token(made, length=500, recompute=recompute)
    return Rate(
        what,
        rate,
        middle,
        peak,
        clock.ends[0] - begin,
        mfu=rate * flops / 790e12,
        note=f"{mean:.0f} tokens a step",
    )


def grpo(
    made: PreTrainedModel, name: str, *, prompts: int, group: int, prompt: int, new: int, steps: int = 2
) -> Rate:
    draw = random.Random(3)
    tokenizer = words(made.config.vocab_size)
    top = made.config.vocab_size
    rows = Dataset.from_list(
        [
            {"prompt": " ".join(f"t{draw.randrange(100, top)}" for _ in range(prompt))}
            for _ in range(prompts * (steps + 2))
        ]
    )

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(len(text) % 7) for text in completions]

    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=steps + 1,
            per_device_train_batch_size=prompts * group,
            num_generations=group,
            max_completion_length=new,
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),
            learning_rate=1e-5,
            logging_steps=1000,
            report_to=[],
            save_strategy="no",
            beta=0.0,
            optim="adamw_torch_fused",
        )
        trainer = GRPOTrainer(
            model=made,
            reward_funcs=reward,
            args=config,
            train_dataset=rows,
            processing_class=tokenizer,
            peft_config=_lora(),
            callbacks=[clock],
        )
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        trainer.train()
    times = clock.times(1)
    peak = torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else 0.0
    what = f"TRL grpo {name}, {prompts} prompts x {group} of {prompt}+{new}, generate()"
    middle = sorted(times)[len(times) // 2]
    return Rate(what, prompts * group / middle, middle, peak, clock.ends[0] - begin)
