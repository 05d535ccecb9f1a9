"""Training through the control plane: the installed `corral`, a server, a worker, the engine as its child."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import forked
from support.installation import Installation, installed
from support.waiting import eventually

pytest.importorskip("torch", reason="the training engine is not installed: pip install 'corral[train]'")
pytest.importorskip("peft", reason="the training engine is not installed: pip install 'corral[train]'")

SFT = """
name = "sums"
model = "corral/tiny"
[train]
recipe = "sft"
data = "sums.jsonl"
eval_fraction = 0.2
steps = 8
batch_size = 16
learning_rate = 3e-3
max_length = 64
[train.lora]
rank = 8
"""
GRPO = """
name = "rl"
model = "corral/tiny"
[train]
recipe = "grpo"
environment = "arithmetic"
steps = 2
prompts_per_step = 2
eval_rows = 4
max_length = 96
[train.grpo]
group_size = 4
max_completion = 8
"""


def sums() -> str:
    rows = [
        {"messages": [{"role": "user", "content": f"{a}+{b}="}, {"role": "assistant", "content": str(a + b)}]}
        for a in range(8)
        for b in range(8)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


# One thread: two fight for the cores that the tests share, and are far slower.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_TOKEN": "hf_the-hosts-own-token"}


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    # Its engine is forked: an interpreter takes five seconds to import it.
    with installed(
        tmp_path_factory.mktemp("home"),
        folder=tmp_path_factory.mktemp("work"),
        **ENVIRONMENT,
        **forked.python_environment(),
    ) as made:
        made.write("sums.jsonl", sums())
        made.write("sft.toml", SFT)
        yield made


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Installation]:
    """Its worker starts the engine in an interpreter of its own, as all workers do."""
    (tmp_path / "work").mkdir()
    with installed(tmp_path / "home", folder=tmp_path / "work", **ENVIRONMENT) as made:
        yield made


@pytest.fixture(scope="module")
def trained(corral: Installation) -> dict[str, Any]:
    """One finished run of supervised fine-tuning, which several tests look at."""
    done = corral("submit", "sft.toml", "--follow", "--set", "labels.of=trained")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = corral.json("show", corral.json("ls", "--label", "of=trained")[0]["id"])
    return {**found, "printed": done.stdout, "told": done.stderr}


def test_a_run_file_with_a_train_table_trains(trained: dict[str, Any], corral: Installation) -> None:
    """MT-C01."""
    assert (trained["state"], trained["kind"]) == ("succeeded", "train")
    assert "step 8/8" in trained["printed"]
    losses = [
        json.loads(line)
        for line in corral.ok("metrics", trained["id"], "--name", "loss", "--json").splitlines()
    ]
    assert [point["step"] for point in losses] == list(range(1, 9))
    assert losses[-1]["value"] < losses[0]["value"]
    assert trained["metrics"]["eval_loss"] < 6


def test_the_spec_holds_every_setting_as_in_effect(trained: dict[str, Any]) -> None:
    """MT-D13."""
    table = trained["spec"]["train"]

    assert table["lora"] == {"rank": 8, "alpha": 16, "rslora": True, "targets": "all-linear"}
    assert (table["schedule"], table["weight_decay"], table["loss_on"]) == ("cosine", 0.0, "assistant")
    assert trained["spec"]["argv"] == []
    assert set(trained["spec"]["inputs"]) == {"data"}


def test_show_and_plot_tell_what_was_trained(trained: dict[str, Any], corral: Installation) -> None:
    shown = corral.ok("show", trained["id"])
    curve = corral.ok("metrics", trained["id"], "--plot")

    assert "corral/tiny" in shown
    assert "lora.rank=8" in shown
    assert curve.startswith("loss: ")
    assert "█" in curve


def test_the_adapter_is_fetched_and_verified_with_one_command(
    trained: dict[str, Any], corral: Installation, tmp_path: Path
) -> None:
    """FL-D15, MT-D49."""
    said = corral.ok("artifacts", "get", trained["id"], str(tmp_path / "got"))

    assert "every file matches its digest" in said
    assert (tmp_path / "got" / "adapter" / "adapter_config.json").is_file()
    assert (tmp_path / "got" / "adapter" / "adapter_model.safetensors").is_file()
    assert (tmp_path / "got" / "metrics.json").is_file()


def test_eval_compares_before_and_after_with_intervals(trained: dict[str, Any], corral: Installation) -> None:
    """MT-C54."""
    found = corral.json("eval", trained["id"], "--rows", "8")

    (loss,) = [one for one in found["evaluations"] if one["metric"] == "eval_loss"]
    assert loss["after"]["mean"] < loss["before"]["mean"]
    assert loss["after"]["low"] <= loss["after"]["mean"] <= loss["after"]["high"]
    assert loss["change"]["high"] < 0
    run = corral.json("show", found["run"])
    assert (run["kind"], run["labels"]["of"], run["spec"]["task"]) == ("train", trained["id"], "eval")


def test_sample_asks_the_model_before_and_after_and_eval_takes_rows_of_ones_own(
    trained: dict[str, Any], corral: Installation
) -> None:
    """MT-C13."""
    shown = corral.ok(
        "sample", trained["id"], "-m", "3+4=", "--system", "Add.", "-n", "2", "--max-tokens", "4"
    )

    begins = [line.split(":")[0] for line in shown.splitlines() if line.startswith(("before ", "after "))]
    assert begins == ["before 1", "before 2", "after 1", "after 2"]
    spec = corral.json("show", "latest")["spec"]
    assert [message["role"] for message in spec["sample"]["messages"]] == ["system", "user"]

    # The newest run by now is one that asks; `latest` means what it asked about.
    corral.write("mine.jsonl", sums().splitlines()[0] + "\n" + sums().splitlines()[9] + "\n")
    shown = corral.ok("eval", "latest", "--data", "mine.jsonl")
    assert "eval_loss" in shown
    assert "before" in shown
    assert shown.splitlines()[1].split()[-1] == "2"
    assert corral.show()["labels"]["of"] == trained["id"]


@pytest.mark.parametrize("command", [("eval",), ("sample", "-m", "x")])
def test_only_a_training_run_with_a_result_can_be_asked(
    command: tuple[str, ...], corral: Installation
) -> None:
    corral.ok("run", "--name", "plain", "--quiet", "--", "true")
    plain = corral.json("ls", "--name", "plain")[0]["id"]

    done = corral(command[0], plain, *command[1:])

    assert done.returncode == 1
    assert f"run {plain} is not a training run" in done.stderr


def test_forecast_against_actual_is_reported(trained: dict[str, Any], corral: Installation) -> None:
    shown = corral.ok("forecast", "report")
    found = corral.json("forecast", "report")

    assert trained["id"] in shown
    assert "peak memory" in shown
    record = next(one for one in found["runs"] if one["run"] == trained["id"])
    assert record["actual"]["peak_bytes"] > 0
    assert {one["key"] for one in found["summaries"]} >= {"peak_bytes", "step_s", "total_s"}


def test_the_estimate_names_the_host_that_takes_it(corral: Installation) -> None:
    """MT-D17."""
    host = corral.json("hosts", "ls")[0]["name"]

    found = corral.json("estimate", "sft.toml")
    shown = corral.ok("estimate", "sft.toml")

    assert found["taken"] == host
    assert f"{host}  " in shown
    assert "taken" in shown


def test_a_dry_run_shows_the_whole_table_and_stores_nothing(corral: Installation) -> None:
    """MT-C12."""
    before = corral.ok("artifacts", "ls", "--json")

    found = corral.json("submit", "sft.toml", "--dry-run")

    assert found["runs"][0]["train"]["lora"]["alpha"] == 16
    assert [host["eligible"] for host in found["hosts"]] == [True]
    assert corral.ok("artifacts", "ls", "--json") == before


def test_an_adapter_is_trained_further_by_another_run(trained: dict[str, Any], corral: Installation) -> None:
    done = corral(
        "submit", "sft.toml", "--follow", "--set", f"train.adapter={trained['id']}", "--set", "train.steps=2"
    )

    assert done.returncode == 0, done.stderr
    first = json.loads(corral.ok("metrics", "latest", "--name", "loss", "--json").splitlines()[0])
    last = json.loads(corral.ok("metrics", trained["id"], "--name", "loss", "--json").splitlines()[-1])
    assert first["value"] < 2 * last["value"]


def test_seeds_and_settings_are_swept_as_a_group(corral: Installation) -> None:
    """MT-C31."""
    name = corral.write("sweep.toml", f"seeds = [3]\n{SFT}[sweep]\ntrain.lora.rank = [2, 4]\n")

    done = corral(
        "submit", name, "--follow", "--json", "--set", "train.steps=1", "--set", "train.eval_fraction=0"
    )

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    specs = [corral.json("show", run)["spec"] for run in answer["ids"]]
    assert [(spec["train"]["lora"]["rank"], spec["seed"]) for spec in specs] == [(2, 3), (4, 3)]
    assert "lora.rank=4" in corral.ok("ls", "--group", answer["group_id"])


def test_reinforcement_with_the_bundled_environment_runs(plain: Installation) -> None:
    """MT-C01."""
    name = plain.write("grpo.toml", GRPO)

    done = plain("submit", name, "--follow")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "reward" in plain.json("show", "latest")["metrics"]


def test_an_environment_of_ones_own_is_shipped_and_sees_no_credential_of_the_host(
    corral: Installation,
) -> None:
    """MT-C02, MT-D01: neither a token of the worker nor one of the host's user."""
    assert corral.folder is not None
    folder = corral.folder / "mine"
    folder.mkdir()
    (folder / "words.py").write_text("GOOD = 'y'\n")
    (folder / "environment.py").write_text(
        "import os\n"
        "from words import GOOD\n"
        "class Mine:\n"
        "    def rows(self):\n"
        "        return [{'prompt': 'x', 'answer': GOOD}] * 4\n"
        "    def reward(self, completion, answer):\n"
        "        found = [k for k, v in os.environ.items() if 'TOKEN' in k or 'the-hosts-own' in v]\n"
        "        assert not found, found\n"
        "        return float('HOME' in os.environ)\n"
        "def load_environment():\n"
        "    return Mine()\n"
    )
    name = corral.write("own.toml", GRPO.replace('"arithmetic"', '"mine"').replace("steps = 2", "steps = 1"))

    done = corral("submit", name, "--follow")

    assert done.returncode == 0, done.stdout + done.stderr
    run = corral.json("show", "latest")
    assert set(run["spec"]["inputs"]) == {"environment"}
    assert run["metrics"]["reward"] == 1.0


