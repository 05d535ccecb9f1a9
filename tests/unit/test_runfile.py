"""Run files: what is wrong is named with its place; seeds and sweeps expand in a fixed order."""

from __future__ import annotations

from pathlib import Path

import pytest

import corral
from corral.client.submit.run_file import MAX_RUNS, RunVariant, build, edited, expand, is_group, load, parse
from corral.domain.errors import InvalidInput
from corral.wire.spec.run_file import RunFile, RunSpec

MINIMAL = 'argv = ["true"]\n'


def refused(text: str, *overrides: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse(text, what="run.toml", overrides=overrides)
    return caught.value


def run_file(text: str, *overrides: str) -> RunFile:
    return parse(MINIMAL + text, what="run.toml", overrides=overrides)


def test_a_syntax_error_names_the_file_the_line_and_the_column() -> None:
    error = refused('argv = ["true"]\nname = \n')

    assert "run.toml" in error.message
    assert "line 2" in error.message
    assert "column" in error.message


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.toml cannot be read: No such file"):
        load(tmp_path / "absent.toml")


def test_a_folder_is_not_a_run_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(InvalidInput, match="is not UTF-8"):
        load(path)


def test_a_file_of_absurd_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"#" * (5 << 20))

    with pytest.raises(InvalidInput, match="larger than"):
        load(path)


@pytest.mark.parametrize("text", ["v = " + "[" * 5000 + "]" * 5000, "x = " + "{a = " * 3000])
def test_deep_nesting_is_refused_without_a_crash(text: str) -> None:
    assert refused(text).code == "invalid_input"


@pytest.mark.parametrize(
    ("text", "path", "nearest"),
    [
        ('agrv = ["x"]', "agrv", "argv"),
        ("[resources]\nmin_vrm = 1", "resources.min_vrm", "min_vram"),
        ('[environment]\npyton = "3.12"', "environment.pyton", "python"),
        ("[retries]\ninfrastucture = 1", "retries.infrastucture", "infrastructure"),
        ("[keep]\nlatests = 1", "keep.latests", "latest"),
    ],
)
def test_a_mistyped_key_gets_the_nearest_known_name(text: str, path: str, nearest: str) -> None:
    error = refused(MINIMAL + text)

    found = {field.path: field.message for field in error.fields}
    assert f"did you mean `{nearest}`?" in found[path]


def test_a_mistyped_key_inside_an_input_gets_the_nearest_known_name() -> None:
    error = refused(MINIMAL + '[inputs.data]\nartifct = "a-bcdfghjkmnpq"')

    assert any("did you mean `artifact`?" in field.message for field in error.fields)


def test_every_wrong_field_is_named_at_once() -> None:
    error = refused('argv = []\npriority = "high"\nwall_limit = "soon"')

    assert {"argv", "priority", "wall_limit"} <= {field.path for field in error.fields}


def test_an_override_is_read_as_toml() -> None:
    made = run_file("[params]\nlr = 0.1\nkeep = 1", "params.lr=3e-4", "params.deep=true", 'env.A="x y"')

    assert made.params == {"lr": 3e-4, "keep": 1, "deep": True}
    assert made.env == {"A": "x y"}


def test_an_override_that_is_not_toml_is_a_string() -> None:
    assert run_file("", "name=first-try").name == "first-try"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("name", "123"),
        ("name", "true"),
        ("environment.python", "3.10"),
        ("env.LEVEL", "1e3"),
        ("labels.build", "007"),
        ("resources.min_compute_capability", "8.0"),
    ],
)
def test_an_override_of_a_text_is_taken_as_it_is_written(key: str, text: str) -> None:
    start = "[environment]\nhost = false\n[resources]\ngpus = 1\n"
    made: object = run_file(start, f"{key}={text}").model_dump()

    for part in key.split("."):
        assert isinstance(made, dict)
        made = made[part]
    assert made == text


def test_an_override_of_a_number_stays_a_number() -> None:
    made = run_file("", "priority=5", "params.x=3.10", "name=7")

    assert (made.priority, made.params, made.name) == (5, {"x": 3.1}, "7")


def test_a_list_does_not_become_a_text() -> None:
    assert refused(MINIMAL, "name=[1]").fields[0].path == "name"


def test_an_override_can_hold_an_equals_sign() -> None:
    assert run_file("", "env.OPTS=a=b").env == {"OPTS": "a=b"}


