"""What environments and the engine say to each other: plain values that JSON can carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from corral.engine.errors import EngineError

Message = dict[str, Any]
Split = Literal["train", "eval"]


def plain(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as they are. `dataclasses.asdict` copies all that is in them, which takes
    longer than everything else that is done with a conversation."""
    return {one.name: getattr(value, one.name) for one in fields(value)}


@dataclass(frozen=True, slots=True)
class Score:
    """What an attempt earned in all, and its named parts, those that weigh nothing included."""

    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EnvironmentDescription:
    """What an environment is, known once it was loaded. Rows are numbered from 0 in each split.

    `max_turns` is None where the environment sets no bound of its own. `asynchronous` says that its functions
    await, so that one process may work on several calls at once. `repeatable` says that an attempt may be
    gone through again in another process. `fingerprint` is of its rows.
    """

    name: str
    train: int
    eval: int
    multi_turn: bool = False
    group: bool = False
    asynchronous: bool = False
    repeatable: bool = True
    max_turns: int | None = None
    deadline_s: float | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Opening:
    """How a task begins: the messages that the model answers."""

    messages: list[Message]
    max_turns: int | None = None


@dataclass(frozen=True, slots=True)
class StepReply:
    """What an environment says after an answer of the model, and whether that was the end."""

    messages: list[Message]
    done: bool


@dataclass(frozen=True, slots=True)
class EnvironmentCall:
    """Something to ask the environment. `op` is one of start, step, score, group.

    `episode` names the attempt, for all its calls. `messages` is its whole conversation; `opening` is how
    many of them came before the model's first answer. `conversations` are those of a whole group.
    """

    op: Literal["start", "step", "score", "group"]
    episode: str
    split: Split
    task: int
    seed: int = 0
    messages: Sequence[Message] = ()
    opening: int = 0
    conversations: Sequence[Sequence[Message]] = ()


@dataclass(frozen=True, slots=True)
class CallResult:
    """The answer to the call with this key: a value, or an error and its kind. The kinds: `raised`,
    `bad_reward`, `deadline`, `crashed`, `unrepeatable`."""

    key: int
    value: Mapping[str, Any] | None
    error: str | None = None
    kind: str | None = None


class EnvironmentProblem(EngineError):
    """An environment cannot be used: what is wrong and where, and what to do about it."""


class UnstableRows(EnvironmentProblem):
    """Two processes were given different rows by the same code."""


def conversation(value: object, what: str) -> list[Message]:
    """Messages out of a text, a message or a list of messages."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, Mapping):
        return [_message(value, what)]
    if isinstance(value, Sequence):
        return [_message(one, what) for one in value]
    raise ValueError(f"{what} is {type(value).__name__}, not a text or a list of messages")


def _message(value: object, what: str) -> Message:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise ValueError(
            f'{what} has a message that is not {{"role": ..., "content": ...}}: {str(value)[:100]}'
        )
    return {**value, "content": "" if value.get("content") is None else value["content"]}


def with_system(messages: Sequence[Message], system: str | None) -> list[Message]:
    """The messages after a system message, unless they begin with one."""
    first = [{"role": "system", "content": system}] if system and messages[0]["role"] != "system" else []
    return [*first, *messages]
