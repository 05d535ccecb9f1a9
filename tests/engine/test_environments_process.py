"""The environment's own processes: whatever the user's code does there costs one sample (issue 3, part 6)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import eventually

from corral.engine.environments.process import MOST_PENDING, EnvironmentProcess
from corral.engine.environments.protocol import (
    CallResult,
    EnvironmentCall,
    EnvironmentProblem,
    Message,
)

BAD = """
    import os, subprocess, sys, time

    def load_environment(count: int = 3):
        return {"rows": [{"prompt": f"{n}", "answer": str(n)} for n in range(count)], "reward": reward}

    def reward(completion, answer):
        print("noise on standard output")
        os.write(1, b"{}")
        if completion == "crash":
            os._exit(3)
        if completion == "signal":
            os.kill(os.getpid(), 11)
        if completion == "exit":
            sys.exit("bye")
        if completion == "hang":
            time.sleep(1000)
        if completion.startswith("child "):
            child = subprocess.Popen(["sleep", "1000"])
            open(completion[6:], "w").write(str(child.pid))
            time.sleep(1000)
        if completion == "raise":
            raise ValueError("no such city")
        if completion == "environ":
            return {"reward": 1, "secret": "SECRET" in os.environ, "given": "GIVEN" in os.environ}
        return {"nan": float("nan"), "inf": float("inf"), "text": "1.0", "none": None}.get(
            completion, completion == answer
        )
"""


def written(folder: Path, code: str) -> str:
    (folder / "environment.py").write_text(textwrap.dedent(code))
    return str(folder)


def talk(text: str) -> list[Message]:
    return [{"role": "user", "content": "0"}, {"role": "assistant", "content": text}]


def results(
    environment: EnvironmentProcess, calls: list[EnvironmentCall], limit_s: float = 60.0
) -> list[CallResult]:
    """The results of these calls, in their order."""
    keys = [environment.submit(call) for call in calls]
    found: dict[int, CallResult] = {}
    until = time.monotonic() + limit_s
    while environment.pending:
        assert time.monotonic() < until, "the environment did not answer"
        found.update({result.key: result for result in environment.poll(1.0)})
    return [found[key] for key in keys]


def score(environment: EnvironmentProcess, *texts: str) -> list[CallResult]:
    calls = [
        EnvironmentCall("score", f"{i}", "train", 0, messages=talk(text), opening=1)
        for i, text in enumerate(texts)
    ]
    return results(environment, calls)


def gone(pid: int) -> bool:
    """Whether a process has ended, within a few seconds."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentProcess]:
    source = written(tmp_path_factory.mktemp("bad"), BAD)
    os.environ["SECRET"] = "of the engine"
    try:
        with EnvironmentProcess(
            source, deadline_s=1.0, environ={"GIVEN": "to the environment"}
        ) as environment:
            yield environment
    finally:
        del os.environ["SECRET"]


def test_what_is_printed_does_not_disturb_the_answers(bad: EnvironmentProcess) -> None:
    assert [one.value for one in score(bad, "0", "1")] == [
        {"reward": 1.0, "metrics": {}},
        {"reward": 0.0, "metrics": {}},
    ]


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("raise", "raised", "ValueError: no such city (environment.py:23 in reward)"),
        ("nan", "bad_reward", "reward() is nan"),
        ("inf", "bad_reward", "reward() is inf"),
        ("text", "bad_reward", "reward() is the string '1.0', not a number"),
        ("none", "bad_reward", "reward() is None: it does not apply to this sample"),
        ("crash", "crashed", "the environment's process exited with status 3"),
        ("signal", "crashed", "the environment's process was ended by signal SIGSEGV"),
        ("exit", "crashed", "the environment's process exited with status 1"),
        ("hang", "deadline", "took longer than 1 s"),
    ],
)
def test_a_bad_reward_is_an_error_of_its_sample_alone(
    bad: EnvironmentProcess, text: str, kind: str, said: str
) -> None:
    before = bad.failures.get(kind, 0)

    first, culprit, last = score(bad, "0", text, "0")

    assert (culprit.value, culprit.kind, culprit.error) == (None, kind, said)
    assert [one.value and one.value["reward"] for one in (first, last)] == [1.0, 1.0]
    assert bad.failures[kind] == before + 1


def test_many_bad_ones_among_many_good_ones_cost_only_themselves(bad: EnvironmentProcess) -> None:
    texts = ["crash" if i % 40 == 7 else "hang" if i == 50 else "0" for i in range(120)]
    restarts = bad.restarts

    found = score(bad, *texts)

    assert [one.kind for one in found] == [
        {"crash": "crashed", "hang": "deadline"}.get(text) for text in texts
    ]
    assert bad.restarts == restarts + 4


def test_more_calls_than_may_wait_are_taken_one_after_another(bad: EnvironmentProcess) -> None:
    found = score(bad, *["0"] * (MOST_PENDING + 200))

    assert {one.value and one.value["reward"] for one in found} == {1.0}


