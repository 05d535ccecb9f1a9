"""Reads the `[train]` table of a run file. Submit, placement and the engine all call this."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from corral.recipes import json_schema as _json_schema
from corral.recipes import models
from corral.recipes import train_rules as rules
from corral.recipes.models import ModelFacts
from corral.recipes.schema import SettingProblem, check_fields, fields_of, setting, to_plain
from corral.recipes.train_tables import CLIPS, DataFacts, Train

# Full fine-tuning's best rate at width 2000, and how many times that an adapter wants.
FULL_RATE = 5e-5
LORA_TIMES = 10.0
# An adapter's step grows with its scale; the ten times above were found at alpha / rank = 2.
USUAL_SCALE = 2.0
# A policy gradient is far noisier than a supervised one; a tenth is what trainers of both use.
GRPO_TIMES = 0.1
_OURS = "corral/"


@dataclass(frozen=True, slots=True)
class _Top:
    """What of the run file's top a training run needs."""

    model: str = setting("A model: a listed name, a Hugging Face id or a folder.", pattern=r"\S(.*\S)?")


class TrainError(Exception):
    """The table is wrong: `problems` names every place, with what was expected and what to do."""

    code: ClassVar[str] = "invalid_input"
    hint: ClassVar[str] = "Correct the settings named above; `corral schema` prints what is allowed."

    def __init__(self, problems: list[SettingProblem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


def parse(model: object, table: object, facts: ModelFacts | None = None) -> Train:
    """The run that `model` and the `[train]` table describe, every default filled in.

    `facts` is the shape of the model where the caller knows it better than the catalogue. Raises TrainError
    with all problems, and nothing else, whatever it is given.
    """
    top = check_fields(_Top, {"model": model})
    name = top.values.get("model", "?")
    facts = facts or models.facts(name)
    checked = check_fields(Train, table, "train")
    problems = top.problems + _not_ours(name, facts) + checked.problems
    if "" in checked.bad or "recipe" in checked.bad:
        raise TrainError(problems)
    train = _filled_in(Train(model=name, **checked.values), checked.given, facts)
    asked = rules.RequestedRun(train, checked.given, facts)
    problems += rules.problems(asked, checked.bad)
    if problems:
        raise TrainError(problems)
    return train


def _not_ours(name: str, facts: ModelFacts | None) -> list[SettingProblem]:
    """The hub has no names of Corral's own: one that is not listed is a slip."""
    if facts is not None or not name.lower().startswith(_OURS):
        return []
    near, own = models.near(name), sorted(one for one in models.catalogue() if one.startswith(_OURS))
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(own)}"
    return [SettingProblem("model", f"{name!r} is no model of Corral's", hint)]


def check_model(train: Train, facts: ModelFacts) -> list[SettingProblem]:
    """What of a run a model forbids; for models whose shape is known only after the table was read."""
    return rules.problems(rules.RequestedRun(train, frozenset(), facts), frozenset())


def _filled_in(train: Train, given: Set[str], facts: ModelFacts | None) -> Train:
    changes: dict[str, Any] = {}
    if facts is not None and "max_length" not in given:
        changes["max_length"] = min(train.max_length, facts.context)
    for name, spec, _ in fields_of(Train):
        by = spec.metadata.get("by", {})
        if train.recipe in by and (name not in given or getattr(train, name) is None):
            changes[name] = by[train.recipe]
    if train.recipe == "sft" and train.steps is None and train.epochs is None:
        changes["epochs"] = 1.0
    if train.metric is None:
        if train.recipe == "sft" and train.holds_out:
            changes["metric"] = "eval_loss"
        elif train.environment is not None:
            changes["metric"] = "eval_reward"
    if train.lora.alpha is None:
        changes["lora"] = replace(train.lora, alpha=2 * train.lora.rank)
    if train.grpo.loss in CLIPS:
        low, high = CLIPS[train.grpo.loss]
        changes["grpo"] = replace(
            train.grpo,
            clip_low=train.grpo.clip_low if "grpo.clip_low" in given else low,
            clip_high=train.grpo.clip_high if "grpo.clip_high" in given else high,
        )
    return replace(train, **changes)


def to_table(train: Train) -> dict[str, Any]:
    """The `[train]` table as in effect: complete and canonical; `parse` makes the same run of it.

    What belongs to the other recipe, or to another method, is left out.
    """
    table: dict[str, Any] = to_plain(train)
    for name in rules.other_recipe(train) | ({"lora"} if train.method == "full" else set()):
        place, _, key = name.rpartition(".")
        holder = table.get(place, {}) if place else table
        holder.pop(key, None)
    return table


def json_schema() -> dict[str, Any]:
    """What the `[train]` table may hold, for editors and for the API."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "train",
        **_json_schema.json_schema(Train),
    }


def effective_learning_rate(train: Train, facts: ModelFacts | None) -> float:
    """The peak rate in effect.

    auto: 5e-5 x (2000 / hidden)^p (p 0.0775 for Qwen, 0.781 otherwise, as Tinker fitted it), ten times that
    for an adapter of scale 2 and proportionally less for a larger scale, a tenth of it for grpo.
    """
    if train.learning_rate != "auto":
        return train.learning_rate
    rate = FULL_RATE
    if facts is not None:
        rate *= models.learning_rate_scale(facts.family, facts.hidden)
    if train.method == "lora":
        rate *= LORA_TIMES * USUAL_SCALE / max(train.lora.scaling, USUAL_SCALE)
    return rate * (GRPO_TIMES if train.recipe == "grpo" else 1.0)


def held_out_rows(train: Train, rows: int) -> int:
    """How many rows `eval_fraction` takes away from training: at least one, never all."""
    if train.recipe != "sft" or train.eval_fraction <= 0 or rows < 2:
        return 0
    return min(rows - 1, max(1, round(rows * train.eval_fraction)))


def steps_total(train: Train, data: DataFacts | None = None) -> int | None:
    """Optimiser steps of the run; None where it is given in epochs and the number of rows is unknown."""
    if train.steps is not None:
        return train.steps
    if data is None or data.rows is None or train.epochs is None:
        return None
    rows = data.rows - held_out_rows(train, data.rows)
    return max(1, math.ceil(train.epochs * rows / train.batch_size - 1e-9))
