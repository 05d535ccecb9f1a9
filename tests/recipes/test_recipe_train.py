"""The `[train]` table: what is accepted, what it becomes, and what is refused before a machine is taken."""

from __future__ import annotations

import ast
import inspect
import json
import random
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

import corral
from corral.recipes import models
from corral.recipes.schema import fields_of, nested
from corral.recipes.train import (
    TrainError,
    effective_learning_rate,
    json_schema,
    parse,
    steps_total,
    to_table,
)
from corral.recipes.train_tables import DataFacts, Grpo, Guards, Lora, Train

SFT: dict[str, Any] = {"recipe": "sft", "data": "chat.jsonl"}
GRPO: dict[str, Any] = {"recipe": "grpo", "environment": "arithmetic"}


def problems(table: object, model: object = "somebody/model") -> dict[str, str]:
    with pytest.raises(TrainError) as caught:
        parse(model, table)
    return {problem.path: str(problem) for problem in caught.value.problems}


def test_the_issues_own_example_is_a_run() -> None:
    """MT-C19."""
    file = tomllib.loads(
        'model = "smollm2-135m"\n[train]\nrecipe = "sft"\ndata = "data/chat.jsonl"\nepochs = 1\n'
        "[train.lora]\nrank = 16\n"
    )
    train = parse(file["model"], file["train"])
    assert (train.recipe, train.epochs, train.steps, train.lora.alpha) == ("sft", 1.0, None, 32)


def test_defaults_depend_on_the_recipe() -> None:
    sft, grpo = parse("somebody/model", SFT), parse("somebody/model", GRPO)
    assert (sft.epochs, sft.steps, sft.schedule, sft.warmup, sft.save_every) == (
        1.0,
        None,
        "cosine",
        0.03,
        50,
    )
    assert (grpo.epochs, grpo.steps, grpo.schedule, grpo.warmup, grpo.save_every) == (
        None,
        100,
        "constant",
        0.0,
        20,
    )
    assert (sft.metric, grpo.metric) == (None, "eval_reward")
    assert parse("m", {**SFT, "eval_fraction": 0.1}).metric == "eval_loss"
    assert parse("m", {**SFT, "environment": "e.py"}).metric == "eval_reward"


def test_defaults_depend_on_the_loss() -> None:
    clips = {}
    for loss in get_args(fields_of(Grpo)[0][2]):
        grpo = parse("m", {**GRPO, "grpo": {"loss": loss}}).grpo
        clips[loss] = (grpo.clip_low, grpo.clip_high)
    assert clips == {
        "grpo": (0.2, 0.28),
        "dapo": (0.2, 0.28),
        "dr_grpo": (0.2, 0.28),
        "bnpo": (0.2, 0.28),
        "gspo": (3e-4, 4e-4),
        "cispo": (0.2, 5.0),
    }
    assert parse("m", {**GRPO, "grpo": {"loss": "cispo", "clip_high": 3}}).grpo.clip_high == 3.0


def test_the_default_length_is_never_more_than_the_models_context() -> None:
    tiny = models.from_config(
        {
            "model_type": "llama",
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "intermediate_size": 128,
            "vocab_size": 100,
            "max_position_embeddings": 512,
        }
    )
    assert parse("m", SFT, tiny).max_length == 512
    assert parse("m", SFT).max_length == 2048


@pytest.mark.parametrize("base", [SFT, GRPO, {**GRPO, "grpo": {"loss": "cispo"}}, {**SFT, "method": "full"}])
def test_the_table_in_effect_makes_the_same_run_again_mt_d13(base: dict[str, Any]) -> None:
    train = parse("somebody/model", base)
    table = to_table(train)
    assert parse("somebody/model", json.loads(json.dumps(table))) == train
    # Complete: every setting is there, except what belongs to the other recipe or method.
    named = {name for name, _, _ in fields_of(Train)}
    left_out = {
        "sft": {"prompts_per_step", "grpo"},
        "grpo": {"batch_size", "epochs", "eval_fraction", "loss_on"},
    }
    gone = left_out[train.recipe] | ({"lora"} if train.method == "full" else set())
    assert set(table) == named - gone


