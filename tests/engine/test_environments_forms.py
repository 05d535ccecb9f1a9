"""What users write, in Corral's form and in others' (EN-C20, EN-C25, EN-C26)."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest

from corral.engine.environments import calling, loading, rewards, tools
from corral.engine.environments.protocol import EnvironmentProblem, Score
from corral.engine.environments.sessions import EnvironmentAdapter, Session

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2=", "answer": "3"}]


def made(given: object, folder: Path = Path()) -> EnvironmentAdapter:
    return loading.adapt(given, name="test", folder=folder)


def attempt(environment: EnvironmentAdapter, *answers: str, index: int = 0) -> Session:
    """An attempt with these answers, one for each turn, stepped as the engine would."""

    async def go() -> Session:
        session = Session("train", index, 7, environment.row("train", index))
        opening = await environment.start(session)
        session.messages, session.opening = list(opening.messages), len(opening.messages)
        for answer in answers:
            session.messages.append({"role": "assistant", "content": answer})
            if environment.description.multi_turn:
                session.messages += (reply := await environment.step(session)).messages
                if reply.done:
                    break
        return session

    return asyncio.run(go())


def scored(environment: EnvironmentAdapter, *answers: str, index: int = 0) -> Score:
    return asyncio.run(environment.score(attempt(environment, *answers, index=index)))


# -- rewards ------------------------------------------------------------------------------------------


def test_a_reward_is_a_number_or_a_bool() -> None:
    assert (
        scored(made({"rows": ROWS, "reward": lambda completion, answer: completion == answer}), "2").reward
        == 1
    )
    assert scored(made({"rows": ROWS, "reward": lambda completion: len(completion) / 2}), "2").reward == 0.5


def test_a_reward_of_named_parts_is_summed_with_weights_and_a_weight_of_0_is_only_shown() -> None:
    """EN-C26."""
    environment = made(
        {
            "rows": ROWS,
            "reward": lambda completion, answer: {"right": completion == answer, "short": 1, "length": 9},
            "weights": {"right": 2, "length": 0},
        }
    )

    score = scored(environment, "2")

    assert score.reward == 3.0
    assert score.metrics == {"right": 1.0, "short": 1.0, "length": 9.0}


def test_parts_beside_a_total_are_only_shown() -> None:
    assert rewards.score({"reward": 0.5, "length": 9}, {}) == Score(0.5, {"length": 9.0})


def test_several_reward_functions_are_parts_by_their_names() -> None:
    def right(completion: str, answer: str) -> bool:
        return completion == answer

    async def short(completion: str) -> float:
        return 0.25

    environment = made({"rows": ROWS, "reward": [right, short], "weights": {"short": 2.0}})

    assert scored(environment, "2") == Score(1.5, {"right": 1.0, "short": 0.25})
    assert environment.description.asynchronous


def test_a_part_that_is_none_does_not_apply() -> None:
    assert rewards.score({"a": None, "b": 1}, {}) == Score(1.0, {"b": 1.0})


def test_an_object_with_a_score_is_a_reward() -> None:
    metrics = [SimpleNamespace(name="style", score=0.5), SimpleNamespace(name="none", score=None)]

    assert rewards.score(SimpleNamespace(score=1, metrics=metrics), {}) == Score(1.0, {"style": 0.5})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, "reward is nan"),
        (math.inf, "reward is inf"),
        ("1.0", "is the string '1.0', not a number"),
        (None, "is None: it does not apply"),
        ([1.0], "is list [1.0], not a number"),
        ({"a": math.nan}, "reward['a'] is nan"),
        ({"a": None}, "no part that applies"),
        (SimpleNamespace(score=1, error="no judge"), "failed: no judge"),
    ],
)
def test_what_is_no_reward_is_named(value: object, said: str) -> None:
    with pytest.raises(rewards.BadReward) as caught:
        rewards.score(value, {})

    assert said in str(caught.value)


def test_functions_are_given_what_they_name() -> None:
    """EN-C26."""
    seen: dict[str, Any] = {}

    def reward(completion: str, level: int, info: dict[str, Any], task: dict[str, Any], **rest: Any) -> float:
        seen.update(completion=completion, level=level, info=info, task=task, rest=set(rest))
        return 1.0

    scored(made({"rows": [{"prompt": "hi", "level": 3}], "reward": reward}), "ho")

    assert (seen["completion"], seen["level"], seen["info"]) == ("ho", 3, {})
    assert {"messages", "answer", "prompt", "state", "turns"} <= seen["rest"]


def test_a_reward_that_asks_for_what_there_is_not_is_found_before_training() -> None:
    def reward(completion: str, anwser: str) -> float:
        return 0.0

    said = r"test_environments_forms.py:\d+: reward\(\) asks for an argument `anwser`, which there is not"
    with pytest.raises(EnvironmentProblem, match=said + r" \(did you mean `answer`\?\)"):
        made({"rows": ROWS, "reward": reward})


def test_a_group_is_rewarded_by_comparison() -> None:
    """EN-C26."""

    def group_reward(completions: list[str], answer: str) -> list[float]:
        return [float(len(text) == min(map(len, completions))) for text in completions]

    environment = made({"rows": ROWS, "reward": lambda completion: 0.0, "group_reward": group_reward})
    sessions = [attempt(environment, text) for text in ("abc", "a")]

    assert environment.description.group
    assert [one.reward for one in asyncio.run(environment.group(sessions))] == [0.0, 1.0]


def test_a_group_reward_of_the_wrong_length_is_named() -> None:
    environment = made({"rows": ROWS, "group_reward": lambda completions: [1.0]})

    with pytest.raises(rewards.BadReward, match="gave 1 numbers for 2 completions"):
        asyncio.run(environment.group([attempt(environment, "a"), attempt(environment, "b")]))


# -- rows ---------------------------------------------------------------------------------------------


@dataclass
class Task:
    prompt: str
    answer: str


def generated() -> Iterator[dict[str, str]]:
    yield from ROWS


@pytest.mark.parametrize("rows", [ROWS, tuple(ROWS), generated, [Task("1+1=", "2"), Task("1+2=", "3")]])
def test_rows_come_in_many_forms(rows: object) -> None:
    environment = made({"rows": rows, "reward": lambda completion, answer: completion == answer})

    assert environment.description.train == 2
    assert scored(environment, "3", index=1).reward == 1.0


def test_rows_can_be_a_file_beside_the_environment(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n\n{"prompt": "b"}\n')

    assert made({"rows": "rows.jsonl", "reward": lambda completion: 1}, tmp_path).description.train == 2


def test_a_broken_line_of_rows_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt"\n')

    with pytest.raises(EnvironmentProblem, match=r"rows.jsonl:2: not JSON"):
        made({"rows": "rows.jsonl", "reward": lambda completion: 1}, tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reward": lambda completion: 1}, "has no `rows`"),
        ({"rows": ROWS}, "has no `reward`"),
        ({"rows": [], "reward": lambda completion: 1}, "`rows` is empty"),
        (
            {"rows": [{"answer": "1"}], "reward": lambda completion: 1},
            r"rows\[0\]: has no prompt, only answer",
        ),
        (
            {"rows": [{"prompt": "a"}, {"prompt": 3}], "reward": lambda completion: 1},
            r"rows\[1\]: `prompt` is int",
        ),
        ({"rows": ROWS, "reward": 3}, "the reward `reward` is int, not a function"),
        ({"rows": ROWS, "rewrad": print}, r"`rewrad`, which means nothing \(did you mean `reward`\?\)"),
        ({"rows": ROWS, "reward": lambda completion: 1, "max_turns": 0}, "`max_turns` is 0"),
        (None, "returned None"),
        (5, "has no `rows`"),
    ],
)
def test_an_environment_that_cannot_be_used_says_why(given: object, said: str) -> None:
    with pytest.raises(EnvironmentProblem, match=said):
        made(given)


def test_a_system_message_comes_first() -> None:
    environment = made({"rows": ROWS, "reward": lambda completion: 1, "system": "Be brief."})

    assert [m["role"] for m in attempt(environment).messages] == ["system", "user"]


# -- turns and tools ----------------------------------------------------------------------------------


class Guess:
    """Guess a number; told higher or lower."""

    rows = ({"prompt": "Guess.", "answer": 5},)
    max_turns = 4

    def start(self, task: Mapping[str, Any], seed: int) -> dict[str, Any]:
        return {"number": task["answer"], "guesses": 0, "messages": [{"role": "user", "content": "Guess!"}]}

    def step(self, state: dict[str, Any], completion: str) -> str | None:
        state["guesses"] += 1
        if completion == str(state["number"]):
            return None
        return "higher" if int(completion) < state["number"] else "lower"

    def score(self, state: dict[str, Any], completion: str) -> float:
        return float(completion == str(state["number"])) / int(state["guesses"])


def test_turns_follow_each_other_until_the_environment_ends_them() -> None:
    environment = made(Guess())
    session = attempt(environment, "3", "7", "5", "4")

    assert [m["content"] for m in session.messages] == ["Guess!", "3", "higher", "7", "lower", "5"]
    assert asyncio.run(environment.score(session)).reward == pytest.approx(1 / 3)
    assert (environment.description.multi_turn, environment.description.max_turns) == (True, 4)


@pytest.mark.parametrize(
    ("returned", "texts", "done"),
    [
        (None, [], True),
        (True, [], True),
        ("go on", ["go on"], False),
        ({"role": "user", "content": "x"}, ["x"], False),
        ((["a"][0], True), ["a"], True),
        ({"messages": "bye", "done": True}, ["bye"], True),
        (SimpleNamespace(messages=[{"role": "user", "content": "y"}], done=False), ["y"], False),
    ],
)
def test_a_step_can_say_it_in_several_ways(returned: object, texts: list[str], done: bool) -> None:
    environment = made({"rows": ROWS, "reward": lambda completion: 1, "step": lambda completion: returned})
    session = attempt(environment, "hello")

    assert [m["content"] for m in session.messages[2:]] == texts
    assert asyncio.run(environment.step(session)).done is done


class Unit(Enum):
    CELSIUS = "c"


def weather(city: str, days: int = 1, unit: Literal["c", "f"] = "c", state: object = None) -> dict[str, Any]:
    """The weather in a city.

    Args:
        city: Its name.
        days (int): How many days ahead.
    """
    return {"city": city, "days": days}


def test_a_tools_schema_comes_from_its_hints_and_docstring() -> None:
    assert tools.schema(weather)["function"] == {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name."},
                "days": {"type": "integer", "description": "How many days ahead."},
                "unit": {"enum": ["c", "f"]},
            },
            "required": ["city"],
        },
    }


def test_types_of_many_kinds_have_a_schema() -> None:
    def many(
        a: list[int], b: int | None, c: dict[str, int], d: Unit, e: str | float, f: bool, g: Any
    ) -> None: ...

    properties = tools.schema(many)["function"]["parameters"]["properties"]

    assert properties == {
        "a": {"type": "array", "items": {"type": "integer"}},
        "b": {"type": "integer"},
        "c": {"type": "object"},
        "d": {"enum": ["c"]},
        "e": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        "f": {"type": "boolean"},
        "g": {},
    }


def test_a_tool_that_a_model_cannot_call_is_refused() -> None:
    def positional(x: int, /) -> int:
        return x

    with pytest.raises(EnvironmentProblem, match=r"tool positional\(\) takes `x` by position only"):
        tools.schema(positional)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('<tool_call>\n{"name": "a", "arguments": {"x": {"y": 1}}}\n</tool_call>', ["a"]),
        ('Two: <tool_call>{"name": "a"}</tool_call> and <tool_call>{"name": "b"}</tool_call>', ["a", "b"]),
        ('{"name": "a", "parameters": {"x": 1}}', ["a"]),
        ('<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', ["a"]),
        ('<tool_call>{"name": "a", "arguments": {}}', ["a"]),
        ("No call.", []),
        ('{"name": "a", broken', []),
    ],
)
def test_calls_are_found_in_the_text(text: str, names: list[str]) -> None:
    assert [call.name for call in tools.calls(text)] == names


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def remember(what: str, state: dict[str, Any]) -> str:
    """Keep something."""
    state.setdefault("kept", []).append(what)
    return "kept"


def test_a_tool_is_called_and_its_result_told_to_the_model() -> None:
    """MT-D38."""
    environment = made({"rows": ROWS, "reward": lambda completion: 1, "tools": [add, remember]})
    session = attempt(environment, call("add", a=2, b=3), call("remember", what="it"), "It is 5.")

    assert [m["content"] for m in session.messages if m["role"] == "tool"] == ["5", "kept"]
    assert session.state["kept"] == ["it"]
    assert asyncio.run(environment.score(session)).metrics == {"tool_calls": 2.0, "tool_errors": 0.0}
    assert [one["function"]["name"] for one in environment.description.tools] == ["add", "remember"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (call("sub", a=1), "there is no tool 'sub'; there are: add"),
        (call("add", a=1), "missing a required argument: 'b'"),
        (call("add", a=1, b=2, c=3), "unexpected keyword argument 'c'"),
        (call("add", a=1, b="x"), "TypeError"),
        ("<tool_call>{broken</tool_call>", "the call is not JSON"),
        ("<tool_call>[1]</tool_call>", "a call is"),
    ],
)
def test_what_goes_wrong_in_a_call_is_told_to_the_model(text: str, said: str) -> None:
    def shout(a: int, b: int) -> int:
        return a + b

    environment = made({"rows": ROWS, "reward": lambda completion: 1, "tools": [add]})
    session = attempt(environment, text)

    answer = session.messages[-1]["content"]
    assert answer.startswith("Error: ")
    assert said in answer or "unsupported operand" in answer
    assert session.metrics == {"tool_calls": 1.0, "tool_errors": 1.0}


def test_an_attempt_without_a_call_counts_none() -> None:
    environment = made({"rows": ROWS, "reward": lambda completion: 1, "tools": [add]})

    assert scored(environment, "5").metrics == {"tool_calls": 0.0, "tool_errors": 0.0}


def test_an_answer_without_a_call_goes_to_the_step() -> None:
    environment = made(
        {
            "rows": ROWS,
            "reward": lambda completion: 1,
            "tools": [add],
            "step": lambda completion: "Use the tool.",
        }
    )

    session = attempt(environment, "5?", call("add", a=2, b=3))

    assert [m["content"] for m in session.messages[2:]] == ["Use the tool.", call("add", a=2, b=3), "5"]


# -- other people's forms -----------------------------------------------------------------------------


class FlashSingle:
    """As in Flash's examples, without its SDK."""

    def __init__(self) -> None:
        self.dataset = [{"input": "2+2?", "output": "4", "metadata": {"answer": "4"}}]

    def build_prompt_messages(self, example: Any, prompt_text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": str(example.input)}]

    def score_response(self, example: Any, response_text: str) -> Any:
        right = response_text == example.metadata["answer"]
        return SimpleNamespace(score=float(right), success=right, reason="", metrics=None, error=None)


class FlashMulti:
    def start_episode(self, example: Any, prompt_text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": str(example.input)}]

    def max_episode_turns(self, example: Any) -> int:
        return 3

    def step_episode(self, example: Any, messages: list[Any], assistant_response: str) -> Any:
        done = assistant_response == example.output
        messages = [] if done else [{"role": "user", "content": f"not {assistant_response}"}]
        return SimpleNamespace(done=done, messages=tuple(messages), final_response_text=None, metadata=None)

    def score_episodes(self, example: Any, episodes: list[Any]) -> list[Any]:
        return [SimpleNamespace(score=1 / sum(t.role == "assistant" for t in e.turns)) for e in episodes]


def test_flashs_single_turn_is_taken_as_it_is() -> None:
    """EN-C25, MT-C38."""
    environment = made(FlashSingle())

    assert scored(environment, "4").reward == 1.0
    assert scored(environment, "5").reward == 0.0


def test_flashs_turns_and_files_are_taken_as_they_are(tmp_path: Path) -> None:
    """MT-C39, EN-C25: rows in datasets/train.jsonl, the contract as system message."""
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets/train.jsonl").write_text('{"input": "guess", "output": "b"}\n')
    (tmp_path / "TRAINING_CONTRACT.md").write_text("Guess well.")
    environment = made(FlashMulti(), tmp_path)
    session = attempt(environment, "a", "b")

    assert [m["content"] for m in session.messages] == ["Guess well.", "guess", "a", "not a", "b"]
    assert asyncio.run(environment.score(session)).reward == 0.5


class FlashTurns(FlashMulti):
    """With credit for each turn, found by its code, or only when it is given."""

    dataset: ClassVar = [{"input": "guess", "output": "b"}]

    def score_episode(self, example: Any, episode: Any) -> Any:
        return SimpleNamespace(score=1.0, metadata={"per_turn_rewards": [0.5, 0.5]})


def test_flashs_credit_for_each_turn_is_said_to_be_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """EN-C25: by name, once for each process, as it is loaded or as the first result has it."""
    environment = made(FlashTurns(), tmp_path)
    assert "score_episode() gives `per_turn_rewards`, which are not used" in capsys.readouterr().err
    assert scored(environment, "b").reward == 1.0
    assert capsys.readouterr().err == ""

    hidden = FlashTurns()
    result = hidden.score_episode(None, None)
    hidden.score_episode = lambda example, episode: result  # type: ignore[method-assign]
    hidden.score_episode.__name__ = "score_episode"
    environment = made(hidden, tmp_path)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        assert scored(environment, "b").reward == 1.0
    assert capsys.readouterr().err.count("score_episode() gives `per_turn_rewards`, which are not used") == 1


class Rubric:
    def __init__(self, funcs: list[Callable[..., Any]], weights: list[float]) -> None:
        self.funcs, self.weights = funcs, weights
        self.class_objects = {
            "parser": SimpleNamespace(parse_answer=lambda completion: completion[-1]["content"])
        }


async def right(completion: list[dict[str, str]], answer: str, parser: Any) -> float:
    return float(parser.parse_answer(completion) == answer)


def length(completion: list[dict[str, str]], **kwargs: Any) -> float:
    return float(len(completion[-1]["content"]))


def best(completions: list[list[dict[str, str]]], answers: list[str]) -> list[float]:
    return [float(one[-1]["content"] == answer) for one, answer in zip(completions, answers, strict=True)]


def test_a_verifiers_rubric_is_scored() -> None:
    """EN-C20, MT-D39: functions by their argument names, weight 0 is a metric, plural names are a group's."""
    dataset = [{"question": "1+1?", "answer": "2"}]
    environment = made(
        SimpleNamespace(dataset=dataset, rubric=Rubric([right, length, best], [1.0, 0.0, 0.5]))
    )
    sessions = [attempt(environment, "2"), attempt(environment, "33")]

    assert asyncio.run(environment.score(sessions[0])) == Score(1.0, {"right": 1.0, "length": 1.0})
    assert asyncio.run(environment.score(sessions[1])) == Score(0.0, {"right": 0.0, "length": 2.0})
    assert [one.reward for one in asyncio.run(environment.group(sessions))] == [0.5, 0.0]


def test_a_group_of_rubrics_is_all_of_them() -> None:
    """EN-C20."""
    group = SimpleNamespace(rubrics=[Rubric([right], [1.0]), Rubric([length], [2.0])])
    environment = made(SimpleNamespace(dataset=ROWS, rubric=group))

    assert scored(environment, "2").reward == 3.0


class VerifiersTurns:
    """A MultiTurnEnv in shape: setup_state, env_response and is_completed."""

    max_turns = 5

    def __init__(self) -> None:
        self.dataset = [{"prompt": [{"role": "user", "content": "count"}], "answer": "3"}]
        self.rubric = Rubric([lambda state, answer: float(state["count"] == int(answer))], [1.0])

    async def setup_state(self, state: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        state["count"] = 0
        return state

    async def is_completed(self, messages: list[Any], state: dict[str, Any], **kwargs: Any) -> bool:
        return bool(messages[-1]["content"] == "stop")

    async def env_response(self, messages: list[Any], state: dict[str, Any], **kwargs: Any) -> Any:
        state["count"] += 1
        return [{"role": "user", "content": str(state["count"])}], state


def test_verifiers_turns_follow_each_other() -> None:
    """EN-C20."""
    environment = made(VerifiersTurns())
    session = attempt(environment, "a", "b", "c", "stop", "d")

    assert [m["content"] for m in session.messages[1:]] == ["a", "1", "b", "2", "c", "3", "stop"]
    assert asyncio.run(environment.score(session)).reward == 1.0


def marked(mark: str, priority: int = 0) -> Callable[[Any], Any]:
    """A decorator as the library's."""

    def decorate(function: Any) -> Any:
        setattr(function, mark, True)
        setattr(function, f"{mark}_priority", priority)
        return function

    return decorate


class VerifiersSandboxes(VerifiersTurns):
    """With something outside that has to be given back."""

    def __init__(self) -> None:
        super().__init__()
        self.did: list[str] = []

    @marked("cleanup")
    async def close(self, rollout: dict[str, Any]) -> None:
        self.did.append(f"close at {rollout['count']}")

    @marked("cleanup", priority=5)
    async def save(self, rollout: dict[str, Any]) -> None:
        self.did.append(f"save at {rollout['count']}")

    @marked("teardown")
    async def close_all(self) -> None:
        self.did.append("close all")


@pytest.mark.parametrize("answers", [("a", "stop"), ("a",)], ids=["completed", "cut short"])
def test_what_verifiers_marks_as_cleanup_is_called_at_the_end_of_an_attempt(
    answers: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """EN-C20: once, in the order of their priorities; what is marked @teardown is named in a warning."""
    given = VerifiersSandboxes()
    environment = made(given)
    said = capsys.readouterr().err
    session = attempt(environment, *answers)
    assert given.did == []

    asyncio.run(environment.score(session))
    asyncio.run(environment.score(session))

    assert given.did == ["save at 1", "close at 1"]
    assert "close_all() of the environment, marked @teardown, is not called" in said


def test_a_cleanup_that_the_library_has_called_is_not_called_again() -> None:
    """EN-C20: the library's own `is_completed` does it."""

    class Library(VerifiersSandboxes):
        async def is_completed(self, messages: list[Any], state: dict[str, Any], **kwargs: Any) -> bool:
            if done := bool(messages[-1]["content"] == "stop"):
                await self._cleanup(state)
            return done

        async def _cleanup(self, state: dict[str, Any]) -> None:
            await self.close(state)

    given = Library()
    environment = made(given)

    asyncio.run(environment.score(attempt(environment, "a", "stop")))

    assert given.did == ["close at 1"]


class VerifiersTools:
    """A ToolEnv in shape: it calls its tools itself, by the message's tool_calls."""

    def __init__(self) -> None:
        self.dataset = [{"question": "2+3?", "answer": "5"}]
        self.tools = [add]
        self.rubric = Rubric([lambda completion, answer: float(answer in completion[-1]["content"])], [1.0])

    async def is_completed(self, messages: list[Any], state: dict[str, Any]) -> bool:
        return not messages[-1].get("tool_calls")

    async def env_response(self, messages: list[Any], state: dict[str, Any]) -> list[dict[str, str]]:
        return [
            {
                "role": "tool",
                "content": str(add(**json.loads(one["function"]["arguments"]))),
                "tool_call_id": one["id"],
            }
            for one in messages[-1]["tool_calls"]
        ]


def test_a_verifiers_tool_environment_calls_its_tools() -> None:
    """EN-C20."""
    environment = made(VerifiersTools())
    session = attempt(environment, call("add", a=2, b=3), "5")

    assert [m["content"] for m in session.messages[1:]] == [call("add", a=2, b=3), "5", "5"]
    assert scored(environment, call("add", a=2, b=3), "5") == Score(1.0, {"tool_calls": 1.0, "<lambda>": 1.0})


def test_trls_reward_functions_are_taken_as_they_are() -> None:
    def exact(completions: list[str], answer: list[str], **kwargs: Any) -> list[float | None]:
        return [float(text == wanted) for text, wanted in zip(completions, answer, strict=True)]

    def rarely(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float | None]:
        return [None for _ in completions]

    functions: list[Callable[..., Any]] = [exact, rarely]
    environment = made({"dataset": ROWS, "reward_funcs": functions, "reward_weights": [2.0, 1.0]})
    sessions = [attempt(environment, "2"), attempt(environment, "3")]

    assert [one.reward for one in asyncio.run(environment.group(sessions))] == [2.0, 0.0]


# -- names --------------------------------------------------------------------------------------------


def test_an_error_names_the_line_of_the_users_code() -> None:
    def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        broken()

    assert calling.described(caught.value).startswith("KeyError: 'x' (test_environments_forms.py:")
