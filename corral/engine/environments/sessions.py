"""An attempt at a task as the environment's process sees it, and what every kind of environment can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from corral.engine.environments.protocol import (
    EnvironmentDescription,
    Message,
    Opening,
    Score,
    Split,
    StepReply,
)


@dataclass(slots=True)
class Session:
    """One attempt. `messages` is the whole conversation, `opening` how many of them came before the model's
    first answer. `state` belongs to the environment."""

    split: Split
    index: int
    seed: int
    row: Mapping[str, Any]
    messages: list[Message] = field(default_factory=list)
    opening: int = 0
    state: Any = None
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def answers(self) -> list[Message]:
        """What the model said, turn by turn."""
        return [message for message in self.messages[self.opening :] if message["role"] == "assistant"]

    @property
    def completion(self) -> str:
        """The text of the model's last answer, its thinking left out."""
        answers = self.answers
        return str(answers[-1]["content"]) if answers else ""

    def count(self, metric: str, by: float = 1.0) -> None:
        self.metrics[metric] = self.metrics.get(metric, 0.0) + by


class EnvironmentAdapter(Protocol):
    """What the engine asks of an environment. Whatever a method raises costs the attempt that it was for."""

    @property
    def description(self) -> EnvironmentDescription: ...

    def row(self, split: Split, index: int) -> Mapping[str, Any]: ...

    async def start(self, session: Session) -> Opening:
        """Make the session's state and say how the conversation begins."""
        ...

    async def step(self, session: Session) -> StepReply:
        """Answer the model's last message, which is already in the session."""
        ...

    async def score(self, session: Session) -> Score: ...

    async def group(self, sessions: Sequence[Session]) -> list[Score]:
        """What the attempts at one task earn by being compared, on top of their own scores."""
        ...


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