def test_a_hang_is_ended_with_all_that_it_started(bad: EnvironmentProcess, tmp_path: Path) -> None:
    note = tmp_path / "pid"

    [late] = score(bad, f"child {note}")

    assert late.kind == "deadline"
    assert gone(int(note.read_text()))


def test_the_users_code_sees_no_secret_that_was_not_meant_for_it(bad: EnvironmentProcess) -> None:
    """MT-C20."""
    [result] = score(bad, "environ")

    assert result.value == {"reward": 1.0, "metrics": {"secret": 0.0, "given": 1.0}}


def test_the_environments_process_loads_nothing_heavy() -> None:
    script = (
        "import sys, corral.engine.environments.child; print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


def test_closing_leaves_nothing_running(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    environment = EnvironmentProcess(written(tmp_path, BAD), deadline_s=60.0)
    environment.submit(EnvironmentCall("score", "a", "train", 0, messages=talk(f"child {note}"), opening=1))
    eventually(lambda: note.exists() and note.read_text(), "the child to say its pid")

    environment.close()
    environment.close()

    assert gone(int(note.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_environment_ends_with_its_engine(tmp_path: Path, number: signal.Signals) -> None:
    """A worker ends a run by SIGTERM and then SIGKILL; a hanging environment must not outlive that."""
    note = tmp_path / "pid"
    program = f"""
        from corral.engine.environments.process import EnvironmentProcess
        from corral.engine.environments.protocol import EnvironmentCall
        environment = EnvironmentProcess({written(tmp_path, BAD)!r}, deadline_s=600.0)
        talk = [{{"role": "user", "content": "0"}}, {{"role": "assistant", "content": "child {note}"}}]
        environment.submit(EnvironmentCall("score", "a", "train", 0, messages=talk, opening=1))
        environment.poll(600)
    """
    engine = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], process_group=0)
    eventually(lambda: note.exists() and note.read_text(), "the child to say its pid")

    os.killpg(engine.pid, number)
    engine.wait()

    assert gone(int(note.read_text()))


# -- loading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "params", "said"),
    [
        ("def load_environment(:\n    pass", {}, r"environment\.py:1: .*"),
        ("import nowhere_to_be_found", {}, r"environment\.py:1: ModuleNotFoundError: No module named"),
        ("x = 1", {}, r"environment\.py: has no function load_environment"),
        (
            "def load_enviroment(): pass",
            {},
            r"has no function load_environment \(did you mean `load_enviroment`\?\)",
        ),
        (
            "def load_environment(digits=1): return {}",
            {"digts": 2},
            r"environment\.py:1: load_environment\(\) does not take .*'digts' \(did you mean `digits`\?\)",
        ),
        (
            "def load_environment():\n    return 1 / 0",
            {},
            r"environment\.py:2: load_environment\(\) failed: ZeroDiv",
        ),
        ("import sys\nsys.exit(3)", {}, r"environment\.py:2: the file failed to load: SystemExit: 3"),
        ("import os\nos._exit(3)", {}, "exited with status 3 while loading"),
        ("async def load_environment(): pass", {}, r"environment\.py:1: load_environment\(\) is async"),
        ("def load_environment(): return {'rows': [], 'reward': print}", {}, "`rows` is empty"),
    ],
)
def test_what_is_wrong_with_the_code_is_said_before_training(
    tmp_path: Path, code: str, params: dict[str, object], said: str
) -> None:
    with pytest.raises(EnvironmentProblem, match=said):
        EnvironmentProcess(written(tmp_path, code), params)


@pytest.mark.parametrize("code", ["def load_environment():\n    open('{}')", "open('{}')"])
def test_a_file_beside_the_environment_that_is_opened_from_elsewhere_is_named(
    tmp_path: Path, code: str
) -> None:
    """HOUR6-06: the error named a file that lay beside the environment, and not where to look for it."""
    (tmp_path / "rows-of-ours.jsonl").touch()

    with pytest.raises(EnvironmentProblem) as caught:
        EnvironmentProcess(written(tmp_path, code.format("rows-of-ours.jsonl")))
    assert "Path(__file__).parent / 'rows-of-ours.jsonl'" in caught.value.hint
    with pytest.raises(EnvironmentProblem) as caught:
        EnvironmentProcess(written(tmp_path, code.format("nowhere.jsonl")))
    assert "Path(__file__)" not in caught.value.hint


def test_loading_that_never_ends_is_ended(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"did not return within 0\.5 s"):
        EnvironmentProcess(written(tmp_path, "import time\ntime.sleep(1000)"), load_s=0.5)


def test_an_environment_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(EnvironmentProblem, match=r"has no environment\.py"):
        EnvironmentProcess("empty", base=tmp_path)
    with pytest.raises(
        EnvironmentProblem, match=r"there is no environment 'arithmetics' .*did you mean `arithmetic`"
    ):
        EnvironmentProcess("arithmetics", base=tmp_path)


def test_rows_that_differ_from_process_to_process_are_found_out(tmp_path: Path) -> None:
    code = """
        import os

        def load_environment():
            return {"rows": [{"prompt": str(os.getpid())}], "reward": lambda completion: 1}
    """
    with EnvironmentProcess(written(tmp_path, code)) as environment:
        until = time.monotonic() + 30
        with pytest.raises(EnvironmentProblem, match="gives other rows each time"):
            _score_until(environment, until)


def _score_until(environment: EnvironmentProcess, until: float) -> None:
    while time.monotonic() < until:
        score(environment, "x")


def test_what_lies_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "grading.py").write_text("def reward(completion):\n    return 0.5\n")
    code = (
        "import grading\ndef load_environment(): return {'rows': [{'prompt': 'a'}], 'reward': grading.reward}"
    )
    with EnvironmentProcess(written(tmp_path, code), workers=1) as environment:
        [result] = score(environment, "x")

    assert result.value == {"reward": 0.5, "metrics": {}}


