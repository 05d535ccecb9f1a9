"""Lets the model attempt tasks: sampler and environment work side by side, each attempt at its own pace.

No attempt waits for another: while one is in a slow environment, the others take their next turns. What is
drawn depends only on the run's seed, the step, the task and the attempt's number, so a resumed run samples
the same as one that was never stopped.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from corral.engine.data.chat import RefusedRow
from corral.engine.data.sequences import Completion, SamplingParams, SamplingRequest
from corral.engine.environments.protocol import (
    CallResult,
    EnvironmentCall,
    EnvironmentDescription,
    Message,
    Score,
    Split,
    plain,
)
from corral.engine.environments.transcript import PromptWriter, SampledSequence, Transcript
from corral.recipes.train_tables import Train

# How long to wait for the environment at a time, when there is nothing to sample.
_WAIT_S = 0.05
_keys = itertools.count(1)


class RolloutSampler(Protocol):
    """What rollouts need of a sampler."""

    @property
    def pending(self) -> int: ...
    def submit(self, request: SamplingRequest) -> None: ...
    def step(self) -> list[Completion]: ...
    def abort(self, key: int) -> None: ...


class RolloutEnvironment(Protocol):
    """What rollouts need of an environment; `EnvironmentProcess` is one."""

    @property
    def description(self) -> EnvironmentDescription: ...
    @property
    def pending(self) -> int: ...
    def submit(self, call: EnvironmentCall) -> int: ...
    def poll(self, timeout_s: float = 0.0) -> list[CallResult]: ...


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at a task. `reward` is None where it could not be scored; `error` then says why, and `kind`
    is one of raised, bad_reward, deadline, crashed, unrepeatable, too_long, template. Attempts with equal
    `group` are at one task. `breaks` counts where its history could not be continued token by token."""

    split: Split
    task: int
    group: int
    index: int
    samples: list[SampledSequence]
    messages: list[Message]
    opening: int
    reward: float | None
    metrics: dict[str, float]
    error: str | None = None
    kind: str | None = None
    turns: int = 0
    truncated: bool = False
    breaks: int = 0

    def row(self) -> dict[str, Any]:
        """All of it as JSON can hold it. Nothing is copied."""
        return {**plain(self), "samples": [plain(sample) for sample in self.samples]}


@dataclass(eq=False, slots=True)
class _Attempt:
    """An episode while it goes on."""

    name: str
    split: Split
    task: int
    group: int
    index: int
    seeds: tuple[object, ...]
    transcript: Transcript
    max_turns: int = 1
    turns: int = 0
    score: Score | None = None
    error: str | None = None
    kind: str | None = None
    over: bool = False

    def call(self, op: Any, **more: Any) -> EnvironmentCall:
        return EnvironmentCall(op, self.name, self.split, self.task, seed_of(*self.seeds, self.task), **more)

    def conversation(self, op: Any) -> EnvironmentCall:
        return self.call(op, messages=self.transcript.messages, opening=self.transcript.opening)

    def episode(self) -> Episode:
        t = self.transcript
        return Episode(
            split=self.split,
            task=self.task,
            group=self.group,
            index=self.index,
            samples=t.samples(),
            messages=t.messages,
            opening=t.opening,
            reward=None if self.score is None else self.score.reward,
            metrics={} if self.score is None else dict(self.score.metrics),
            error=self.error,
            kind=self.kind,
            turns=self.turns,
            truncated=t.truncated,
            breaks=t.breaks,
        )


class Rollouts:
    """Makes episodes with one sampler and one environment, as a run's settings say.

    Its seed is the run's. The sampler must take sequences of `train.max_length` tokens.
    """

    def __init__(
        self,
        sampler: RolloutSampler,
        environment: RolloutEnvironment,
        tokenizer: PreTrainedTokenizerBase,
        train: Train,
        *,
        seed: int,
    ) -> None:
        self._sampler, self._environment, self._train = sampler, environment, train
        self._seed = seed
        self._about = environment.description
        self._writer = PromptWriter.of_run(tokenizer, self._about, train)
        self._names = itertools.count()

    def params(self) -> SamplingParams:
        """How answers are sampled in training; the seed is set for each."""
        grpo = self._train.grpo
        return SamplingParams(
            max_tokens=grpo.max_completion,
            temperature=grpo.temperature,
            top_p=grpo.top_p,
            top_k=grpo.top_k,
            stop=tuple(grpo.stop),
            stop_tokens=self._writer.stops,
        )

    def run(
        self,
        tasks: Sequence[int],
        *,
        step: int,
        group_size: int | None = None,
        split: Split = "train",
        params: SamplingParams | None = None,
    ) -> list[Episode]:
        """`group_size` attempts at each task (the settings' if not given), in the order of the tasks."""
        size = group_size or self._train.grpo.group_size
        wanted = params or self.params()
        batch = _RolloutBatch(self, replace(wanted, stop_tokens=wanted.stop_tokens or self._writer.stops))
        seen: Counter[int] = Counter()
        for group, task in enumerate(tasks):
            # A task that comes twice in a batch is not to give the same samples twice.
            seeds = (self._seed, split, step, seen[task])
            seen[task] += 1
            batch.begin([self._attempt(split, task, group, i, seeds) for i in range(size)])
        return batch.finish()

    def _attempt(
        self, split: Split, task: int, group: int, index: int, seeds: tuple[object, ...]
    ) -> _Attempt:
        name = str(next(self._names))
        return _Attempt(name, split, task, group, index, seeds, Transcript(self._writer))


