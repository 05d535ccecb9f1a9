"""Environments of verifiers before 1.0, recognised by their attributes, and TRL's reward functions.

verifiers: `dataset` (prompt or question, answer, info) and `rubric` (functions that name what they want, with
weights; plural names make them a group's). Several turns have `env_response`, with `setup_state`,
`is_completed` or @stop methods where the environment has them; tools are called by its own `env_response`.
What is marked @cleanup is called once for each attempt that is scored, not for one that failed on the way;
what is marked @teardown is not called, and a warning names it.
The library's client, its sandboxes and trajectories are not there: an environment that needs them fails by
name in the first sample.

TRL: `dataset` (or `train_dataset`) and `reward_funcs`, each called as `f(prompts=, completions=, **columns)`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.engine.environments import calling, rewards, tools
from corral.engine.environments.calling import attribute, name_of
from corral.engine.environments.protocol import (
    EnvironmentProblem,
    Message,
    Opening,
    Score,
    StepReply,
    conversation,
    with_system,
)
from corral.engine.environments.rows import TaskRows, prompt_of
from corral.engine.environments.sessions import EnvironmentAdapter, Session

_PLURALS = {"states": "state", "prompts": "prompt", "completions": "completion", "answers": "answer"}
_PLURALS |= {"tasks": "task", "infos": "info"}


def is_one(given: object) -> bool:
    return hasattr(given, "rubric") and (hasattr(given, "dataset") or hasattr(given, "get_dataset"))


def is_trl(given: object) -> bool:
    return attribute(given, "reward_funcs") is not None


class VerifiersEnvironment(EnvironmentAdapter):
    def __init__(self, given: Any, *, name: str, folder: Path) -> None:
        self._given = given
        self._functions = _rubric_functions(given.rubric)
        if not self._functions:
            raise EnvironmentProblem("the environment's rubric has no reward functions")
        dataset = getattr(given, "dataset", None)
        super().__init__(
            TaskRows(given.get_dataset() if dataset is None else dataset, what="dataset", folder=folder),
            TaskRows(getattr(given, "eval_dataset", None) or [], what="eval_dataset", folder=folder),
        )
        self._rows["train"].check(prompt_of)
        self._multi = (
            callable(getattr(given, "env_response", None)) and type(given).__name__ != "SingleTurnEnv"
        )
        if teardown := ", ".join(f"{name_of(method)}()" for method in _marked(given, "teardown")):
            calling.warn(
                f"{teardown} of the environment, marked @teardown, is not called: its processes are ended at"
                " once. What it leaves outside of them, such as a sandbox, has to end by itself"
            )
        limit = getattr(given, "max_turns", None)
        functions = [f for f, _, _ in self._functions]
        self.description = self._described(
            name=name,
            multi_turn=self._multi,
            group=any(_is_grouped(f) for f in functions),
            asynchronous=self._multi or any(calling.awaits(f) for f in functions),
            max_turns=int(limit) if isinstance(limit, int) and limit > 0 else None,
            tools=[tools.schema(one) for one in getattr(given, "tools", None) or () if callable(one)],
            fingerprint=self._rows["train"].fingerprint(),
        )

    async def start(self, session: Session) -> Opening:
        opening = with_system(prompt_of(session.row), getattr(self._given, "system_prompt", None))
        session.state = _state(session, opening)
        if self.description.tools:
            session.metrics = {"tool_calls": 0.0}
        if self._multi and callable(setup := getattr(self._given, "setup_state", None)):
            session.state = await calling.call(setup, {"state": session.state}) or session.state
        return Opening(opening, self.description.max_turns)

    async def step(self, session: Session) -> StepReply:
        self._follow(session)
        if await self._is_completed(session) or not self._multi:
            return StepReply([], done=True)
        offered = {"messages": list(session.messages), "state": session.state}
        result = await calling.call(self._given.env_response, offered)
        if isinstance(result, tuple):
            result, session.state = result
        messages = conversation(result, "env_response()") if result else []
        session.state["completion"] = [*session.messages[session.opening :], *messages]
        # The library calls it with an answer still to come; a state that says so ends the episode.
        return StepReply(messages, done=session.state.get("final_env_response") is not None)

    async def _is_completed(self, session: Session) -> bool:
        offered = {"messages": list(session.messages), "state": session.state}
        asks = [getattr(self._given, "is_completed", None), *_stop_methods(self._given)]
        for ask in asks:
            if callable(ask) and await calling.call(ask, offered):
                # The library's own `is_completed` calls what is marked @cleanup.
                session.cleaned_up = hasattr(self._given, "_cleanup") and ask == asks[0]
                return True
        return self.description.tools != [] and "tool_calls" not in session.messages[-1]

    def _follow(self, session: Session) -> None:
        """Note the model's answer in the state as the library would; calls of tools become `tool_calls`."""
        answer = session.messages[-1]
        if self.description.tools and (calls := tools.calls(str(answer["content"]))):
            answer = {**answer, "tool_calls": [_openai_call(call) for call in calls]}
            session.messages[-1] = answer
            session.count("tool_calls", len(calls))
        state = session.state
        state["turn"] = len(session.answers)
        state["responses"].append(answer)
        state["trajectory"].append({"completion": [answer]})
        state["completion"] = session.messages[session.opening :]

    async def score(self, session: Session) -> Score:
        if session.state is None:
            await self.start(session)
        session.state["completion"] = session.messages[session.opening :]
        await self._clean_up(session)
        offered = _offered(session)
        parts: dict[str, Any] = {}
        weights: dict[str, float] = {}
        for function, weight, objects in self._functions:
            if not _is_grouped(function):
                name = name_of(function)
                parts[name] = await calling.call(function, {**objects, **offered})
                weights[name] = weight
        scored = rewards.score(parts, weights) if parts else Score(0.0)
        return Score(scored.reward, {**session.metrics, **scored.metrics})

    async def _clean_up(self, session: Session) -> None:
        """Before the scores, as the library does it."""
        if not session.cleaned_up:
            session.cleaned_up = True
            for method in _marked(self._given, "cleanup"):
                await calling.awaited(method(session.state))

    async def group(self, sessions: Sequence[Session]) -> list[Score]:
        for session in sessions:
            session.state = session.state or _state(session, session.messages[: session.opening])
            session.state["completion"] = session.messages[session.opening :]
        each = [_offered(session) for session in sessions]
        offered = {plural: [one[single] for one in each] for plural, single in _PLURALS.items()}
        parts: list[dict[str, Any]] = [{} for _ in sessions]
        weights: dict[str, float] = {}
        for function, weight, objects in self._functions:
            if _is_grouped(function):
                name = name_of(function)
                weights[name] = weight
                values = await calling.call(function, {**objects, **offered})
                for part, value in zip(parts, values, strict=True):
                    part[name] = value
        return [rewards.score(part, weights) for part in parts]