# -- no accepted setting is without effect (MT-D32) ------------------------------------------------------

# What must stand beside a setting for it to mean anything.
BESIDE: dict[str, dict[str, Any]] = {
    "environment_params": {"environment": "arithmetic"},
    "eval_every": {"eval_fraction": 0.1},
    "eval_rows": {"eval_fraction": 0.1},
    "metric": {"eval_fraction": 0.1, "environment": "e.py"},
    "grpo.overlong_penalty": {"grpo": {"overlong_buffer": 10}},
    "grpo.thinking_length_penalty": {"thinking": True},
    "guards.low_entropy": {"guards": {"min_entropy": 0.1}},
    "guards.low_length": {"guards": {"min_length": 5}},
}
OTHER: dict[str, Any] = {
    "recipe": "grpo",
    "environment_params": {"digits": 2},
    "metric": "eval_reward",
    "grpo.stop": ["###"],
    "lora.targets": ["q_proj"],
    "micro_tokens": 4096,
    "learning_rate": 0.001,
    "grpo.overlong_buffer": 16,
}


def settings() -> list[tuple[str, Any, Any]]:
    found = []
    for name, spec, tp in fields_of(Train):
        inner = nested(tp)
        if inner is None:
            found.append((name, spec, tp))
        else:
            found += [(f"{name}.{below}", s, t) for below, s, t in fields_of(inner)]
    return found


def another(name: str, spec: Any, tp: Any) -> Any:
    """A valid value that is not the default."""
    if name in OTHER:
        return OTHER[name]
    choices = [c for t in (tp, *get_args(tp)) if get_origin(t) is Literal for c in get_args(t)]
    default = spec.metadata.get("by", {}).get("sft", spec.default)
    if choices:
        return next(choice for choice in choices if choice != default)
    kinds = {tp, *get_args(tp)}
    if bool in kinds:
        return not default
    if kinds & {int, float}:
        low = spec.metadata.get("ge", spec.metadata.get("gt", 0))
        high = spec.metadata.get("le", spec.metadata.get("lt", 1))
        if int in kinds:
            return low + 2 if low + 2 != default else low + 3
        return min((default or 0) * 0.5 + 0.01, high) if high > low else high
    return "another.txt"


@pytest.mark.parametrize("name", [name for name, _, _ in settings() if name != "recipe"])
def test_every_accepted_setting_changes_the_plan_mt_d32(name: str) -> None:
    spec, tp = next((spec, tp) for n, spec, tp in settings() if n == name)
    only = spec.metadata.get("only") or ("grpo" if name.startswith("grpo.") else "sft")
    base = {**(GRPO if only == "grpo" else SFT), **BESIDE.get(name, {})}
    place, _, key = name.rpartition(".")
    value = another(name, spec, tp)
    if place:
        changed = {**base, place: {**base.get(place, {}), key: value}}
    else:
        changed = {**base, key: value}
        if key == "steps":
            base = {**base, "epochs": 1}
    before, after = parse("somebody/model", base), parse("somebody/model", changed)
    assert to_table(before) != to_table(after)


def test_every_accepted_setting_is_read_by_what_trains() -> None:
    """MT-D32: by the engine itself, outside of the table's own reading and checking."""
    files = (Path(corral.__file__).parent / "engine").rglob("*.py")
    sources = [path.read_text(encoding="utf-8") for path in files]
    # The engine asks here what "auto" means.
    assert any("effective_learning_rate(" in source for source in sources)
    sources.append(inspect.getsource(effective_learning_rate))
    read = {
        node.attr
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }

    assert {name for name, _, _ in settings() if name.rpartition(".")[2] not in read} == set()


def test_no_field_is_outside_the_schema() -> None:
    for cls in (Train, Lora, Grpo, Guards):
        assert {f.name for f in fields(cls)} - {name for name, _, _ in fields_of(cls)} <= {"model"}
        assert all(spec.metadata["help"].endswith(".") for _, spec, _ in fields_of(cls))


