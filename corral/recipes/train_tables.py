"""The `[train]` table of a run file as values. Build them with `corral.recipes.train.parse`."""

# `setting` is `dataclasses.field` with limits, which ruff cannot know.
# ruff: noqa: RUF009

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from corral.recipes.schema import Scalar, setting

Recipe = Literal["sft", "grpo"]
LossKind = Literal["grpo", "dapo", "dr_grpo", "bnpo", "gspo", "cispo"]

# Sequence-level ratios stay within a few thousandths of 1, so GSPO's authors clip there; CISPO caps the
# weight and not the update, so its authors' cap is far out.
CLIPS: Mapping[str, tuple[float, float]] = {"gspo": (3e-4, 4e-4), "cispo": (0.2, 5.0)}
CLIP_LOW, CLIP_HIGH = 0.2, 0.28


@dataclass(frozen=True, slots=True)
class Lora:
    """The adapter that is trained in place of the model."""

    rank: int = setting("Width of the adapter.", default=16, ge=1, le=1024, also=("r", "lora_rank"))
    alpha: int | None = setting(
        "Numerator of the adapter's scale; twice the rank where not given.",
        default=None,
        ge=1,
        le=65536,
        also=("lora_alpha",),
    )
    rslora: bool = setting(
        "Scale by alpha / sqrt(rank) and not by alpha / rank.", default=True, also=("use_rslora",)
    )
    targets: Literal["all-linear"] | tuple[str, ...] = setting(
        "Which linear layers get an adapter: all of them, or a list of names such as q_proj.",
        default="all-linear",
        pattern=r"[A-Za-z0-9_]+",
        min_items=1,
        max_items=64,
        also=("target_modules",),
    )

    REFUSED: ClassVar[Mapping[str, str]] = {
        "dropout": "adapters are trained without dropout; leave it out",
        "lora_dropout": "adapters are trained without dropout; leave it out",
    }

    @property
    def scaling(self) -> float:
        """What the product of the two adapter matrices is multiplied with."""
        alpha = self.alpha or 2 * self.rank
        return alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


@dataclass(frozen=True, slots=True)
class Grpo:
    """How completions are sampled and what is made of their rewards."""

    loss: LossKind = setting("Which loss of the GRPO family.", default="dapo", also=("loss_type",))
    group_size: int = setting(
        "Completions per prompt.",
        default=8,
        ge=2,
        le=1024,
        why="rewards are compared within a group, so one completion alone teaches nothing",
        also=("num_generations",),
    )
    max_completion: int = setting(
        "Most tokens of one completion.",
        default=256,
        ge=1,
        le=1 << 20,
        also=("max_tokens", "max_completion_length", "max_completion_tokens", "max_new_tokens"),
    )
    temperature: float = setting("Of sampling. Above 2 almost every token is noise.", default=1.0, gt=0, le=2)
    top_p: float = setting("Sample from the most likely tokens that hold this much.", default=1.0, gt=0, le=1)
    top_k: int = setting("Sample from this many most likely tokens; 0 is all.", default=0, ge=0, le=1 << 20)
    stop: tuple[str, ...] = setting(
        "Texts that end a completion.",
        default=(),
        max_items=16,
        max_chars=256,
        also=("stop_sequences", "stop_strings"),
    )
    clip_low: float = setting(
        "How far below 1 the probability ratio may go. 0.2; 0.0003 for gspo.",
        default=CLIP_LOW,
        ge=0,
        lt=1,
        also=("epsilon",),
    )
    clip_high: float = setting(
        "How far above 1 the ratio may go. 0.28; 0.0004 for gspo; for cispo the cap of the ratio itself, 5.",
        default=CLIP_HIGH,
        gt=0,
        le=100,
        also=("epsilon_high",),
    )
    scale: Literal["group", "batch", "none"] = setting(
        "Divide advantages by the deviation of the group's or the batch's rewards, or by nothing.",
        default="group",
        also=("scale_rewards",),
    )
    beta: float = setting(
        "Weight of the KL divergence from the model before training.",
        default=0.0,
        ge=0,
        le=10,
        also=("kl_penalty_coef", "kl_coef"),
    )
    iterations: int = setting(
        "Optimiser passes over each step's completions.", default=1, ge=1, le=16, also=("num_iterations",)
    )
    entropy_coef: float = setting("Weight of an entropy bonus.", default=0.0, ge=0, le=1)
    mask_truncated: bool = setting(
        "Leave completions that ran into max_completion out of the loss.",
        default=False,
        also=("mask_truncated_completions",),
    )
    overlong_buffer: int = setting(
        "Over so many last tokens before max_completion a growing penalty is taken off the reward; 0 is off.",
        default=0,
        ge=0,
        le=1 << 20,
    )
    overlong_penalty: float = setting("The penalty at max_completion.", default=1.0, gt=0, le=1000)
    thinking_length_penalty: float = setting(
        "Most reward taken off for thinking that fills the completion.",
        default=0.0,
        ge=0,
        le=1,
        also=("thinking_length_penalty_coef",),
    )
    mismatch_limit: float = setting(
        "Stop when the sampler's and the trainer's logprobs differ by more than this on average; 0 is off.",
        default=0.5,
        ge=0,
        le=100,
    )
    max_turns: int = setting(
        "Most turns of one episode.", default=8, ge=1, le=1024, also=("max_episode_turns",)
    )

    REFUSED: ClassVar[Mapping[str, str]] = {
        "advantage_clip": "advantages are not clipped; `clip_low` and `clip_high` bound the ratio"
    }


