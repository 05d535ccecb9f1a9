"""A job from its spec to its output, and every wrong spec answered by one clear message."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jobs_for_tests as jobs
import pytest
from peft import PeftModel
from safetensors.torch import load_file

from corral.engine.__main__ import parse as parse_command
from corral.engine.__main__ import parse_task, task_places
from corral.engine.__main__ import places as places_of
from corral.engine.data.rows import BadRows
from corral.engine.environments.protocol import EnvironmentProblem
from corral.engine.errors import DataError, ModelProblem
from corral.engine.job import GUARD, REFUSED, EngineJob, main
from corral.engine.model import load as models
from corral.engine.model import tiny
from corral.engine.spec import InvalidSpec, JobPaths, JobSpec, read, with_defaults
from corral.engine.training.guards import GuardStop
from corral.engine.training.stop_signal import StopSignal
from corral.recipes.train import TrainError


def output(folder: Path, name: str) -> Any:
    return json.loads((folder / "output" / name).read_bytes())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an sft run that is done."""
    folder = tmp_path_factory.mktemp("trained")
    jobs.here(jobs.sft(folder, steps=40, learning_rate=5e-3, save_every=20))
    return folder


@pytest.fixture
def _handlers() -> Iterator[None]:
    """`main` takes over the signals of its process, which here is pytest's."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


# -- what a run leaves ----------------------------------------------------------------------------------


def test_an_attempt_after_memory_ran_out_is_cut_smaller_and_learns_the_same(tmp_path: Path) -> None:
    """MT-D18: whom the kernel killed had no chance to halve anything; the next attempt begins with less."""
    for retries in ("0", "2"):
        (tmp_path / retries).mkdir()
        spec = jobs.sft(tmp_path / retries, steps=4, micro_tokens=512)
        jobs.here(spec, CORRAL_MEMORY_RETRIES=retries)
    whole, small = (output(tmp_path / retries, "metrics.json") for retries in ("0", "2"))

    losses = [[row["loss"] for row in said["history"]] for said in (whole, small)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert [note for note in small["notes"] if "Memory" in note] == [
        f"Memory ran out in an earlier attempt: micro_tokens goes from {before} to {before // 2}."
        for before in (512, 256)
    ]
    assert not any("Memory" in note for note in whole["notes"])


def test_stock_peft_loads_the_adapter(trained: Path) -> None:
    """MT-C42."""
    model, _ = tiny.build()
    adapted = PeftModel.from_pretrained(model, trained / "output" / "adapter")

    saved = load_file(trained / "output" / "adapter" / "adapter_model.safetensors")
    assert any(name.endswith("lora_B.weight") and tensor.any() for name, tensor in saved.items())
    assert adapted.peft_config["default"].r == 16


def test_metrics_tell_the_course_and_the_evaluations_before_and_after_mt_d37(trained: Path) -> None:
    """MT-D37."""
    said = output(trained, "metrics.json")

    assert [row["step"] for row in said["history"]] == list(range(1, 41))
    assert [e["step"] for e in said["evaluations"]] == [0, 20, 40]
    assert said["changes"][0]["high"] < 0  # the held-out loss fell, and surely
    assert said["last"]["loss"] < 0.5 * said["history"][0]["loss"]


def test_a_card_says_what_it_is_and_how_well_it_did(trained: Path) -> None:
    card = (trained / "output" / "README.md").read_text()

    assert "A LoRA adapter for `corral/tiny`" in card
    assert "eval_loss after 40 steps" in card


def test_settings_are_recorded_as_asked_and_as_in_effect_mt_d13(trained: Path) -> None:
    """MT-D13."""
    said = output(trained, "train.json")

    assert said["asked"]["steps"] == 40
    assert said["in_effect"]["schedule"] == "cosine"
    assert isinstance(said["in_effect"]["micro_tokens"], int)
    assert said["in_effect"]["precision"] == "fp32"
    assert (said["model"], said["seed"]) == ("corral/tiny", 3)
    assert said["versions"]["torch"]


def test_forecast_and_actual_are_recorded(trained: Path) -> None:
    said = output(trained, "forecast.json")

    assert said["forecast"]["peak_bytes"] > 0
    assert said["actual"]["peak_bytes"] > 0
    assert said["actual"]["step_s"] > 0
    assert said["actual"]["total_s"] > said["actual"]["setup_s"] > 0
    assert set(said["error"]) == {"peak_bytes", "step_s", "total_s", "setup_s"}


def test_the_time_to_the_first_step_is_forecast_measured_and_short(trained: Path) -> None:
    """MT-D43: a minute is the bound for the built-in model on a host that has what it needs."""
    said = output(trained, "forecast.json")

    assert said["actual"]["setup_s"] < 60
    assert said["forecast"]["setup_s"] < 60


def test_samples_show_held_out_prompts_before_and_after(trained: Path) -> None:
    rows = lines(trained / "output" / "samples.jsonl")

    assert {row["phase"] for row in rows} == {"before", "after"}
    assert all(row["prompt"].endswith("=") and row["wanted"] for row in rows)


def test_grpo_lists_sampled_rollouts_with_rewards_for_each_step_mt_d45(tmp_path: Path) -> None:
    """MT-D45."""
    jobs.here(jobs.grpo(tmp_path, steps=2))

    rows = [row for row in lines(tmp_path / "output" / "samples.jsonl") if "phase" not in row]

    assert {row["step"] for row in rows} == {1, 2}
    assert all(set(row) >= {"prompt", "completion", "reward", "advantage", "metrics"} for row in rows)
    history = output(tmp_path, "metrics.json")["history"]
    assert {"reward", "reward_std", "length", "truncated", "reward/right", "reward/digit"} < set(history[-1])


def test_the_best_step_is_kept_when_it_is_not_the_last_mt_d37(tmp_path: Path) -> None:
    """A rate that ruins the model after a good beginning."""
    jobs.here(
        jobs.sft(
            tmp_path, steps=16, save_every=2, learning_rate=0.03, schedule="constant", warmup=0, grad_clip=0
        )
    )

    said = output(tmp_path, "metrics.json")
    means = {e["step"]: e["interval"]["mean"] for e in said["evaluations"]}
    best = min((step for step in means if step), key=lambda step: means[step])
    assert said["best_step"] == best
    assert (tmp_path / "output" / "best" / "adapter_config.json").is_file() == (best != 16)


# -- sampling and evaluating it -------------------------------------------------------------------------


def task(folder: Path, name: str, ask: Mapping[str, Any], **train: Any) -> Path:
    table = {**read(folder / "spec.json").table, "adapter": "output", **train}  # type: ignore[dict-item]
    spec = {"task": name, name: ask, "model": "corral/tiny", "train": table}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(spec))
    return path


def test_an_evaluation_compares_before_and_after_on_the_same_rows(trained: Path) -> None:
    jobs.here(task(trained, "eval", {"rows": 10}), "eval")

    (found,) = json.loads((trained / "eval" / "metrics.json").read_bytes())["evaluations"]

    assert found["metric"] == "eval_loss"
    assert found["after"]["mean"] < found["before"]["mean"]
    assert found["change"]["high"] < 0
    assert found["after"]["count"] == 10
    told = output(trained, "metrics.json")["evaluations"][0]["values"][:10]
    assert found["before"]["mean"] == pytest.approx(sum(told) / 10, rel=0.2)


def test_a_sample_asks_both_models_the_same(trained: Path) -> None:
    ask = {"messages": [{"role": "user", "content": "3+4="}], "n": 2, "max_tokens": 8}

    jobs.here(task(trained, "sample", ask), "sample")

    rows = lines(trained / "sample" / "samples.jsonl")
    assert [(row["phase"], row["number"]) for row in rows] == [
        ("before", 0),
        ("before", 1),
        ("after", 0),
        ("after", 1),
    ]
    assert all(0 < row["tokens"] <= 8 for row in rows)


def asked(folder: Path, name: str, **ask: Any) -> list[dict[str, Any]]:
    jobs.here(task(folder, "sample", {"max_tokens": 4, "temperature": 0.0, **ask}), name)
    return lines(folder / name / "samples.jsonl")


def test_a_model_is_asked_in_the_form_that_it_was_trained_in(trained: Path) -> None:
    """HOUR3-02: asked as a chat, a model that was trained on prompts and completions looked untrained."""
    said = [{"role": "user", "content": "3+4="}]

    message = asked(trained, "message", messages=said)
    prompt = asked(trained, "prompt", prompt="3+4=")
    chat = asked(trained, "chat", messages=[{"role": "system", "content": "Add."}, *said])

    assert message == prompt
    assert {(row["form"], row["trained_as"], row["prompt"]) for row in message} == {("text", "text", "3+4=")}
    assert next(row["completion"] for row in message if row["phase"] == "after").strip().isdigit()
    assert {(row["form"], row["trained_as"]) for row in chat} == {("chat", "text")}


def test_what_a_run_of_before_was_trained_in_is_seen_in_its_rows(trained: Path) -> None:
    """HOUR3-02."""
    record = trained / "output" / "train.json"
    kept = json.loads(record.read_bytes())
    record.write_text(json.dumps({key: value for key, value in kept.items() if key != "prompt_form"}))
    try:
        found = asked(trained, "before", messages=[{"role": "user", "content": "3+4="}])
    finally:
        record.write_text(json.dumps(kept))

    assert (kept["prompt_form"], found[0]["form"]) == ("text", "text")


def test_a_run_of_grpo_is_evaluated_by_its_environment(tmp_path: Path) -> None:
    jobs.here(jobs.grpo(tmp_path, steps=1))

    jobs.here(task(tmp_path, "eval", {"rows": 4}), "eval")

    (found,) = json.loads((tmp_path / "eval" / "metrics.json").read_bytes())["evaluations"]
    assert (found["metric"], found["after"]["count"]) == ("eval_reward", 4)
    assert lines(tmp_path / "eval" / "samples.jsonl")


def test_an_environment_beside_sft_only_evaluates(tmp_path: Path) -> None:
    jobs.grpo(tmp_path)
    jobs.here(jobs.sft(tmp_path, steps=2, environment="environment.py", metric="eval_reward"))

    said = output(tmp_path, "metrics.json")
    assert [(e["step"], e["metric"]) for e in said["evaluations"]] == [
        (0, "eval_loss"),
        (0, "eval_reward"),
        (2, "eval_loss"),
        (2, "eval_reward"),
    ]
    assert said["best_step"] == 2
    assert {change["metric"] for change in said["changes"]} == {"eval_loss", "eval_reward"}


def test_a_full_fine_tuning_leaves_a_model_that_can_be_asked(tmp_path: Path) -> None:
    jobs.here(jobs.sft(tmp_path, steps=2, method="full", learning_rate=1e-4))
    loaded = models.load(str(tmp_path / "output" / "model"))
    assert loaded.tokenizer.chat_template

    where = task_places(
        "sample",
        parse_task(["sample", str(tmp_path / "output"), "-m", "1+1=", "--output", str(tmp_path / "said")]),
    )
    EngineJob(read(where.spec), where, {}, jobs.FragileEvents(None, None), StopSignal()).run()

    assert [row["phase"] for row in lines(tmp_path / "said" / "samples.jsonl")] == ["after"]


def test_the_command_line_samples_an_output_folder(trained: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "corral.engine",
            "sample",
            str(trained / "output"),
            "-m",
            "3+4=",
            "--max-tokens",
            "4",
        ],
        cwd=trained,
        env=jobs.environ(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "--- after training" in done.stdout
    assert len(lines(trained / "sample-output" / "samples.jsonl")) == 2


# -- what is refused ------------------------------------------------------------------------------------


def test_a_wrong_table_names_every_place_at_once(tmp_path: Path) -> None:
    with pytest.raises(TrainError) as caught:
        jobs.here(jobs.sft(tmp_path, batch_sise=4, warmup=7))

    paths = {problem.path for problem in caught.value.problems}
    assert {"train.batch_sise", "train.warmup"} <= paths


def test_broken_json_is_named_by_its_line(tmp_path: Path) -> None:
    spec = jobs.sft(tmp_path)
    with (tmp_path / "sums.jsonl").open("a") as file:
        file.write("{broken\n")

    with pytest.raises(BadRows, match=r"sums\.jsonl:101"):
        jobs.here(spec)


def test_data_that_is_not_there_or_empty_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="no such file"):
        jobs.here(jobs.sft(tmp_path, data="nothing.jsonl"))
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match="no rows"):
        jobs.here(jobs.sft(tmp_path, data="empty.jsonl"))


def test_a_model_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    spec = jobs.sft(tmp_path)
    said = json.loads(spec.read_bytes())
    spec.write_text(json.dumps({**said, "model": str(tmp_path / "no-model")}))

    with pytest.raises(ModelProblem):
        jobs.here(spec)


def test_an_adapter_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidSpec, match="holds no adapter"):
        jobs.here(jobs.sft(tmp_path, adapter="empty"))


REWARDS = {
    "raises": "raise RuntimeError('broken reward')",
    "nan": "return float('nan')",
    "a string": "return 'good'",
    "none": "return None",
}


@pytest.mark.parametrize("kind", REWARDS)
def test_a_reward_that_never_gives_a_number_is_found_before_the_model_is_loaded(
    kind: str, tmp_path: Path
) -> None:
    source = jobs.ENVIRONMENT.partition('    return {"right"')[0] + f"    {REWARDS[kind]}\n"

    with pytest.raises(EnvironmentProblem, match="each task that was tried"):
        jobs.here(jobs.grpo(tmp_path, source=source))


def test_a_reward_that_fails_for_all_completions_ends_the_run(tmp_path: Path) -> None:
    source = jobs.ENVIRONMENT.partition('    return {"right"')[0] + "    return {'1': 1.0}[completion]\n"

    with pytest.raises(GuardStop, match="16 of 16 completions of step 1 could not be scored"):
        jobs.here(jobs.grpo(tmp_path, source=source))


def test_prompts_that_leave_no_room_are_refused_or_left_out(tmp_path: Path) -> None:
    source = jobs.ENVIRONMENT.replace('f"{a}+{b}="', 'f"{a}+{b}=" + " " * (60 if a == 3 else 0)')
    with pytest.raises(InvalidSpec, match="4 tasks leave no room"):
        jobs.here(jobs.grpo(tmp_path, source=source))

    jobs.here(jobs.grpo(tmp_path, source=source, too_long="skip", steps=1))
    assert any("4 of 16 tasks" in note for note in output(tmp_path, "metrics.json")["notes"])


# -- the edge -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_handlers")
def test_an_error_of_the_user_is_one_message_with_a_hint_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = jobs.sft(tmp_path, data="nothing.jsonl")

    code = main(jobs.places(spec, "output"), {})

    said = capsys.readouterr().err
    assert code == REFUSED
    assert said.startswith("error: train.data is 'nothing.jsonl'")
    assert "\nhint: " in said
    assert "Traceback" not in said


@pytest.mark.usefixtures("_handlers")
def test_a_guard_ends_the_run_with_a_code_and_a_note_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = jobs.ENVIRONMENT.replace('{"right": completion.startswith(answer), "digit"', '{"digit"').replace(
        "0.1 * completion[:1].isdigit()", "0.0"
    )
    spec = jobs.grpo(tmp_path, source=source, guards={"dead_reward_steps": 2})
    places = JobPaths(spec, tmp_path / "out", tmp_path / "kept", events=tmp_path / "events.jsonl")

    assert main(places, {}) == GUARD
    assert "nothing is learned" in capsys.readouterr().err
    assert "The run was stopped" in (tmp_path / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ("{}", 'needs "model" and "train"'),
        ('{"model": 3, "train": {}}', "model of the spec must be a string"),
        ('{"model": "x", "train": [1]}', "train of the spec must be an object"),
        ('{"model": "x", "train": {}, "seed": "y"}', "seed of the spec must be a whole number"),
        ('{"model": "x", "train": {}, "task": "dance"}', "task is 'dance'"),
    ],
)
def test_a_spec_that_is_none_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(content)

    with pytest.raises(InvalidSpec) as caught:
        read(tmp_path / "spec.json")
    assert message in str(caught.value)


def test_a_task_refuses_what_it_does_not_know() -> None:
    defaults = {"n": 1, "temperature": 0.7}

    assert with_defaults({"n": 3, "temperature": None}, defaults, where="sample") == {
        "n": 3,
        "temperature": 0.7,
    }
    assert with_defaults({"temperature": 1}, defaults, where="sample")["temperature"] == 1
    with pytest.raises(InvalidSpec, match="does not know m"):
        with_defaults({"m": 3}, defaults, where="sample")
    with pytest.raises(InvalidSpec, match=r"sample\.n must be like 1"):
        with_defaults({"n": "many"}, defaults, where="sample")


def test_an_input_of_the_worker_comes_before_a_path_of_the_spec(tmp_path: Path) -> None:
    (tmp_path / "inputs" / "data").mkdir(parents=True)
    (tmp_path / "inputs" / "data" / "rows.jsonl").touch()
    (tmp_path / "mine.jsonl").touch()
    places = JobPaths(tmp_path / "spec.json", tmp_path, tmp_path, inputs=tmp_path / "inputs")

    assert places.locate("data", "mine.jsonl") == tmp_path / "inputs" / "data" / "rows.jsonl"
    assert places.locate("eval_data", "mine.jsonl") == tmp_path / "mine.jsonl"
    assert places.locate("eval_data", "other.jsonl") is None


def test_under_a_worker_everything_comes_from_its_variables(tmp_path: Path) -> None:
    variables = {
        "CORRAL_SPEC": "/lease/spec.json",
        "CORRAL_INPUT_DIR": "/lease/inputs",
        "CORRAL_OUTPUT_DIR": "/lease/output",
        "CORRAL_CHECKPOINT_DIR": "/lease/checkpoints",
        "CORRAL_EVENTS": "/lease/events.jsonl",
    }

    found = places_of(parse_command([]), variables)

    assert (str(found.spec), str(found.output)) == ("/lease/spec.json", "/lease/output")
    assert found.resume is None
    assert places_of(parse_command([]), {**variables, "CORRAL_RESUME_DIR": "/r"}).resume == Path("/r")
    with pytest.raises(SystemExit, match="name the spec"):
        places_of(parse_command([]), {})


def test_the_spec_that_the_worker_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(
        json.dumps(
            {
                "name": "run",
                "kind": "train",
                "argv": [],
                "model": "corral/tiny",
                "model_revision": "abc",
                "train": {"recipe": "sft"},
                "task": "train",
                "eval": None,
                "sample": None,
                "seed": None,
                "env": {"LEVEL": "2"},
                "secrets": ["JUDGE_KEY"],
            }
        )
    )

    assert read(path) == JobSpec(
        "train", "corral/tiny", "abc", {"recipe": "sft"}, 0, {}, variables=("LEVEL", "JUDGE_KEY")
    )


def test_a_run_that_was_given_a_gpu_does_not_fall_to_the_cpu_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EN-D06: a change of device is an error."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    spec = json.loads(jobs.sft(tmp_path).read_bytes())
    path = jobs.write(tmp_path, {**spec, "resources": {"gpus": 1}})
    with pytest.raises(InvalidSpec, match=r"given 1 GPU.*torch sees none"):
        jobs.here(path)