def test_a_run_whose_worker_is_killed_goes_on_from_its_checkpoint(corral: Installation) -> None:
    name = corral.write(
        "long.toml", SFT.replace("steps = 8", "steps = 30\nsave_every = 5").replace('sums"', 'killed"')
    )
    run = corral.ok("submit", name).strip()

    def saved() -> bool:
        return any(item["kind"] == "checkpoint" for item in corral.json("artifacts", "ls", "--run", run))

    eventually(saved, "a checkpoint")
    os.kill(corral.pid("worker"), signal.SIGKILL)
    corral.ok("up", "--detach")
    done = corral("logs", "-f", run)

    assert done.returncode == 0, done.stdout + done.stderr
    ended = corral.json("show", run)
    assert (ended["state"], ended["attempt"]) == ("succeeded", 2)
    steps = [json.loads(line) for line in corral.ok("metrics", run, "--name", "loss", "--json").splitlines()]
    assert {point["step"] for point in steps} == set(range(1, 31))
    assert min(point["step"] for point in steps if point["attempt"] == 2) > 1


def test_a_row_that_is_too_long_fails_the_run_by_its_line(corral: Installation) -> None:
    long = json.dumps(
        {"messages": [{"role": "user", "content": "x" * 500}, {"role": "assistant", "content": "y"}]}
    )
    corral.write("long.jsonl", sums() + long + "\n")
    name = corral.write("toolong.toml", SFT.replace("sums.jsonl", "long.jsonl"))

    done = corral("submit", name, "--follow")

    assert done.returncode == 2
    run = corral.json("show", "latest")
    assert run["reason"] == "bad_data"
    assert "65" in run["detail"]
    assert "Traceback" not in run["detail"]


