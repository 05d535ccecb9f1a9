"""Freesolo Flash's environments, recognised by their methods: its SDK is not needed.

A single turn has `build_prompt_messages` and `score_response`; several turns have `start_episode`,
`step_episode`, `max_episode_turns` and `score_episode`. The plural forms of the scorers are used where only
they exist. Credit per turn (`per_turn_rewards` in a result's metadata) is not taken over: an episode has one
reward, and a warning says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from corral.engine.environments import calling, rewards
from corral.engine.environments.calling import awaited
from corral.engine.environments.protocol import (
    EnvironmentProblem,
    Opening,
    Score,
    StepReply,
    conversation,
    with_system,
)
from corral.engine.environments.rows import TaskRows
from corral.engine.environments.sessions import EnvironmentAdapter, Session

_DATA_FILES = ("datasets/train.jsonl", "datasets/train.json", "train.jsonl", "train.json")
_CONTRACT = "TRAINING_CONTRACT.md"
_PER_TURN = "per_turn_rewards"


def is_one(given: object) -> bool:
    return hasattr(given, "build_prompt_messages") or hasattr(given, "start_episode")


class FlashEnvironment(EnvironmentAdapter):
    def __init__(self, given: Any, *, name: str, folder: Path) -> None:
        self._given = given
        self._multi = hasattr(given, "step_episode")
        super().__init__(
            TaskRows(_dataset(given, folder), what="dataset", folder=folder),
            TaskRows(getattr(given, "eval_dataset", None) or [], what="eval_dataset", folder=folder),
        )
        if not len(self._rows["train"]):
            raise EnvironmentProblem("the environment's dataset is empty: there is nothing to train on")
        contract = folder / _CONTRACT
        self._contract = contract.read_text(encoding="utf-8") if contract.is_file() else ""
        self._scorer, self._plural = self._find_scorer()
        self._warned = False
        if _names(self._scorer, _PER_TURN):
            self._warn_of_turns()
        hooks = ("start_episode", "step_episode", "build_prompt_messages")
        self.description = self._described(
            name=name,
            multi_turn=self._multi,
            asynchronous=any(calling.awaits(getattr(given, hook, None)) for hook in hooks)
            or calling.awaits(self._scorer),
            fingerprint=self._rows["train"].fingerprint(),
        )

    def _find_scorer(self) -> tuple[Callable[..., Any], bool]:
        names = ("score_episode", "score_episodes") if self._multi else ("score_response", "score_responses")
        for plural, name in enumerate(names):
            if callable(found := getattr(self._given, name, None)):
                return found, bool(plural)
        raise EnvironmentProblem(f"the environment has neither {names[0]}() nor {names[1]}()")

    async def start(self, session: Session) -> Opening:
        task = _example(session)
        first = self._given.start_episode if self._multi else self._given.build_prompt_messages
        opening = conversation(await awaited(first(task, self._contract)), first.__name__ + "()")
        session.state = SimpleNamespace(task=task, final=None)
        turns = getattr(self._given, "max_episode_turns", None) if self._multi else None
        limit = None if turns is None else int(await awaited(turns(task)))
        return Opening(with_system(opening, self._contract), limit)

    async def step(self, session: Session) -> StepReply:
        said = session.answers[-1]
        # The step parses what the model wrote; only the scorer is spared the thinking.
        raw = str(said.get("raw", said["content"]))
        result = await awaited(self._given.step_episode(session.state.task, list(session.messages), raw))
        if getattr(result, "final_response_text", None) is not None:
            session.state.final = str(result.final_response_text)
        return StepReply(
            conversation(list(getattr(result, "messages", None) or []), "step_episode()"), bool(result.done)
        )

    async def score(self, session: Session) -> Score:
        if session.state is None:
            session.state = SimpleNamespace(task=_example(session), final=None)
        text = session.completion if session.state.final is None else session.state.final
        episode: Any = text
        if self._multi:
            turns = [
                SimpleNamespace(**{"role": m["role"], "content": m["content"]}) for m in session.messages
            ]
            episode = SimpleNamespace(messages=session.messages, turns=turns, response_text=text, metadata={})
        result = await awaited(self._scorer(session.state.task, [episode] if self._plural else episode))
        if self._plural:
            result = next(iter(result))
        metadata = getattr(result, "metadata", None)
        if isinstance(metadata, Mapping) and metadata.get(_PER_TURN) is not None:
            self._warn_of_turns()
        return rewards.score(result, {}, name=f"{self._scorer.__name__}()")

    def _warn_of_turns(self) -> None:
        if not self._warned:
            scorer = f"{calling.where(self._scorer)}{self._scorer.__name__}()"
            calling.warn(
                f"{scorer} gives `{_PER_TURN}`, which are not used:"
                " every turn of an episode is trained with the reward of the episode"
            )
        self._warned = True


def _names(function: Callable[..., Any], text: str) -> bool:
    """Whether the text stands in the function's own code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and (text in code.co_names or text in repr(code.co_consts))


def _dataset(given: Any, folder: Path) -> object:
    """The environment's own rows, or the first of the files that Flash looks for."""
    for name in ("dataset", "records"):
        if (found := getattr(given, name, None)) is not None:
            return found
    for name in _DATA_FILES:
        if (folder / name).is_file():
            return name
    raise EnvironmentProblem(
        "the environment has no dataset", hint=f"Set `self.dataset`, or add one of: {', '.join(_DATA_FILES)}."
    )


def _example(session: Session) -> SimpleNamespace:
    """A TaskExample in all but its class. Ids are by position, as Flash gives them."""
    row = dict(session.row.get("record") or session.row)
    return SimpleNamespace(
        id=str(session.index),
        input=row.get("input"),
        output=row.get("output"),
        metadata=row.get("metadata") or {},
        record=row,
    )