def test_an_override_can_be_a_list() -> None:
    assert run_file("", "seeds=[1, 2]").seeds == [1, 2]


def test_an_override_cannot_smuggle_in_a_second_key() -> None:
    assert run_file("", 'env.A=1\nname = "other"').name == "run"


def test_an_override_of_an_unknown_key_gets_the_nearest_name() -> None:
    error = refused(MINIMAL, "resources.gpu_s=1")

    assert error.fields[0].path == "resources.gpu_s"
    assert "did you mean `gpus`?" in error.fields[0].message


@pytest.mark.parametrize("override", ["params.lr", "=3", "params..lr=1", ""])
def test_an_override_without_a_key_or_value_is_refused(override: str) -> None:
    assert "is not KEY=VALUE" in refused(MINIMAL, override).message


def test_an_override_cannot_reach_into_a_value() -> None:
    assert "which is not a table" in refused(MINIMAL, "argv.x=1").message


def test_defaults_fill_only_what_the_file_leaves_out() -> None:
    assert parse(MINIMAL, what="run.toml", defaults={"project": "lab"}).project == "lab"
    own = parse(MINIMAL + 'project = "mine"', what="run.toml", defaults={"project": "lab"})
    assert own.project == "mine"


def test_a_plain_run_expands_to_itself() -> None:
    made = run_file("[params]\nlr = 0.1")

    assert expand(made) == [RunVariant({"lr": 0.1}, None)]
    assert not is_group(made)


def test_a_sweep_keeps_the_files_order_and_turns_seeds_fastest() -> None:
    """MT-C31."""
    made = run_file("seeds = [7, 3]\n[params]\nlr = 1\n[sweep]\nwidth = [8, 4]\nact = ['b', 'a']")

    assert is_group(made)
    assert [(v.params["width"], v.params["act"], v.seed) for v in expand(made)] == [
        (8, "b", 7),
        (8, "b", 3),
        (8, "a", 7),
        (8, "a", 3),
        (4, "b", 7),
        (4, "b", 3),
        (4, "a", 7),
        (4, "a", 3),
    ]
    assert all(variant.params["lr"] == 1 for variant in expand(made))


def test_a_swept_value_wins_over_the_param_of_the_same_name() -> None:
    made = run_file("[params]\nlr = 1\n[sweep]\nlr = [2, 3]")

    assert [variant.params["lr"] for variant in expand(made)] == [2, 3]


def test_a_group_of_the_largest_size_is_expanded() -> None:
    made = run_file(f"seeds = {list(range(100))}\n[sweep]\nx = {list(range(MAX_RUNS // 100))}")

    assert len(expand(made)) == MAX_RUNS


def test_a_group_that_is_too_large_is_refused_before_it_is_made() -> None:
    keys = "\n".join(f"k{n} = {list(range(100))}" for n in range(30))

    with pytest.raises(InvalidInput, match="at most 10000 go at once"):
        expand(run_file(f"[sweep]\n{keys}"))


def test_a_sweep_without_values_is_refused() -> None:
    assert "has no values for lr" in refused(MINIMAL + "[sweep]\nlr = []").message


def test_an_input_is_a_part_of_an_artifact_or_of_a_result() -> None:
    text = MINIMAL + '[inputs]\na = { run = "latest", path = "out/" }\nb = { path = "out" }\n'
    found = parse(text, what="run.toml").inputs

    assert [(one.local, one.part) for one in found.values() if not isinstance(one, str)] == [
        (None, "out"),
        ("out", None),
    ]
    for given, word in (
        ('{ run = "latest", artifact = "a-bcdfghjkmnpq" }', "both artifact and run"),
        ('{ run = "latest", path = "../x" }', "leads out of its folder"),
        ('{ artifact = "a-bcdfghjkmnpq", path = "/etc" }', "absolute path"),
        ("{}", "needs one of path, artifact, run"),
    ):
        assert word in str(refused(MINIMAL + f"[inputs]\ndata = {given}"))