# -- several at once ----------------------------------------------------------------------------------

WAITING = """
    import asyncio, os, time

    at_once = 0

    def load_environment():
        return {"rows": [{"prompt": "a"}], "reward": reward, "deadline_s": 1.0}

    async def reward(completion):
        global at_once
        at_once += 1
        most = at_once
        if completion == "crash":
            os._exit(3)
        if completion == "block":
            time.sleep(1000)
        await asyncio.sleep(1000 if completion == "forever" else 0.2)
        at_once -= 1
        return float(most)
"""


def test_calls_that_await_are_worked_on_together(tmp_path: Path) -> None:
    with EnvironmentProcess(written(tmp_path, WAITING), workers=1) as environment:
        score(environment, "warm")
        found = score(environment, *["x"] * 40, "forever")

    assert [one.kind for one in found] == [None] * 40 + ["deadline"]
    assert max(one.value["reward"] for one in found if one.value) > 20


def test_of_calls_worked_on_together_only_the_one_that_crashes_pays(tmp_path: Path) -> None:
    with EnvironmentProcess(written(tmp_path, WAITING), workers=2) as environment:
        found = score(environment, *["x"] * 6, "crash", *["x"] * 6)

    assert [one.kind for one in found] == [None] * 6 + ["crashed"] + [None] * 6


TURNS = """
    import os, random, time

    def load_environment(chance=False, repeatable=True):
        one = lambda state, completion: step(state, completion, chance)
        rest = {"start": start, "step": one, "reward": reward, "repeatable": repeatable}
        return {"rows": [{"prompt": "a"}], **rest}

    def reward(state):
        return len(state["seen"])

    def start(seed):
        return {"seen": [], "seed": seed}

    def step(state, completion, chance):
        if completion == "crash":
            os._exit(3)
        state["seen"].append(completion)
        return f"{completion} {random.random() if chance else state['seed']}"
"""


def opened(environment: EnvironmentProcess, name: str) -> list[Message]:
    [result] = results(environment, [EnvironmentCall("start", name, "train", 0, seed=7)])
    assert result.value is not None
    return list(result.value["messages"])


def stepped(environment: EnvironmentProcess, name: str, messages: list[Message], text: str) -> CallResult:
    messages.append({"role": "assistant", "content": text})
    [result] = results(
        environment, [EnvironmentCall("step", name, "train", 0, seed=7, messages=messages, opening=1)]
    )
    if result.value is not None:
        messages += result.value["messages"]
    return result


@pytest.mark.parametrize("chance", [False, True])
def test_an_attempt_whose_process_another_has_crashed_is_gone_through_again(
    tmp_path: Path, chance: bool
) -> None:
    with EnvironmentProcess(written(tmp_path, TURNS), {"chance": chance}, workers=1) as environment:
        good, bad = opened(environment, "good"), opened(environment, "bad")
        stepped(environment, "good", good, "one")
        assert stepped(environment, "bad", bad, "crash").kind == "crashed"

        again = stepped(environment, "good", good, "two")
        call = EnvironmentCall("score", "good", "train", 0, seed=7, messages=good, opening=1)
        [scored] = results(environment, [call])

    if chance:
        # What it would say now is not what the model has seen.
        assert (again.kind, scored.kind) == ("unrepeatable", "unrepeatable")
    else:
        assert again.value == {"messages": [{"role": "user", "content": "two 7"}], "done": False}
        assert scored.value == {"reward": 2.0, "metrics": {}}


def test_an_attempt_that_must_not_be_repeated_is_not(tmp_path: Path) -> None:
    with EnvironmentProcess(written(tmp_path, TURNS), {"repeatable": False}, workers=1) as environment:
        good, bad = opened(environment, "good"), opened(environment, "bad")
        stepped(environment, "good", good, "one")
        stepped(environment, "bad", bad, "crash")

        assert stepped(environment, "good", good, "two").kind == "unrepeatable"