# -- wrong input ----------------------------------------------------------------------------------------


def test_unknown_keys_at_every_level_are_refused_with_the_nearest_name_mt_d27_mt_d28_mt_d29() -> None:
    """MT-D27, MT-D28, MT-D29."""
    found = problems(
        {
            **GRPO,
            "leraning_rate": 1e-4,
            "lora": {"rnak": 1},
            "grpo": {"groupsize": 4},
            "guards": {"nam": "stop"},
        }
    )
    assert "did you mean `learning_rate`?" in found["train.leraning_rate"]
    assert "did you mean `rank`?" in found["train.lora.rnak"]
    assert "did you mean `group_size`?" in found["train.grpo.groupsize"]
    assert "did you mean `nan`?" in found["train.guards.nam"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("lr", "it is called `learning_rate` here"),
        ("num_generations", "it is `grpo.group_size`"),
        ("lora_rank", "it is `lora.rank`"),
        ("max_tokens", "it is `grpo.max_completion`"),
        ("seeds", "seeds stand at the top of the run file"),
        ("model", "the model stands at the top of the run file"),
    ],
)
def test_names_of_other_tools_are_understood_but_not_taken(theirs: str, ours: str) -> None:
    """MT-C50."""
    assert ours in problems({**GRPO, theirs: 1})[f"train.{theirs}"]


def test_wrong_types_are_reported_and_never_raise_mt_d31() -> None:
    """MT-D31."""
    assert "expected a string, got a list" in problems(SFT, model=["a", "list"])["model"]
    assert 'expected "sft" or "grpo", got 3' in problems({"recipe": 3})["train.recipe"]
    assert "expected a table" in problems(5)["train"]
    assert "is required" in problems({})["train.recipe"]
    assert problems({**SFT, "lora": None})["train.lora"].endswith("expected a table, got nothing (null)")


def test_problems_of_both_kinds_come_together() -> None:
    found = problems(
        {**GRPO, "grpo": {"group_size": 1, "max_completion": 3000}, "batch_size": 4, "pack": "yes"}
    )
    assert set(found) == {
        "train.grpo.group_size",
        "train.grpo.max_completion",
        "train.batch_size",
        "train.pack",
    }


def test_a_rule_is_silent_about_a_setting_that_is_wrong_by_itself() -> None:
    assert set(problems({**GRPO, "max_length": "long", "grpo": {"max_completion": 10**5}})) == {
        "train.max_length"
    }


