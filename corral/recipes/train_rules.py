"""Rules between settings: each says what it reads, so that it is left out where one of those is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple

from corral.recipes.models import FAMILIES, ModelFacts
from corral.recipes.schema import SettingProblem, fields_of, nested
from corral.recipes.train_tables import CLIP_LOW, Grpo, Guards, Train

Found = Iterator[tuple[str, str, str]]  # where, what, what to do


@dataclass(frozen=True, slots=True)
class RequestedRun:
    """A run as it would be in effect, what of it was written by the user, and its model if it is known."""

    train: Train
    given: Set[str]
    facts: ModelFacts | None


Find = Callable[[RequestedRun], Found]


class Rule(NamedTuple):
    reads: tuple[str, ...]
    find: Find


RULES: list[Rule] = []


def _rule(*reads: str) -> Callable[[Find], Find]:
    """Add a function to the rules; `reads` are the settings without which it says nothing."""

    def add(find: Find) -> Find:
        RULES.append(Rule(reads, find))
        return find

    return add


def problems(asked: RequestedRun, bad: Set[str]) -> list[SettingProblem]:
    """Everything that the rules find, except where a setting that a rule reads is wrong by itself."""
    found = []
    for reads, find in RULES:
        if bad.isdisjoint(reads):
            found += [SettingProblem(_path(where), what, hint) for where, what, hint in find(asked)]
    return found


def _path(where: str) -> str:
    return where if where == "model" else f"train.{where}"


def other_recipe(train: Train) -> set[str]:
    """Dotted names of the settings that mean nothing for this recipe and method."""
    names = set()
    for name, spec, tp in fields_of(Train):
        if spec.metadata.get("only", train.recipe) != train.recipe:
            names.add(name)
        inner = nested(tp)
        if inner is not None:
            below = fields_of(inner)
            names |= {
                f"{name}.{n}" for n, s, _ in below if s.metadata.get("only", train.recipe) != train.recipe
            }
    return names


@_rule("recipe")
def _only(asked: RequestedRun) -> Found:
    other = "grpo" if asked.train.recipe == "sft" else "sft"
    instead = {
        "batch_size": "use `prompts_per_step`",
        "prompts_per_step": "use `batch_size`",
        "epochs": "use `steps`",
    }
    for name in sorted(other_recipe(asked.train) & asked.given):
        hint = instead.get(name, "take it out")
        yield name, f"belongs to recipe {other!r}, and this is {asked.train.recipe!r}", hint


@_rule("recipe", "steps", "epochs")
def _length_of_run(asked: RequestedRun) -> Found:
    if asked.train.recipe == "sft" and _set(asked, "steps") and _set(asked, "epochs"):
        yield "steps", "both `steps` and `epochs` are given", "keep the one you mean"


def _set(asked: RequestedRun, name: str) -> bool:
    return name in asked.given and getattr(asked.train, name) is not None


@_rule("recipe", "data", "environment")
def _what_to_learn_from(asked: RequestedRun) -> Found:
    if asked.train.recipe == "sft" and asked.train.data is None:
        yield "data", "is required for sft", "name a JSONL or Parquet file"
    if asked.train.recipe == "grpo" and asked.train.environment is None:
        yield (
            "environment",
            "is required for grpo",
            "name a .py file that scores completions, or 'arithmetic'",
        )


@_rule("environment", "environment_params")
def _environment_params(asked: RequestedRun) -> Found:
    if asked.train.environment_params and asked.train.environment is None:
        yield "environment_params", "there is no `environment` to give them to", "name one or take them out"


@_rule("recipe", "eval_data", "eval_fraction", "environment", "eval_every", "eval_rows")
def _evaluation(asked: RequestedRun) -> Found:
    train = asked.train
    if train.eval_data is not None and train.eval_fraction > 0:
        yield "eval_fraction", "both `eval_data` and `eval_fraction` are given", "keep the one you mean"
    if train.evaluates:
        return
    for name, default in (("eval_every", None), ("eval_rows", 64)):
        if getattr(train, name) != default:
            yield name, "nothing is evaluated", "set `eval_data` or `eval_fraction`"


@_rule("recipe", "eval_data", "eval_fraction", "environment", "metric")
def _metric(asked: RequestedRun) -> Found:
    train = asked.train
    if train.metric == "eval_loss" and not (train.recipe == "sft" and train.holds_out):
        hint = "set `eval_data` or `eval_fraction`" if train.recipe == "sft" else "take 'eval_reward'"
        yield "metric", "no held-out loss is measured in this run", hint
    if train.metric == "eval_reward" and train.environment is None:
        yield "metric", "no reward is measured without an `environment`", "name one, or take 'eval_loss'"


@_rule("recipe", "max_length", "grpo", "grpo.max_completion")
def _room(asked: RequestedRun) -> Found:
    train = asked.train
    if train.recipe == "grpo" and train.grpo.max_completion >= train.max_length:
        yield (
            "grpo.max_completion",
            f"{train.grpo.max_completion} tokens leave no room for a prompt in max_length {train.max_length}",
            "lower it or raise `max_length`",
        )


@_rule("micro_tokens", "max_length")
def _one_pass(asked: RequestedRun) -> Found:
    train = asked.train
    if train.micro_tokens != "auto" and train.micro_tokens < train.max_length:
        yield (
            "micro_tokens",
            f"a sequence of max_length {train.max_length} does not fit into {train.micro_tokens} tokens",
            "raise it, lower `max_length`, or leave it out",
        )


@_rule("recipe", "too_long")
def _cutting(asked: RequestedRun) -> Found:
    if asked.train.recipe == "grpo" and asked.train.too_long == "cut":
        yield "too_long", "a prompt is never cut", "take 'refuse' or 'skip'"


@_rule("recipe", "method", "adapter", "grpo", "grpo.beta")
def _method(asked: RequestedRun) -> Found:
    train = asked.train
    if train.method == "lora":
        return
    for name in sorted(asked.given):
        if name == "lora":
            yield name, "every weight is trained with method 'full'", "take it out, or take method 'lora'"
    if train.adapter is not None:
        yield "adapter", "every weight is trained with method 'full'", "take it out, or take method 'lora'"
    if train.recipe == "grpo" and train.grpo.beta > 0:
        yield (
            "grpo.beta",
            "the reference of the KL term is the model without its adapter, and method 'full' has none",
            "take method 'lora' or beta 0",
        )


@_rule("grpo", "grpo.max_completion", "grpo.overlong_buffer", "grpo.overlong_penalty", "grpo.mask_truncated")
def _overlong(asked: RequestedRun) -> Found:
    grpo = asked.train.grpo
    if grpo.overlong_buffer >= grpo.max_completion:
        yield "grpo.overlong_buffer", f"must be under max_completion {grpo.max_completion}", "lower it"
    if grpo.overlong_penalty != Grpo().overlong_penalty and grpo.overlong_buffer == 0:
        yield "grpo.overlong_penalty", "has no effect while overlong_buffer is 0", "set `overlong_buffer`"
    if grpo.overlong_buffer and grpo.mask_truncated:
        yield (
            "grpo.overlong_buffer",
            "with mask_truncated the completions that it would punish most are not trained on",
            "keep one of the two",
        )


@_rule("grpo", "grpo.loss", "grpo.clip_low")
def _clips(asked: RequestedRun) -> Found:
    grpo = asked.train.grpo
    if grpo.loss == "cispo" and grpo.clip_low != CLIP_LOW:
        yield "grpo.clip_low", "cispo caps the ratio from above only", "set `clip_high`"


@_rule("guards", *(f"guards.{name}" for name, _, _ in fields_of(Guards)))
def _guards(asked: RequestedRun) -> Found:
    guards = asked.train.guards
    for limit, policy in (
        ("dead_reward_steps", "dead_reward"),
        ("min_entropy", "low_entropy"),
        ("min_length", "low_length"),
    ):
        if getattr(guards, limit) == 0 and getattr(guards, policy) != "stop":
            yield f"guards.{policy}", f"has no effect while {limit} is 0", f"set `{limit}`"
    if asked.train.recipe == "grpo" and guards.min_length > asked.train.grpo.max_completion:
        yield "guards.min_length", "is more than max_completion", "lower it"


@_rule("recipe", "thinking", "grpo", "grpo.thinking_length_penalty")
def _thinking(asked: RequestedRun) -> Found:
    train, facts = asked.train, asked.facts
    if train.recipe == "grpo" and train.grpo.thinking_length_penalty > 0 and not train.thinking:
        yield (
            "grpo.thinking_length_penalty",
            "has no effect while `thinking` is false",
            "set `thinking = true`",
        )
    if facts is None:
        return
    if train.thinking and facts.thinking == "none":
        yield "thinking", f"{facts.id} has no thinking mode", "take it out or take another model"
    if not train.thinking and facts.thinking == "always":
        yield "thinking", f"{facts.id} always thinks", "set `thinking = true`"


@_rule("max_length")
def _context(asked: RequestedRun) -> Found:
    facts = asked.facts
    if facts is not None and asked.train.max_length > facts.context:
        yield (
            "max_length",
            f"{asked.train.max_length} is more than the context of {facts.id}, {facts.context} tokens",
            "lower it",
        )


@_rule("lora", "lora.targets")
def _targets(asked: RequestedRun) -> Found:
    targets = asked.train.lora.targets
    if targets == "all-linear":
        return
    # Of other families only the model itself can tell what its layers are called.
    named = asked.facts is not None and asked.facts.family in FAMILIES
    known = list(asked.facts.linear_shapes) if asked.facts and named else []
    for index, name in enumerate(targets):
        where = f"lora.targets[{index}]"
        if name in targets[:index]:
            yield where, f"{name!r} is named twice", "take one out"
        elif name in ("lm_head", "embed_tokens"):
            yield where, f"an adapter on {name} is not supported", "name linear layers of the blocks only"
        elif asked.facts and known and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(known)
            yield where, f"{asked.facts.id} has no linear layer {name!r}", hint


@_rule("grpo", "grpo.top_k")
def _top_k(asked: RequestedRun) -> Found:
    facts, top_k = asked.facts, asked.train.grpo.top_k
    if facts is not None and top_k > facts.vocab:
        yield (
            "grpo.top_k",
            f"{top_k} is more than the {facts.vocab} tokens of {facts.id}",
            "lower it or take 0",
        )