def test_an_environment_without_the_engine_is_told_what_it_lacks(corral: Installation) -> None:
    """MT-D34: what was built for the user's own packages is not taken for what trains."""
    name = corral.write("built.toml", SFT + "[environment]\nrequirements = []\n")

    done = corral("submit", name, "--follow")

    assert done.returncode == 1
    run = corral.json("show", "latest")
    assert run["reason"] == "environment"
    assert "it lacks corral, torch, transformers, peft, safetensors" in run["detail"]


@pytest.fixture(scope="module")
def cancelled(corral: Installation) -> dict[str, Any]:
    """A training run that was cancelled after some steps: it has a checkpoint, and no result."""
    name = corral.write("stopped.toml", SFT.replace("steps = 8", "steps = 100000"))
    run = corral.ok("submit", name).strip()
    eventually(lambda: "loss" in corral.json("show", run)["metrics"], "the first step")
    corral.ok("cancel", run)
    eventually(lambda: corral.json("show", run)["state"] == "cancelled", "it to be cancelled")
    made = corral.json("artifacts", "ls", "--run", run)
    return {"id": run, "checkpoint": next(one["id"] for one in made if one["kind"] == "checkpoint")}


def test_training_is_cancelled_in_the_middle(cancelled: dict[str, Any], corral: Installation) -> None:
    """MT-C35."""
    run = corral.show(cancelled["id"])
    assert run["state"] == "cancelled"
    assert "loss" in run["metrics"]