@dataclass(frozen=True, slots=True)
class Guards:
    """What ends a run that has gone wrong, or is only said. A limit of 0 is off."""

    nan: Literal["stop", "skip"] = setting(
        "A loss or gradient that is not a number: stop, or leave that step out.", default="stop"
    )
    dead_reward_steps: int = setting(
        "So many steps in a row in which no group's rewards differ.",
        default=20,
        ge=0,
        le=1 << 20,
        only="grpo",
    )
    dead_reward: Literal["stop", "warn"] = setting("What then.", default="stop", only="grpo")
    min_entropy: float = setting(
        "Mean entropy of a token, in nats, under this.", default=0.0, ge=0, le=10, only="grpo"
    )
    low_entropy: Literal["stop", "warn"] = setting("What then.", default="stop", only="grpo")
    min_length: int = setting(
        "Mean tokens of a completion under this.", default=0, ge=0, le=1 << 20, only="grpo"
    )
    low_length: Literal["stop", "warn"] = setting("What then.", default="stop", only="grpo")


@dataclass(frozen=True, slots=True)
class Train:
    """One training run as it is in effect: every default is filled in. `only` settings of the other recipe
    hold their defaults and mean nothing."""

    model: str
    recipe: Recipe = setting("sft: supervised fine-tuning; grpo: reinforcement.", also=("algorithm",))
    data: str | None = setting(
        "JSONL or Parquet file, or a folder of them. Needed by sft; for grpo the rows of the environment.",
        default=None,
        also=("dataset", "training_file", "train_file"),
    )
    environment: str | None = setting(
        "A .py file, a folder with environment.py, a git reference (git+https://HOST/REPOSITORY@TAG#FOLDER), "
        "or a bundled name such as arithmetic. Needed by grpo; with sft it only evaluates.",
        default=None,
        also=("env",),
    )
    environment_params: Mapping[str, Scalar] = setting(
        "Keyword arguments of load_environment.", default_factory=dict, max_items=64
    )
    eval_data: str | None = setting(
        "Rows to evaluate on.", default=None, also=("validation_file", "eval_file", "test_data")
    )
    eval_fraction: float = setting(
        "Part of the rows that is held out for evaluation.", default=0.0, ge=0, le=0.5, only="sft"
    )
    eval_every: int | None = setting(
        "Steps between evaluations; at each save where not given.",
        default=None,
        ge=1,
        le=1 << 30,
        also=("eval_steps", "eval_interval"),
    )
    eval_rows: int = setting("Most rows or tasks of one evaluation.", default=64, ge=1, le=1 << 20)
    epochs: float | None = setting(
        "Passes over the rows. 1 where neither this nor steps is given.",
        default=None,
        gt=0,
        le=10_000,
        only="sft",
        also=("num_train_epochs", "n_epochs", "num_epochs"),
    )
    steps: int | None = setting(
        "Optimiser steps; for grpo rounds of sampling.",
        default=None,
        ge=1,
        le=10_000_000,
        by={"grpo": 100},
        also=("max_steps",),
    )
    batch_size: int = setting(
        "Sequences per optimiser step.",
        default=32,
        ge=1,
        le=1 << 20,
        only="sft",
        also=("per_device_train_batch_size", "global_batch_size"),
    )
    prompts_per_step: int = setting("Prompts per step.", default=16, ge=1, le=1 << 16, only="grpo")
    learning_rate: float | Literal["auto"] = setting(
        "Peak rate; auto takes it from the model's width, the method and the recipe.",
        default="auto",
        gt=0,
        lt=1,
        why="1e-6 to 1e-3 is usual",
        also=("lr",),
    )
    schedule: Literal["constant", "linear", "cosine"] = setting(
        "How the rate falls after the warm-up.",
        default="cosine",
        by={"sft": "cosine", "grpo": "constant"},
        also=("lr_scheduler_type", "lr_schedule"),
    )
    warmup: float = setting(
        "Part of the steps in which the rate rises.",
        default=0.03,
        ge=0,
        le=0.5,
        by={"sft": 0.03, "grpo": 0.0},
        also=("warmup_ratio",),
    )
    weight_decay: float = setting("AdamW's.", default=0.0, ge=0, le=1)
    beta1: float = setting("AdamW's.", default=0.9, ge=0, lt=1, also=("adam_beta1",))
    beta2: float = setting("AdamW's.", default=0.99, ge=0, lt=1, also=("adam_beta2",))
    grad_clip: float = setting(
        "Largest norm of the gradient; 0 is off.", default=1.0, ge=0, le=1e6, also=("max_grad_norm",)
    )
    max_length: int = setting(
        "Most tokens of one sequence, prompt and completion together; never more than the model's context.",
        default=2048,
        ge=8,
        le=1 << 20,
        also=("max_seq_length", "max_context_tokens", "context"),
    )
    bad_rows: Literal["refuse", "skip"] = setting(
        "What to do with rows that cannot be read.", default="refuse"
    )
    too_long: Literal["refuse", "skip", "cut"] = setting(
        "What to do with rows longer than max_length.", default="refuse"
    )
    loss_on: Literal["assistant", "all"] = setting(
        "Train on what the assistant says, or on every token.", default="assistant", only="sft"
    )
    pack: bool = setting(
        "Put several sequences side by side into one forward pass.", default=True, also=("packing",)
    )
    micro_tokens: int | Literal["auto"] = setting(
        "Tokens of one forward pass; auto takes what the memory allows.", default="auto", ge=64, le=1 << 22
    )
    recompute: Literal["auto", "none", "full"] = setting(
        "Compute activations twice to save memory; auto only where they do not fit.",
        default="auto",
        also=("gradient_checkpointing", "activation_checkpointing"),
    )
    precision: Literal["auto", "bf16", "fp32"] = setting(
        "Of weights and activations; auto is bf16 on a GPU and fp32 on a CPU.",
        default="auto",
        also=("dtype",),
    )
    thinking: bool = setting("Let a model that can think do so.", default=False, also=("enable_thinking",))
    system: str | None = setting(
        "System message for rows that have none.", default=None, max_chars=100_000, also=("system_prompt",)
    )
    save_every: int = setting(
        "Steps between checkpoints.",
        default=50,
        ge=1,
        le=1 << 30,
        by={"sft": 50, "grpo": 20},
        also=("save_steps",),
    )
    metric: Literal["eval_loss", "eval_reward"] | None = setting(
        "Keep the checkpoint that is best by this; where not given, by what is evaluated.", default=None
    )
    adapter: str | None = setting(
        "An adapter to start from: a folder, an artifact or a run.",
        default=None,
        also=("init_from_adapter", "start_from"),
    )
    method: Literal["lora", "full"] = setting("Train an adapter, or every weight.", default="lora")
    lora: Lora = setting("The adapter.", default_factory=Lora)
    grpo: Grpo = setting("Sampling and the loss of grpo.", default_factory=Grpo, only="grpo")
    guards: Guards = setting("What ends a run that has gone wrong.", default_factory=Guards)

    REFUSED: ClassVar[Mapping[str, str]] = {
        "model": "the model stands at the top of the run file",
        "seed": "seeds stand at the top of the run file",
        "seeds": "seeds stand at the top of the run file",
        "gradient_accumulation_steps": "`micro_tokens` says how much of a step goes through at once",
        "wall_limit": "it stands at the top of the run file",
    }

    @property
    def holds_out(self) -> bool:
        """Whether rows are kept for evaluation."""
        return self.eval_data is not None or self.eval_fraction > 0

    @property
    def evaluates(self) -> bool:
        """Whether anything is evaluated during the run."""
        return self.recipe == "grpo" or self.holds_out or self.environment is not None


@dataclass(frozen=True, slots=True)
class DataFacts:
    """What is known of the rows: how many, their tokens in all, the longest. None is not known.

    For sft a row is a training sequence; for grpo it is a prompt. `trained` are the tokens that the loss is
    on. `spread` is the deviation of a row's length over its mean. `completion` is the mean length of a
    completion, `turns` the most turns of an episode; both are known to a run that has sampled.
    """

    rows: int | None = None
    tokens: int | None = None
    longest: int | None = None
    trained: int | None = None
    spread: float | None = None
    completion: float | None = None
    turns: int | None = None
