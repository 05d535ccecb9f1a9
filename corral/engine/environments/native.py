"""Corral's own form of environment.

`load_environment(**params)` returns an object or a dict with some of these; only `rows` and `reward` are
needed. Each function names the arguments that it wants, and may be `async`.

rows
    A list of dicts, something that can be indexed, a function that gives one, or the name of a JSONL file
    beside the environment. Each has `prompt` (a text or chat messages); `answer`, `info` and any other column
    are there for your functions.
eval_rows
    The same, held out for evaluation.
reward(completion, answer, ...)
    A number or bool; or a dict of named parts, summed with `weights`; or a dict with `reward` as the total,
    the rest for show; or an object with `score` and `metrics`. Also a dict or list of such functions. They
    can ask for: `completion` (the text of the last answer, without its thinking), `thinking`, `prompt`,
    `answer`, `info`, `task` (the row), `messages` (the whole conversation), `state`, `turns`, and the row's
    columns. What raises, or is not finite, is an error of that sample: it is counted and not trained on.
weights
    {name: weight}; 1 for what is not named, 0 for a metric that is only shown.
group_reward(completions, ...)
    Numbers, one for each attempt at one task, added to their rewards. Any reward function that asks for
    `completions` is one. They can ask for the above in the plural, and for the row's columns.
tools
    A list of functions with type hints and docstrings. The model calls them by writing
    <tool_call>{"name": ..., "arguments": {...}}</tool_call>; an answer without a call ends the attempt, or
    goes to `step`. A tool that names `state`, `info` or `task` is given it. What a tool raises is told to the
    model.
start(task, seed)
    Begins an attempt of several turns: its state, whatever that is. Where the state has `messages`, the
    model sees these first; a text or a list of messages is taken for them.
step(state, completion, ...)
    What comes after an answer: a text or messages to go on, None to end; or (messages, done). Beside the
    names above it can ask for `message` and `turn`, which counts from 1.
score(state)
    Another name for `reward`.
max_turns, deadline_s, system
    The most answers in an attempt; the seconds that any one call may take; a system message for each task.
repeatable
    False if `start`, `step` and tools must not run again for the same attempt. Otherwise an attempt whose
    process was lost, or is busy for long, is gone through again in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.engine.environments import calling, rewards, tools
from corral.engine.environments.protocol import (
    EnvironmentDescription,
    EnvironmentProblem,
    Message,
    Opening,
    Score,
    StepReply,
    conversation,
    with_system,
)
from corral.engine.environments.rows import PROMPTS, TaskRows, prompt_of
from corral.engine.environments.sessions import EnvironmentAdapter, Session

_KNOWN = (
    *("rows", "eval_rows", "reward", "rewards", "score", "weights", "group_reward", "tools", "start", "step"),
    *("max_turns", "deadline_s", "system", "repeatable", "name"),
)
_PLURALS = frozenset({"completions", "prompts", "answers", "infos", "states", "conversations"})
_OF_ATTEMPT = (
    *("completion", "thinking", "prompt", "answer", "info", "task", "messages", "state", "turns", "turn"),
    *("message", "seed"),
)
_OF_GROUP = (*_PLURALS, "task", "prompt", "answer", "info")


class NativeEnvironment(EnvironmentAdapter):
    """What `load_environment` returned, made into what the engine asks for."""

    def __init__(self, given: object, *, name: str, folder: Path) -> None:
        self._given = given
        if isinstance(given, Mapping) and (unknown := [key for key in given if key not in _KNOWN]):
            raise EnvironmentProblem(
                f"load_environment() returned a dict with `{unknown[0]}`, which means nothing"
                f"{calling.nearest(str(unknown[0]), _KNOWN)}",
                hint=f"An environment can have: {', '.join(_KNOWN)}.",
            )
        train, held_out = self._read_rows("rows", folder), self._get("eval_rows")
        super().__init__(
            train, TaskRows([] if held_out is None else held_out, what="eval_rows", folder=folder)
        )
        self._system = self._get("system")
        self._weights = {
            str(k): rewards.number(v, f"weights[{k!r}]") for k, v in (self._get("weights") or {}).items()
        }
        self._single, self._grouped = self._reward_functions()
        self._tools = {calling.name_of(one): one for one in self._get("tools") or ()}
        self._schemas = [tools.schema(one) for one in self._tools.values()]
        self._start, self._step = self._function("start"), self._function("step")
        self._check()
        self.description = self._describe(name)

    # -- what the user gave ---------------------------------------------------------------------------

    def _get(self, name: str) -> Any:
        return calling.attribute(self._given, name)

    def _function(self, name: str) -> Callable[..., Any] | None:
        found = self._get(name)
        if found is not None and not callable(found):
            raise EnvironmentProblem(f"`{name}` is {type(found).__name__}, not a function")
        return found  # type: ignore[no-any-return]

    def _read_rows(self, name: str, folder: Path) -> TaskRows:
        given = self._get(name)
        if given is None and hasattr(self._given, "__getitem__") and hasattr(self._given, "__len__"):
            given = None if isinstance(self._given, Mapping) else self._given
        if given is None:
            raise EnvironmentProblem(
                f"the environment has no `{name}`: load_environment() returned {type(self._given).__name__}",
                hint="Return a dict or an object with `rows` and `reward`.",
            )
        rows = TaskRows(given, what=name, folder=folder)
        if not len(rows):
            raise EnvironmentProblem(f"`{name}` is empty: there is nothing to train on")
        return rows

    def _reward_functions(self) -> tuple[dict[str, Callable[..., Any]], dict[str, Callable[..., Any]]]:
        """Those for one attempt and those for a group, by name."""
        found: dict[str, Callable[..., Any]] = {}
        for name in ("reward", "rewards", "score", "group_reward"):
            given = self._get(name)
            if isinstance(given, Mapping):
                found |= {str(key): value for key, value in given.items()}
            elif isinstance(given, Sequence) and not isinstance(given, str):
                found |= {getattr(value, "__name__", f"reward_{i}"): value for i, value in enumerate(given)}
            elif given is not None:
                found[name] = given
        for name, function in found.items():
            if not callable(function):
                raise EnvironmentProblem(f"the reward `{name}` is {type(function).__name__}, not a function")
        if not found:
            raise EnvironmentProblem(
                "the environment has no `reward`", hint="Add a function `reward(completion, answer)`."
            )
        grouped = {n: f for n, f in found.items() if n == "group_reward" or _PLURALS & set(calling.names(f))}
        return {n: f for n, f in found.items() if n not in grouped}, grouped

    def _check(self) -> None:
        """What can be found out before training starts."""
        for rows in self._rows.values():
            # A start of its own may make the prompt out of whatever the row holds.
            rows.check(prompt_of if self._start is None else lambda row: row)
        columns = [str(column) for column in self._rows["train"][0]]
        for what, function in self._functions():
            if function is not None:
                offered = _OF_GROUP if what in self._grouped else _OF_ATTEMPT
                calling.check(function, (*offered, *columns), what=f"{what}()")

    def _functions(self) -> list[tuple[str, Callable[..., Any] | None]]:
        return [*self._single.items(), *self._grouped.items(), ("start", self._start), ("step", self._step)]

    def _describe(self, name: str) -> EnvironmentDescription:
        limits = {}
        for limit in ("max_turns", "deadline_s"):
            value = self._get(limit)
            if value is not None and (not isinstance(value, int | float) or value <= 0):
                raise EnvironmentProblem(f"`{limit}` is {value!r}, not a number above 0")
            limits[limit] = value
        functions = [*self._tools.values(), *(function for _, function in self._functions())]
        return self._described(
            name=str(self._get("name") or name),
            multi_turn=bool(self._step or self._start or self._tools),
            group=bool(self._grouped),
            asynchronous=any(calling.awaits(function) for function in functions),
            repeatable=self._get("repeatable") is not False,
            max_turns=None if limits["max_turns"] is None else int(limits["max_turns"]),
            deadline_s=limits["deadline_s"],
            tools=self._schemas,
            fingerprint=self._rows["train"].fingerprint() + self._rows["eval"].fingerprint(),
        )

    # -- an attempt -----------------------------------------------------------------------------------

    async def start(self, session: Session) -> Opening:
        session.state = {"task": session.row}
        if self._tools:
            session.metrics = {"tool_calls": 0.0, "tool_errors": 0.0}
        messages = None
        if self._start is not None:
            session.state = await calling.call(self._start, self._offered(session))
            messages = _messages_of(session.state)
            if isinstance(session.state, str | list | None):
                session.state = {"task": session.row}
        opening = conversation(messages, "start()") if messages is not None else prompt_of(session.row)
        return Opening(with_system(opening, self._system), self.description.max_turns)

    async def step(self, session: Session) -> StepReply:
        calls = tools.calls(session.completion) if self._tools else []
        if calls:
            return StepReply([await self._tool(session, call) for call in calls], done=False)
        if self._step is None:
            return StepReply([], done=True)
        return reply(await calling.call(self._step, self._offered(session)))

    async def _tool(self, session: Session, call: tools.ToolCall) -> Message:
        given = {"state": session.state, "info": session.row.get("info") or {}, "task": session.row}
        message, well = await tools.answer(call, self._tools, given)
        session.count("tool_calls")
        session.count("tool_errors", 0.0 if well else 1.0)
        return message

    async def score(self, session: Session) -> Score:
        offered = self._offered(session)
        single = list(self._single.items())
        if len(single) == 1:
            name, function = single[0]
            value = await calling.call(function, offered)
            # Within a dict of functions, its one name is a part like any other.
            whole = name in ("reward", "score", "rewards") or isinstance(value, Mapping)
            parts = value if whole else {name: value}
            scored = rewards.score(parts, self._weights, name=f"{name}()")
        else:
            parts = {name: await calling.call(function, offered) for name, function in single}
            scored = rewards.score(parts, self._weights) if parts else Score(0.0)
        return Score(scored.reward, {**session.metrics, **scored.metrics})

    async def group(self, sessions: Sequence[Session]) -> list[Score]:
        first = self._offered(sessions[0])
        offered = {**sessions[0].row, **{name: first[name] for name in ("task", "prompt", "answer", "info")}}
        offered |= {
            "completions": [one.completion for one in sessions],
            "conversations": [one.messages for one in sessions],
            "states": [one.state for one in sessions],
            **{f"{name}s": [first[name]] * len(sessions) for name in ("prompt", "answer", "info")},
        }
        parts: list[dict[str, Any]] = [{} for _ in sessions]
        for name, function in self._grouped.items():
            values = await calling.call(function, offered)
            for part, value in zip(parts, _one_each(values, len(sessions), name), strict=True):
                part[name] = value
        return [
            rewards.score(part, self._weights) if any(v is not None for v in part.values()) else Score(0.0)
            for part in parts
        ]

    def _offered(self, session: Session) -> dict[str, Any]:
        answers = session.answers
        row = session.row
        return {
            **{str(column): value for column, value in row.items()},
            "completion": session.completion,
            "thinking": str(answers[-1].get("reasoning_content") or "") if answers else "",
            "prompt": next((row[name] for name in PROMPTS if name in row), None),
            "answer": row.get("answer"),
            "info": row.get("info") or {},
            "task": row,
            "messages": session.messages,
            "message": session.messages[-1] if session.messages else None,
            "state": session.state,
            "turn": len(answers),
            "turns": len(answers),
            "seed": session.seed,
        }


def reply(value: object) -> StepReply:
    """What a step returned: None or True ends, a text or messages go on, (messages, done) says both."""
    if value is None or isinstance(value, bool):
        return StepReply([], done=value is not False)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], bool):
        return StepReply([] if value[0] is None else conversation(value[0], "step()"), value[1])
    if isinstance(value, Mapping) and "role" not in value:
        return StepReply(conversation(value.get("messages") or [], "step()"), bool(value.get("done", False)))
    if hasattr(value, "done"):
        return StepReply(
            conversation(list(getattr(value, "messages", None) or []), "step()"), bool(value.done)
        )
    return StepReply(conversation(value, "step()"), done=False)


def _messages_of(state: object) -> object:
    return state if isinstance(state, str | list) else calling.attribute(state, "messages")


def _one_each(values: object, count: int, name: str) -> list[Any]:
    if isinstance(values, Mapping) or not hasattr(values, "__iter__"):
        raise rewards.BadReward(f"{name}() gave {type(values).__name__}, not a list of {count} numbers")
    listed = list(values)
    if len(listed) != count:
        raise rewards.BadReward(f"{name}() gave {len(listed)} numbers for {count} completions")
    return listed