def further(adapter: str) -> tuple[str, ...]:
    return ("submit", "sft.toml", "--set", f"train.adapter={adapter}", "--set", "train.steps=1")


def adapter_of(spec: dict[str, Any]) -> tuple[str, str]:
    """Its content, and where in it the adapter lies."""
    return spec["input_digests"]["adapter"], spec["input_paths"]["adapter"]


def test_what_a_cancelled_run_had_learned_is_trained_further(
    cancelled: dict[str, Any], corral: Installation
) -> None:
    """HOUR4-18: by the run, by its checkpoint, or by a folder with one."""
    done = corral(*further(cancelled["id"]), "--follow")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its last checkpoint after" in done.stderr
    assert cancelled["checkpoint"] in done.stderr
    by_run = adapter_of(corral.show()["spec"])

    # The same adapter: it need not be trained again.
    (plan,) = corral.json(*further(cancelled["checkpoint"]), "--dry-run")["runs"]
    assert adapter_of(plan) == by_run
    corral.ok("artifacts", "get", cancelled["checkpoint"], "fetched")
    done = corral(*further("fetched"), "--follow")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_cancelled_run_had_learned_is_asked(cancelled: dict[str, Any], corral: Installation) -> None:
    """HOUR4-18: `corral sample`, before and after."""
    done = corral("sample", cancelled["id"], "-m", "1+1=", "--max-tokens", "2")
    assert done.returncode == 0, done.stderr
    assert "its last checkpoint is asked" in done.stderr
    assert "after:" in done.stdout


def test_an_artifact_without_an_adapter_is_refused_before_it_is_queued(
    trained: dict[str, Any], corral: Installation
) -> None:
    """HOUR4-18: it failed on the host, after its model was loaded."""
    data = trained["spec"]["inputs"]["data"]
    before = corral.json("ls", "--all")
    done = corral("submit", "sft.toml", "--set", f"train.adapter={data}")
    assert done.returncode == 1
    assert f"train.adapter: {data} (input) holds no adapter" in done.stderr
    assert len(corral.json("ls", "--all")) == len(before)


def test_a_run_that_needs_a_gpu_waits_and_says_why(corral: Installation) -> None:
    done = corral("submit", "sft.toml", "--set", "resources.gpus=1")
    run = done.stdout.strip()

    assert "no host of 1 can take it" in done.stderr
    assert "needs 1 GPU; the host has none" in corral.ok("why", run)
    assert corral.json("show", run)["spec"]["resources"]["min_vram"] > 100 << 20
    corral.ok("cancel", run)