def _random_value(rng: random.Random, depth: int = 0) -> Any:
    simple = [
        None,
        True,
        False,
        rng.randint(-5, 5),
        rng.randint(-(10**400), 10**400),
        rng.uniform(-2, 2),
        float("nan"),
        float("inf"),
        -0.0,
        1e308,
        "",
        "auto",
        "full",
        "sft",
        "cispo",
        "x" * rng.randint(0, 5000),
        "\0",
        "\ud800",
        b"bytes",
        object(),
        3 + 4j,
        (),
        {1},
    ]
    if depth < 3 and rng.random() < 0.3:
        if rng.random() < 0.5:
            return [_random_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        return {rng.choice(["rank", "loss", "x", 3, None, "stop"]): _random_value(rng, depth + 1)}
    return rng.choice(simple)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_given_only_a_train_error_comes_out_mt_d31(seed: int) -> None:
    """MT-D31."""
    rng = random.Random(seed)
    names = [name for name, _, _ in settings()]
    for _ in range(250):
        table: dict[Any, Any] = dict(rng.choice([SFT, GRPO, {}]))
        for name in rng.sample(names, rng.randint(0, 6)):
            place, _, key = name.rpartition(".")
            if place and rng.random() < 0.9:
                holder = table.setdefault(place, {})
                if isinstance(holder, dict):
                    holder[key] = _random_value(rng)
            else:
                table[place or key] = _random_value(rng)
        model = "somebody/model" if rng.random() < 0.8 else _random_value(rng)
        outcome = _parsed(model, table)
        if isinstance(outcome, TrainError):
            assert all(problem.path and problem.message for problem in outcome.problems)
        else:
            assert parse(outcome.model, to_table(outcome)) == outcome


def _parsed(model: object, table: object) -> Train | TrainError:
    try:
        return parse(model, table)
    except TrainError as error:
        return error


def test_a_table_that_holds_itself_is_refused() -> None:
    table: dict[str, Any] = dict(SFT)
    table["data"] = table
    loop: list[Any] = []
    loop.append(loop)
    table["lora"] = {"targets": loop}
    assert set(problems(table)) == {"train.data", "train.lora.targets[0]"}


# -- what is computed from it ---------------------------------------------------------------------------


def test_an_adapters_rate_is_ten_times_that_of_full_training_en_c29() -> None:
    """EN-C29."""
    facts = models.facts("qwen3-0.6b")
    usual = {"rank": 16, "alpha": 32, "rslora": False}
    lora = parse("qwen3-0.6b", {**SFT, "lora": usual})
    full = parse("qwen3-0.6b", {**SFT, "method": "full"})
    assert effective_learning_rate(lora, facts) == pytest.approx(10 * effective_learning_rate(full, facts))
    assert effective_learning_rate(full, facts) == pytest.approx(5e-5 * (2000 / 1024) ** 0.0775)
    llama = models.facts("llama-3.2-1b")
    assert effective_learning_rate(full, llama) == pytest.approx(5e-5 * (2000 / 2048) ** 0.781)


def test_the_rate_falls_with_the_adapters_scale_and_for_grpo() -> None:
    usual = parse("m", {**SFT, "lora": {"rslora": False}})
    rs = parse("m", SFT)
    assert rs.lora.scaling == 8.0
    assert effective_learning_rate(rs, None) == pytest.approx(effective_learning_rate(usual, None) / 4)
    grpo = parse("m", GRPO)
    assert effective_learning_rate(grpo, None) == pytest.approx(effective_learning_rate(rs, None) / 10)
    assert effective_learning_rate(parse("m", {**SFT, "learning_rate": 3e-4}), None) == 3e-4


def test_steps_are_counted_from_rows_epochs_and_what_is_held_out() -> None:
    train = parse("m", {**SFT, "epochs": 2, "batch_size": 32})
    assert steps_total(train, DataFacts(rows=320)) == 20
    assert steps_total(train, DataFacts(rows=321)) == 21
    assert steps_total(train, DataFacts(rows=1)) == 1
    assert steps_total(train, DataFacts()) is None
    assert steps_total(train) is None
    held = parse("m", {**SFT, "eval_fraction": 0.5, "batch_size": 5})
    assert steps_total(held, DataFacts(rows=20)) == 2
    assert steps_total(parse("m", GRPO), DataFacts()) == 100
    assert steps_total(parse("m", {**SFT, "steps": 7}), DataFacts()) == 7


def test_the_json_schema_names_every_setting() -> None:
    schema = json_schema()
    json.dumps(schema)
    assert set(schema["properties"]) == {name for name, _, _ in fields_of(Train)}
    assert schema["properties"]["grpo"]["properties"]["group_size"]["minimum"] == 2
    assert "50 for sft, 20 for grpo" in schema["properties"]["save_every"]["description"]
    assert schema["required"] == ["recipe"]


def test_a_slip_in_the_name_of_a_model_of_corrals_is_told() -> None:
    with pytest.raises(TrainError, match=r"model: 'corral/tinny' is no model of Corral's \(did you mean"):
        parse("corral/tinny", {"recipe": "sft", "data": "rows.jsonl"})
    with pytest.raises(TrainError, match=r"known: corral/tiny"):
        parse("corral/elephant", {"recipe": "sft", "data": "rows.jsonl"})
    assert parse("somebody/tinny", {"recipe": "sft", "data": "rows.jsonl"}).model == "somebody/tinny"
