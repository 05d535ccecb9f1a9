"""Run files with a [train] table: what is wrong is named at its place, before anything leaves the machine."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from corral.client.submit.run_file import RunVariant, build, expand, is_group, parse, with_swept
from corral.client.training.material import ModelSource, TrainingMaterial
from corral.domain.errors import InvalidInput
from corral.recipes import train as recipes
from corral.wire.runs import SubmitRequest
from corral.wire.spec.run_file import RunFile, RunSpec

SFT = 'model = "corral/tiny"\n[train]\nrecipe = "sft"\ndata = "chat.jsonl"\n'
GRPO = 'model = "corral/tiny"\n[train]\nrecipe = "grpo"\nenvironment = "arithmetic"\n'


def tables(made: RunFile, variant: RunVariant) -> dict[str, Any]:
    return recipes.to_table(TrainingMaterial(ModelSource(made.model or ""), {}, None).train(made, variant))


def run_file(text: str, *overrides: str) -> RunFile:
    return parse(text, what="run.toml", overrides=overrides)


def refused(text: str, *overrides: str) -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        run_file(text, *overrides)
    return {field.path: field.message for field in caught.value.fields}


def test_a_train_table_makes_a_run_of_kind_train() -> None:
    made = run_file(SFT)

    assert (made.kind, made.model, made.argv) == ("train", "corral/tiny", [])


def test_a_command_stays_what_it_was() -> None:
    made = run_file('argv = ["true"]')

    assert (made.kind, made.model, made.train) == ("command", None, None)


@pytest.mark.parametrize(
    ("text", "place", "nearest"),
    [
        (SFT + "[train.lora]\nrnak = 8", "train.lora.rnak", "rank"),
        (SFT + "leraning_rate = 1e-4", "train.leraning_rate", "learning_rate"),
        (GRPO + "[train.grpo]\ngroup_sise = 8", "train.grpo.group_sise", "group_size"),
        (SFT + "[train.guards]\nnam = 'stop'", "train.guards.nam", "nan"),
        (SFT.replace("model", "modle"), "modle", "model"),
        (SFT + "[environment]\nrequirement = []", "environment.requirement", "requirements"),
        (SFT + "[resources]\ngpu_s = 1", "resources.gpu_s", "gpus"),
    ],
)
def test_a_mistyped_key_at_any_level_gets_the_nearest_name(text: str, place: str, nearest: str) -> None:
    """MT-D27, MT-D28, MT-D29: nothing unknown is accepted or ignored."""
    assert f"did you mean `{nearest}`?" in refused(text)[place]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (GRPO + "[train.grpo]\ngroup_size = 1", "train.grpo.group_size", "at least 2"),
        (GRPO + "[train.grpo]\ntemperature = 50", "train.grpo.temperature", "at most 2"),
        (GRPO + "max_length = 64\n[train.grpo]\nmax_completion = 64", "train.grpo.max_completion", "no room"),
        (SFT + "steps = 10\nepochs = 2", "train.steps", "both"),
        (SFT + "prompts_per_step = 4", "train.prompts_per_step", "batch_size"),
        (GRPO + "batch_size = 4", "train.batch_size", "prompts_per_step"),
        (SFT + "learning_rate = 1e3", "train.learning_rate", "less than 1"),
        (SFT + "thinking = true", "train.thinking", "no thinking mode"),
        (SFT + "max_length = 1000000", "train.max_length", "context of corral/tiny"),
        (SFT + "[train.lora]\ndropout = 0.1", "train.lora.dropout", "dropout"),
        ("seeds = [-1]\n" + SFT, "seeds", "negative"),
        ("seeds = [3, 3]\n" + SFT, "seeds", "twice"),
        (SFT + "[resources]\ngpus = 2", "resources", "one so far"),
    ],
)
def test_what_can_never_work_is_refused_here(text: str, place: str, words: str) -> None:
    """MT-D30, MT-D33, MT-C49: found locally, before any machine is taken."""
    assert words in refused(text)[place]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('argv = ["true"]\n' + SFT, "argv", "no place beside [train]"),
        ('kind = "command"\n' + SFT, "train", "remove kind"),
        ('kind = "train"\nmodel = "corral/tiny"', "train", "required"),
        (SFT.partition("\n")[2], "train", "needs a model"),
        ('model = "corral/tiny"\nargv = ["true"]', "train", "where a model is named"),
        ('name = "x"', "argv", "a [train] table"),
        ("train = 3", "train", "must be a table"),
        ("params = {a = 1}\n" + SFT, "params", "no effect"),
        (SFT + "[sweep]\nlr = [1, 2]", "sweep", "train.steps"),
        ('argv = ["true"]\n[sweep]\ntrain.lora.rank = [1]', "sweep", "no [train]"),
        (SFT + '[inputs]\ndata = "x"', "inputs", "names data"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(text: str, place: str, words: str) -> None:
    """MT-D32: no accepted setting is without effect."""
    assert words in refused(text)[place]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('data = "x.jsonl"', "it belongs under [train]"),
        ('dataset = "x.jsonl"', "it belongs under [train], where it is `data`"),
        ("rank = 8", "it belongs under [train], where it is `lora.rank`"),
        ("learning_rat = 0.1", "it belongs under [train], where it is `learning_rate`"),
        ('environment = "arithmetic"', "the environment of a training run belongs under [train]"),
        ("wall_limt = 3", "did you mean `wall_limit`?"),
    ],
)
def test_a_setting_of_training_at_the_top_is_told_where_it_belongs(line: str, said: str) -> None:
    """`dataset` was not a known key, with the question whether `after` was meant."""
    assert refused(f"{line}\n{SFT}")[line.partition(" ")[0]].endswith(said)


def test_all_that_is_wrong_is_told_at_once() -> None:
    text = SFT.replace('"corral/tiny"', '"corral/tiny"\npriority = "high"') + 'epochs = "two"\nx = 1'

    assert {"priority", "train.epochs", "train.x"} <= set(refused(text))


def test_an_override_reaches_into_the_table() -> None:
    made = run_file(SFT, "train.lora.rank=8", "train.epochs=2", "train.system=123", "train.pack=false")

    assert made.train is not None
    assert made.train["lora"] == {"rank": 8}
    assert (made.train["epochs"], made.train["system"], made.train["pack"]) == (2, "123", False)


def test_an_override_of_an_unknown_setting_gets_the_nearest_name() -> None:
    assert "did you mean `rank`?" in refused(SFT, "train.lora.rnak=8")["train.lora.rnak"]


@pytest.mark.parametrize("sweep", ["train.lora.rank = [4, 8]", '"train.lora.rank" = [4, 8]'])
def test_settings_and_seeds_are_swept(sweep: str) -> None:
    made = run_file(f"seeds = [0, 1]\n{SFT}[train.lora]\nrank = 2\n[sweep]\n{sweep}")

    ranks = [(tables(made, variant)["lora"]["rank"], variant.seed) for variant in expand(made)]
    assert is_group(made)
    assert ranks == [(4, 0), (4, 1), (8, 0), (8, 1)]
    assert made.train == {"recipe": "sft", "data": "chat.jsonl", "lora": {"rank": 2}}


def test_a_swept_value_that_is_wrong_is_told_with_its_run() -> None:
    made = run_file(SFT + "[sweep]\ntrain.lora.rank = [4, 0]")

    with pytest.raises(InvalidInput, match=r"the run with lora.rank = 0 is not valid: .*at least 1"):
        [tables(made, variant) for variant in expand(made)]


def test_a_sweep_does_not_change_the_file() -> None:
    table: dict[str, Any] = {"lora": {"rank": 2}}

    assert with_swept(table, {"lora.rank": 4, "grpo.beta": 0.1}) == {
        "lora": {"rank": 4},
        "grpo": {"beta": 0.1},
    }
    assert table == {"lora": {"rank": 2}}


def spec(**train: Any) -> dict[str, Any]:
    return {"model": "corral/tiny", "train": {"recipe": "sft", "data": "x.jsonl", **train}}


def submit(*runs: dict[str, Any]) -> SubmitRequest:
    return SubmitRequest.model_validate({"request_id": "12345678", "runs": list(runs)})


def test_the_server_completes_a_table_that_was_sent_to_it() -> None:
    """MT-D13: the record lists every setting as it is in effect."""
    table = submit(spec()).runs[0].train

    assert table is not None
    assert table["lora"] == {"rank": 16, "alpha": 32, "rslora": True, "targets": "all-linear"}
    assert table["batch_size"] == 32
    assert table == recipes.to_table(recipes.parse("corral/tiny", table))


def test_the_server_names_run_and_place_of_what_is_wrong() -> None:
    """MT-D31: a named field, whichever client sent it."""
    with pytest.raises(ValidationError) as caught:
        submit(spec(), spec(lora={"rnak": 1}, epochs="two"))

    places = {".".join(map(str, error["loc"])) for error in caught.value.errors()}
    assert places == {"runs.1.train.lora.rnak", "runs.1.train.epochs"}


def test_a_stored_spec_is_read_again_even_if_the_rules_have_become_stricter() -> None:
    made = RunSpec.model_validate({**spec(of_an_older_version=1)})

    assert RunSpec.model_validate_json(made.model_dump_json()) == made


def test_a_training_run_needs_a_host_with_the_engine_unless_its_environment_brings_it() -> None:
    made = RunSpec.model_validate(spec())
    built = {"python": "3.11", "lock": "", "digest": "0" * 64}

    assert made.requirements().engine
    assert not RunSpec.model_validate({**spec(), "environment": built}).requirements().engine
    assert not RunSpec(argv=["true"]).requirements().engine


@pytest.mark.parametrize(
    "more",
    [
        {"task": "sample"},
        {"task": "eval", "sample": {"messages": [{"role": "user", "content": "x"}]}},
        {"task": "train", "eval": {}},
        {"task": "dance"},
    ],
)
def test_a_task_without_what_it_needs_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RunSpec.model_validate({**spec(), **more})


def test_only_a_training_run_has_another_task() -> None:
    with pytest.raises(ValidationError, match='which only a run of kind "train" can have'):
        RunSpec.model_validate({"argv": ["true"], "task": "eval"})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(string.printable, max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    [
        "recipe",
        "data",
        "epochs",
        "steps",
        "lora",
        "grpo",
        "guards",
        "learning_rate",
        "environment",
        "task",
        "x",
    ]
)


@given(st.dictionaries(names, values, max_size=6), values)
def test_whatever_is_written_there_gives_a_named_field_or_a_run(table: dict[str, Any], model: object) -> None:
    """MT-D31: no type of value is a traceback."""
    try:
        made = build({"model": model, "train": table}, what="run.toml")
    except InvalidInput as error:
        unnamed = [field for field in error.fields if field.path == "(whole)"]
    else:
        unnamed = []
        json.dumps(tables(made, expand(made)[0]))

    assert not unnamed