def of_trl(given: object) -> dict[str, Any]:
    """TRL's functions as a native environment: each one is a group's."""
    functions = attribute(given, "reward_funcs")
    listed: list[Callable[..., Any]] = list(functions) if isinstance(functions, list | tuple) else [functions]
    dataset = attribute(given, "dataset")
    rows = attribute(given, "train_dataset") if dataset is None else dataset
    names = [getattr(function, "__name__", f"reward_{i}") for i, function in enumerate(listed)]
    weights = attribute(given, "reward_weights") or [1.0] * len(names)
    return {
        "rows": rows,
        "eval_rows": attribute(given, "eval_dataset"),
        "reward": {name: _trl_call(function) for name, function in zip(names, listed, strict=True)},
        "weights": dict(zip(names, weights, strict=True)),
    }


def _trl_call(function: Callable[..., Any]) -> Callable[..., Any]:
    async def grouped(completions: list[str], prompts: list[Any], task: Mapping[str, Any]) -> Any:
        # A conversational prompt has conversational completions.
        talk = bool(prompts) and not isinstance(prompts[0], str)
        given = [[{"role": "assistant", "content": text}] for text in completions] if talk else completions
        columns = {str(name): [value] * len(given) for name, value in task.items() if name != "prompt"}
        return await calling.call(function, {**columns, "prompts": prompts, "completions": given})

    return grouped


def _rubric_functions(rubric: Any) -> list[tuple[Callable[..., Any], float, Mapping[str, Any]]]:
    """(function, weight, the objects that it can ask for) of a rubric or of each rubric in a group."""
    if getattr(rubric, "rubrics", None):
        return [one for inner in rubric.rubrics for one in _rubric_functions(inner)]
    functions = getattr(rubric, "funcs", None) or getattr(rubric, "reward_funcs", None) or []
    weights = (
        getattr(rubric, "weights", None) or getattr(rubric, "reward_weights", None) or [1.0] * len(functions)
    )
    objects = {"parser": getattr(rubric, "parser", None), **getattr(rubric, "class_objects", {})}
    return [(function, float(weight), objects) for function, weight in zip(functions, weights, strict=True)]


def _state(session: Session, opening: list[Message]) -> dict[str, Any]:
    row = session.row
    return {
        **{"id": session.index, "prompt": opening, "completion": [], "answer": row.get("answer", "")},
        **{"task": row.get("task", "default"), "info": row.get("info") or {}, "responses": [], "turn": 0},
        **{"trajectory": [], "timing": {"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0}},
    }


def _offered(session: Session) -> dict[str, Any]:
    state = session.state
    named = {name: state.get(name) for name in ("prompt", "completion", "answer", "task", "info")}
    return {**named, "state": state}


def _openai_call(call: tools.ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": f"call_{uuid.uuid4().hex[:8]}", "type": "function", "function": function}


def _is_grouped(function: Callable[..., Any]) -> bool:
    return bool(set(_PLURALS) & set(calling.names(function)))


def _stop_methods(given: object) -> list[Callable[..., Any]]:
    """Methods marked by @stop; where the class has `is_completed`, that asks them itself."""
    return [] if hasattr(given, "is_completed") else _marked(given, "stop")


def _marked(given: object, mark: str) -> list[Callable[..., Any]]:
    """Methods with this decorator of the library's, those of a higher priority first."""
    found = (getattr(given, name, None) for name in dir(given) if not name.startswith("__"))
    marked = [method for method in found if callable(method) and getattr(method, mark, False) is True]
    return sorted(marked, key=lambda method: (-getattr(method, f"{mark}_priority", 0), name_of(method)))