@pytest.mark.parametrize(
    ("given", "swept"),
    [
        ("params.lr=1", "lr"),
        ("params={lr = 1, other = 2}", "lr"),
        ("train.lora.rank=8", "train.lora.rank"),
        ("train.lora={rank = 8}", "train.lora.rank"),
    ],
)
def test_what_is_swept_is_not_set_in_vain(given: str, swept: str) -> None:
    """NEW-24: every run takes its own value from the sweep, so one for all of them would be lost."""
    text = 'argv = ["x", "{params.lr}"]\n[params]\nother = 1\n[sweep]\nlr = [0.1, 0.2]\n'
    if swept.startswith("train."):
        text = 'model = "corral/tiny"\n[train]\nrecipe = "sft"\ndata = "x.jsonl"\n'
        text += "[sweep]\ntrain.lora.rank = [4, 8]\n"

    with pytest.raises(InvalidInput, match="has no effect") as refused:
        parse(text, what="it", overrides=[given])

    assert [field.path for field in refused.value.fields] == [f"sweep.{swept}"]
    assert f"sweep.{swept}=[" in refused.value.hint


def test_other_values_can_be_set_beside_a_sweep() -> None:
    text = 'argv = ["x"]\n[sweep]\nlr = [0.1, 0.2]\n'

    made = parse(text, what="it", overrides=["params.width=1", "sweep.lr=[3, 4]", "name=lr"])

    assert (made.params, made.sweep, made.name) == ({"width": 1}, {"lr": [3, 4]}, "lr")


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "github_token",
        "API_KEY",
        "MY_SECRET_2",
    ],
)
def test_a_variable_that_looks_like_a_secret_is_refused_with_the_command_that_stores_one(name: str) -> None:
    """DEF-05, FL-D48, MT-C23: in clear, who sees the run would read it. What is said to be public passes."""
    table = {"argv": ["true"], "env": {name: "sk-123456789"}}

    with pytest.raises(InvalidInput) as caught:
        build(table, what="run.toml")

    assert caught.value.fields[0].path == f"env.{name}"
    assert f"`corral secrets set {name}`" in caught.value.message
    assert "sk-123456789" not in caught.value.message
    assert build({**table, "public_env": [name]}, what="run.toml").env == table["env"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "512"),
        ("PAD_TOKEN", "<pad>"),
        ("SORT_KEY", "name"),
        ("SSH_KEY_PATH", "/keys/a"),
        ("AWS_ACCESS_KEY_ID", "AKIA"),
        ("GOOGLE_APPLICATION_CREDENTIALS_FILE", "/a"),
        ("USE_AUTH_TOKEN", "1"),
        ("HF_TOKEN", ""),
    ],
)
def test_a_variable_that_only_sounds_like_a_secret_is_not_refused(name: str, value: str) -> None:
    assert build({"argv": ["true"], "env": {name: value}}, what="run.toml").env == {name: value}


def test_a_changed_run_gets_no_secret_in_clear_either() -> None:
    """DEF-05: `requeue --set env.API_KEY=...`; what the run had already stays."""
    spec = RunSpec(argv=["true"], env={"API_KEY": "old", "A": "1"})

    with pytest.raises(InvalidInput, match="corral secrets set API_KEY"):
        edited(spec, ["env.API_KEY=new"])
    changed = edited(spec, ["env.A=2"])
    assert changed is not None
    assert changed.env == {"API_KEY": "old", "A": "2"}


def test_a_changed_training_run_that_does_not_fit_is_told_with_the_nearest_name() -> None:
    """HOUR-22: `requeue --set train.epoch=1`; before anything is sent."""
    spec = RunSpec(model="corral/tiny", kind="train", train={"recipe": "sft", "data": "x.jsonl"})
    changed = edited(spec, ["train.epoch=1"])
    assert changed is not None

    told = r"train\.epoch` is no setting; did you mean `epochs`"
    with corral.Corral("http://127.0.0.1:9", "x") as client, pytest.raises(InvalidInput, match=told):
        client.runs.submit([changed])


def test_a_function_gets_no_secret_in_clear() -> None:
    """DEF-05: for functions as for runs."""
    with pytest.raises(ValueError, match="corral secrets set HF_TOKEN"):
        corral.App("demo", env={"HF_TOKEN": "hf_123"})
    with pytest.raises(ValueError, match="corral secrets set HF_TOKEN"):
        corral.App("demo").function(env={"HF_TOKEN": "hf_123"})
    corral.App("demo").function(env={"HF_TOKEN": "x"}, public_env=["HF_TOKEN"])
