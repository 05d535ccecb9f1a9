"""An attempt at a task as the environment's process sees it, and what every kind of environment can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.engine.environments import protocol
from corral.engine.environments.protocol import Message, Opening, Score, Split, StepReply
from corral.engine.environments.rows import TaskRows


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
    # What the attempt holds outside of this process is given back.
    cleaned_up: bool = False

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


class EnvironmentAdapter:
    """What the engine asks of an environment. Whatever a method raises costs the attempt that it was for."""

    description: protocol.EnvironmentDescription

    def __init__(self, train: TaskRows, held_out: TaskRows) -> None:
        self._rows: Mapping[Split, TaskRows] = {"train": train, "eval": held_out}

    def row(self, split: Split, index: int) -> Mapping[str, Any]:
        return self._rows[split][index]

    def _described(self, **more: Any) -> protocol.EnvironmentDescription:
        return protocol.EnvironmentDescription(
            train=len(self._rows["train"]), eval=len(self._rows["eval"]), **more
        )

    async def start(self, session: Session) -> Opening:
        """Make the session's state and say how the conversation begins."""
        raise NotImplementedError

    async def step(self, session: Session) -> StepReply:
        """Answer the model's last message, which is already in the session."""
        raise NotImplementedError

    async def score(self, session: Session) -> Score:
        raise NotImplementedError

    async def group(self, sessions: Sequence[Session]) -> list[Score]:
        """What the attempts at one task earn by being compared, on top of their own scores."""
        return [Score(0.0) for _ in sessions]
