"""Every rule between settings: what breaks it, and that the same table without the break is accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from corral.recipes import models
from corral.recipes import train_rules as rules
from corral.recipes.train import TrainError, check_model, parse

SFT: dict[str, Any] = {"recipe": "sft", "data": "chat.jsonl"}
GRPO: dict[str, Any] = {"recipe": "grpo", "environment": "arithmetic"}
QWEN = "qwen3-0.6b"

BROKEN = [
    # batch_size and prompts_per_step refuse each other (MT-D33)
    ("_only", GRPO, {"batch_size": 8}, "train.batch_size", "use `prompts_per_step`"),
    ("_only", SFT, {"prompts_per_step": 8}, "train.prompts_per_step", "use `batch_size`"),
    ("_only", SFT, {"grpo": {}}, "train.grpo", "belongs to recipe 'grpo'"),
    ("_only", SFT, {"guards": {"min_entropy": 0.1}}, "train.guards.min_entropy", "belongs to recipe 'grpo'"),
    ("_only", GRPO, {"epochs": 1}, "train.epochs", "use `steps`"),
    ("_only", GRPO, {"loss_on": "all"}, "train.loss_on", "belongs to recipe 'sft'"),
    ("_only", GRPO, {"eval_fraction": 0.1}, "train.eval_fraction", "belongs to recipe 'sft'"),
    ("_length_of_run", SFT, {"steps": 5, "epochs": 1}, "train.steps", "keep the one you mean"),
    ("_what_to_learn_from", SFT, {"data": None}, "train.data", "is required for sft"),
    ("_what_to_learn_from", GRPO, {"environment": None}, "train.environment", "is required for grpo"),
    (
        "_environment_params",
        SFT,
        {"environment_params": {"a": 1}},
        "train.environment_params",
        "no `environment`",
    ),
    ("_evaluation", SFT, {"eval_data": "e.jsonl", "eval_fraction": 0.1}, "train.eval_fraction", "both"),
    ("_evaluation", SFT, {"eval_every": 5}, "train.eval_every", "nothing is evaluated"),
    ("_evaluation", SFT, {"eval_rows": 5}, "train.eval_rows", "nothing is evaluated"),
    ("_metric", SFT, {"metric": "eval_loss"}, "train.metric", "no held-out loss"),
    ("_metric", SFT, {"metric": "eval_reward"}, "train.metric", "no reward"),
    ("_metric", GRPO, {"metric": "eval_loss"}, "train.metric", "take 'eval_reward'"),
    # found before a machine is rented (MT-D30)
    ("_room", GRPO, {"max_length": 256}, "train.grpo.max_completion", "no room for a prompt"),
    ("_one_pass", SFT, {"micro_tokens": 1024}, "train.micro_tokens", "does not fit into 1024"),
    ("_cutting", GRPO, {"too_long": "cut"}, "train.too_long", "never cut"),
    ("_method", SFT, {"method": "full", "lora": {"rank": 8}}, "train.lora", "every weight"),
    ("_method", SFT, {"method": "full", "adapter": "run"}, "train.adapter", "every weight"),
    ("_method", GRPO, {"method": "full", "grpo": {"beta": 0.1}}, "train.grpo.beta", "method 'full' has none"),
    (
        "_overlong",
        GRPO,
        {"grpo": {"overlong_buffer": 256}},
        "train.grpo.overlong_buffer",
        "under max_completion",
    ),
    ("_overlong", GRPO, {"grpo": {"overlong_penalty": 2}}, "train.grpo.overlong_penalty", "no effect"),
    (
        "_overlong",
        GRPO,
        {"grpo": {"overlong_buffer": 10, "mask_truncated": True}},
        "train.grpo.overlong_buffer",
        "keep one of the two",
    ),
    ("_clips", GRPO, {"grpo": {"loss": "cispo", "clip_low": 0.1}}, "train.grpo.clip_low", "from above only"),
    ("_guards", GRPO, {"guards": {"low_entropy": "warn"}}, "train.guards.low_entropy", "no effect"),
    ("_guards", GRPO, {"guards": {"low_length": "warn"}}, "train.guards.low_length", "no effect"),
    (
        "_guards",
        GRPO,
        {"guards": {"dead_reward_steps": 0, "dead_reward": "warn"}},
        "train.guards.dead_reward",
        "no effect",
    ),
    ("_guards", GRPO, {"guards": {"min_length": 999}}, "train.guards.min_length", "more than max_completion"),
    (
        "_thinking",
        GRPO,
        {"grpo": {"thinking_length_penalty": 0.5}},
        "train.grpo.thinking_length_penalty",
        "true",
    ),
    (
        "_context",
        SFT,
        {"max_length": 50_000},
        "train.max_length",
        "more than the context of qwen3-0.6b, 40960",
    ),
    ("_targets", SFT, {"lora": {"targets": ["q_prj"]}}, "train.lora.targets[0]", "did you mean 'q_proj'?"),
    ("_targets", SFT, {"lora": {"targets": ["q_proj", "q_proj"]}}, "train.lora.targets[1]", "twice"),
    # an adapter on the head was silently ignored elsewhere (EN-D07)
    ("_targets", SFT, {"lora": {"targets": ["lm_head"]}}, "train.lora.targets[0]", "not supported"),
    ("_top_k", GRPO, {"grpo": {"top_k": 200_000}}, "train.grpo.top_k", "more than the 151936 tokens"),
]


@pytest.mark.parametrize(("rule", "base", "change", "path", "words"), BROKEN)
def test_a_rule_is_kept(
    rule: str, base: dict[str, Any], change: dict[str, Any], path: str, words: str
) -> None:
    """MT-D33."""
    parse(QWEN, base)
    with pytest.raises(TrainError) as caught:
        parse(QWEN, {**base, **change})
    found = {problem.path: f"{problem.message}; {problem.hint}" for problem in caught.value.problems}
    assert words in found[path]
    assert all(problem.hint for problem in caught.value.problems)


BOUNDS = [
    (GRPO, {"grpo": {"group_size": 1}}, "train.grpo.group_size"),
    (GRPO, {"grpo": {"temperature": 50}}, "train.grpo.temperature"),
    (GRPO, {"grpo": {"temperature": 0}}, "train.grpo.temperature"),
    (SFT, {"learning_rate": 1e3}, "train.learning_rate"),
    (SFT, {"learning_rate": 0}, "train.learning_rate"),
    (SFT, {"learning_rate": -1e-4}, "train.learning_rate"),
    (SFT, {"eval_fraction": 0.9}, "train.eval_fraction"),
    (SFT, {"epochs": 0}, "train.epochs"),
    (SFT, {"steps": 0}, "train.steps"),
    (SFT, {"lora": {"rank": 0}}, "train.lora.rank"),
    (SFT, {"warmup": 0.9}, "train.warmup"),
    (SFT, {"beta2": 1.0}, "train.beta2"),
]


@pytest.mark.parametrize(("base", "change", "path"), BOUNDS)
def test_a_number_out_of_its_bounds_is_refused_mt_d30(
    base: dict[str, Any], change: dict[str, Any], path: str
) -> None:
    """MT-D30."""
    with pytest.raises(TrainError) as caught:
        parse(QWEN, {**base, **change})
    assert [problem.path for problem in caught.value.problems] == [path]


def test_every_rule_is_broken_by_some_test() -> None:
    tested = {rule for rule, *_ in BROKEN}
    assert {rule.find.__name__ for rule in rules.RULES} == tested


def test_thinking_is_refused_where_the_model_cannot_and_needed_where_it_must() -> None:
    """MT-C25."""
    assert parse("qwen3-4b", {**SFT, "thinking": True}).thinking
    with pytest.raises(TrainError, match="smollm2-135m has no thinking mode"):
        parse("smollm2-135m", {**SFT, "thinking": True})
    qwen = models.facts("qwen3-4b")
    assert qwen is not None
    with pytest.raises(TrainError, match="always thinks"):
        parse("qwen3-4b", SFT, replace(qwen, thinking="always"))


def test_what_a_model_forbids_is_found_once_its_shape_is_known_and_its_architecture_forbids_nothing() -> None:
    train = parse("somebody/gemma", SFT)
    llama = models.facts("llama-3.2-1b")
    assert llama is not None
    assert check_model(train, llama) == []
    assert check_model(train, replace(llama, context=1024))[0].path == "train.max_length"
    gemma = replace(llama, family="gemma3_text")
    assert check_model(train, gemma) == []
    full = parse("somebody/qwen2", {**SFT, "method": "full"})
    assert check_model(full, replace(llama, attention_bias=True)) == []
    # Nobody but the model knows the names of its layers.
    named = parse("somebody/phi", {**SFT, "lora": {"targets": ["qkv_proj"]}})
    assert check_model(named, replace(gemma, family="phi3")) == []
    assert check_model(named, llama)[0].path == "train.lora.targets[0]"