@dataclass
class _RolloutBatch:
    """The attempts of one call of `run`."""

    owner: Rollouts
    params: SamplingParams
    groups: list[list[_Attempt]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sampler, self._environment = self.owner._sampler, self.owner._environment
        self._train, self._about = self.owner._train, self.owner._about
        self._asked: dict[int, tuple[list[_Attempt], Callable[[list[_Attempt], CallResult], None]]] = {}
        self._sampling: dict[int, _Attempt] = {}
        self._left = 0

    # -- the loop -------------------------------------------------------------------------------------

    def begin(self, group: list[_Attempt]) -> None:
        self.groups.append(group)
        self._left += len(group)
        # One turn has no state: all attempts can begin with the same question.
        for several in [[one] for one in group] if self._about.multi_turn else [group]:
            self._ask(several[0].call("start"), several, self._started)

    def finish(self) -> list[Episode]:
        try:
            while self._left:
                if not self._sampler.pending and not self._asked:
                    raise RuntimeError(f"{self._left} attempts wait for nothing")
                for result in self._environment.poll(0.0 if self._sampler.pending else _WAIT_S):
                    if result.key in self._asked:
                        several, then = self._asked.pop(result.key)
                        then(several, result)
                if self._sampler.pending:
                    for completion in self._sampler.step():
                        self._answered(self._sampling.pop(completion.key), completion)
        finally:
            for key in self._sampling:
                self._sampler.abort(key)
        return [attempt.episode() for group in self.groups for attempt in group]

    def _ask(
        self,
        call: EnvironmentCall,
        several: list[_Attempt],
        then: Callable[[list[_Attempt], CallResult], None],
    ) -> None:
        self._asked[self._environment.submit(call)] = (several, then)

    # -- an attempt -----------------------------------------------------------------------------------

    def _started(self, several: list[_Attempt], result: CallResult) -> None:
        if result.value is None:
            return self._fail(several, result.error, result.kind)
        messages: list[Message] = result.value["messages"]
        try:
            tokens = self.owner._writer.prompt(messages)
        except RefusedRow as refusal:
            return self._fail(several, str(refusal), "template")
        if len(tokens) >= self._train.max_length:
            what = f"the prompt of task {several[0].task} has {len(tokens)} tokens"
            return self._fail(several, f"{what}; max_length is {self._train.max_length}", "too_long")
        limits = [result.value.get("max_turns"), self._about.max_turns, self._train.grpo.max_turns]
        for attempt in several:
            attempt.transcript.begin(messages, tokens)
            attempt.max_turns = min(limit for limit in limits if limit) if self._about.multi_turn else 1
            self._sample(attempt)
        return None

    def _sample(self, attempt: _Attempt) -> None:
        tokens = attempt.transcript.tokens
        room = self._train.max_length - len(tokens)
        if room <= 0:
            attempt.transcript.cut()
            return self._score(attempt)
        seed = seed_of(*attempt.seeds, attempt.task, attempt.index, attempt.turns)
        params = replace(self.params, max_tokens=min(self.params.max_tokens, room), seed=seed)
        key = next(_keys)
        self._sampling[key] = attempt
        return self._sampler.submit(SamplingRequest(key, tokens, params))

    def _answered(self, attempt: _Attempt, completion: Completion) -> None:
        attempt.transcript.add(completion)
        attempt.turns += 1
        if self._about.multi_turn and completion.reason != "length":
            self._ask(attempt.conversation("step"), [attempt], self._stepped)
        else:
            self._score(attempt)

    def _stepped(self, several: list[_Attempt], result: CallResult) -> None:
        if result.value is None:
            return self._fail(several, result.error, result.kind)
        [attempt] = several
        messages: list[Message] = result.value["messages"]
        if result.value["done"] or attempt.turns >= attempt.max_turns:
            attempt.transcript.note(messages)
            return self._score(attempt)
        try:
            attempt.transcript.reply(messages)
        except RefusedRow as refusal:
            return self._fail(several, str(refusal), "template")
        return self._sample(attempt)

    def _score(self, attempt: _Attempt) -> None:
        self._ask(attempt.conversation("score"), [attempt], self._scored)

    def _scored(self, several: list[_Attempt], result: CallResult) -> None:
        if result.value is None:
            return self._fail(several, result.error, result.kind)
        several[0].score = Score(**result.value)
        return self._end(several)

    def _fail(self, several: list[_Attempt], error: str | None, kind: str | None) -> None:
        for attempt in several:
            attempt.score, attempt.error, attempt.kind = None, error or "failed", kind
        self._end(several)

    def _end(self, several: list[_Attempt]) -> None:
        for attempt in several:
            attempt.over = True
        group = self.groups[several[0].group]
        scored = [attempt for attempt in group if attempt.score is not None]
        if not self._about.group or not all(attempt.over for attempt in group) or not scored:
            self._left -= len(several)
        else:
            # The last ones stay open until the whole group has been compared.
            call = scored[0].call(
                "group",
                conversations=[attempt.transcript.messages for attempt in scored],
                opening=scored[0].transcript.opening,
            )
            self._ask(call, scored, lambda them, result: self._compared(them, result, len(several)))

    def _compared(self, scored: list[_Attempt], result: CallResult, open_: int) -> None:
        self._left -= open_
        for place, attempt in enumerate(scored):
            if result.value is None:
                attempt.score, attempt.error, attempt.kind = None, result.error, result.kind
            elif attempt.score is not None:
                more = Score(**result.value["scores"][place])
                metrics = {**attempt.score.metrics, **more.metrics}
                attempt.score = Score(attempt.score.reward + more.reward, metrics)


def seed_of(*parts: object) -> int:
    """A number below 2^63 that depends on all the parts and on nothing else."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