FAULTS = {
    "key": (SFT + "rnak = 1", "train.lora.rnak", "did you mean `rank`?"),
    "level": (SFT.replace("data =", "dta ="), "train.dta", "did you mean `data`?"),
    "recipe": (SFT.replace('"sft"', "3"), "train.recipe", 'expected "sft" or "grpo"'),
    "model list": (SFT.replace('"corral/tiny"', '["corral/tiny"]'), "model", "string"),
    "model unknown": (SFT.replace('"corral/tiny"', '"./nowhere"'), "model", "is not a folder"),
    "group of one": (GRPO.replace("group_size = 4", "group_size = 1"), "train.grpo.group_size", "at least 2"),
    "temperature": (GRPO + "temperature = 50", "train.grpo.temperature", "at most 2"),
    "rate": (SFT.replace("3e-3", "1e3"), "train.learning_rate", "less than 1"),
    "no room": (
        GRPO.replace("max_completion = 8", "max_completion = 96"),
        "train.grpo.max_completion",
        "no room",
    ),
    "both": (SFT.replace("steps = 8", "steps = 8\nepochs = 1"), "train.steps", "both"),
    "argv": ('argv = ["true"]\n' + SFT, "argv", "[train]"),
    "empty data": (SFT.replace("sums", "empty"), "train.data", "has no rows"),
    "broken data": (SFT.replace("sums", "broken"), "train.data", "broken.jsonl:2: not JSON"),
    "no data": (SFT.replace("sums.jsonl", "none.jsonl"), "train.data", "does not exist"),
    "environment": (GRPO.replace("arithmetic", "arithmatic"), "train.environment", "`arithmetic`"),
    "syntax": (GRPO.replace('"arithmetic"', '"bad.py"'), "train.environment", "bad.py, line 1"),
    "adapter": (SFT.replace("steps", 'adapter = "r-bcdfghjkmnpq"\nsteps'), "r-bcdfghjkmnpq", "no run"),
    "seeds": ("seeds = [-1]\n" + SFT, "seeds", "negative"),
}


@pytest.fixture
def faulty(corral: Installation) -> Installation:
    corral.write("empty.jsonl", "")
    corral.write("broken.jsonl", '{"text": "x"}\n{"text": \n')
    corral.write("bad.py", "def load_environment(:\n")
    return corral


@pytest.mark.parametrize("what", FAULTS)
def test_a_faulty_training_run_is_refused_at_its_place(what: str, faulty: Installation) -> None:
    """MT-D27 to MT-D31, MT-C21: named, with what to do, before a machine is taken."""
    text, *words = FAULTS[what]

    done = faulty("submit", faulty.write("faulty.toml", text))

    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert "\nhint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert [word for word in words if word not in done.stderr] == []


@pytest.mark.parametrize("what", ["broken data", "syntax", "adapter"])
def test_nothing_of_a_faulty_training_run_is_sent(what: str, faulty: Installation) -> None:
    before = faulty.ok("artifacts", "ls", "--json")

    assert faulty("submit", faulty.write("faulty.toml", FAULTS[what][0])).returncode == 1

    assert faulty.ok("artifacts", "ls", "--json") == before


def test_an_adapter_of_another_model_is_refused(trained: dict[str, Any], corral: Installation) -> None:
    name = corral.write(
        "other.toml",
        SFT.replace("corral/tiny", "smollm2-135m").replace("steps", f'adapter = "{trained["id"]}"\nsteps'),
    )

    done = corral("submit", name)

    assert done.returncode == 1
    assert "train.adapter: was made for corral/tiny, and this run is of smollm2-135m" in done.stderr


def test_the_schema_describes_the_train_table(corral: Installation) -> None:
    schema = json.loads(corral.ok("schema"))

    train = next(one for one in schema["properties"]["train"]["anyOf"] if "properties" in one)
    assert train["properties"]["lora"]["properties"]["rank"]["minimum"] == 1
    assert train["required"] == ["recipe"]
