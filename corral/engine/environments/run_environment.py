"""The environment of a run: opened and tried before the model is there, its prompts measured when it is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from corral.engine.data import rows
from corral.engine.data.chat import RefusedRow
from corral.engine.data.row_order import permutation
from corral.engine.engine import Engine
from corral.engine.environments.process import EnvironmentProcess
from corral.engine.environments.protocol import (
    CallResult,
    EnvironmentCall,
    EnvironmentProblem,
    Message,
    Split,
)
from corral.engine.environments.transcript import PromptWriter
from corral.engine.inputs import locate_input
from corral.engine.sampling.deterministic import DeterministicEnvironment, DeterministicSampler
from corral.engine.sampling.rollouts import Rollouts
from corral.engine.spec import InvalidSpec, JobPaths
from corral.recipes.memory_plan import sampled_tokens
from corral.recipes.train_tables import DataFacts, Train

# Tasks whose rewards are tried out; one that fails may be odd, several that fail are a broken reward.
_TRIED = 3
# Prompts that are measured before training; of more, these are a sample.
_MEASURED = 4096
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class RunEnvironment:
    """An environment and which of its tasks are trained on and evaluated.

    `context` is how many tokens a sequence of it can have, `usual` how many it has by the prompts that were
    measured. `notes` are for people.
    """

    process: EnvironmentProcess
    tasks: Sequence[int]
    eval_tasks: Sequence[int]
    eval_split: Split
    context: int
    usual: int
    facts: DataFacts
    notes: tuple[str, ...] = ()

    def rollouts(self, engine: Engine, train: Train, *, seed: int, rows: int) -> Rollouts:
        sampler = engine.sampler(rows=rows, context=self.context, usual=self.usual)
        tokenizer = engine.loaded.tokenizer
        if engine.device.type != "cpu":
            return Rollouts(sampler, self.process, tokenizer, train, seed=seed)
        steady = DeterministicEnvironment(self.process)
        return Rollouts(DeterministicSampler(sampler, steady), steady, tokenizer, train, seed=seed)


def open_environment(train: Train, places: JobPaths, environ: Mapping[str, str]) -> EnvironmentProcess:
    """Raises EnvironmentProblem where it cannot be loaded, and where its reward never gives a number."""
    path = places.locate("environment", train.environment)
    params: dict[str, object] = dict(train.environment_params)
    for name, said in (("data", train.data), ("eval_data", train.eval_data)):
        if train.recipe == "grpo" and said is not None:
            found = locate_input(places, name, said)
            rows.read(found, recipe="grpo", bad_rows="refuse", called=said)
            params[name] = str(found)
    source = str(path) if path is not None else str(train.environment)
    workers = max(1, min(4, (os.cpu_count() or 2) - 1))
    process = EnvironmentProcess(source, params, environ=environ, base=places.start, workers=workers)
    try:
        if not process.description.train:
            raise EnvironmentProblem(f"{source} has no rows", "Give `rows` at least one task.")
        _try_reward(process)
    except BaseException:
        process.close()
        raise
    return process


def _try_reward(process: EnvironmentProcess) -> None:
    """One turn can be scored without a model: whatever is said, the reward must be a number."""
    if process.description.multi_turn:
        return
    tasks = range(min(_TRIED, process.description.train))
    openings = _ask(process, [_start(task, "train") for task in tasks])
    calls = [
        EnvironmentCall(
            "score",
            f"try-{task}",
            "train",
            task,
            messages=[*opening.value["messages"], _SAID],
            opening=len(opening.value["messages"]),
        )
        for task, opening in zip(tasks, openings, strict=True)
        if opening.value is not None
    ]
    results = _ask(process, calls) if calls else openings
    if all(result.error is not None for result in results):
        raise EnvironmentProblem(
            f"the environment fails on each task that was tried: {results[0].error}",
            "Correct it; it was called with the answer '1'.",
        )


_SAID: Message = {"role": "assistant", "content": "1"}


def _start(task: int, split: Split) -> EnvironmentCall:
    return EnvironmentCall("start", f"look-{split}-{task}", split, task)


def _ask(process: EnvironmentProcess, calls: Sequence[EnvironmentCall]) -> list[CallResult]:
    """The answers in the order of the calls."""
    keys = [process.submit(call) for call in calls]
    found: dict[int, CallResult] = {}
    while len(found) < len(keys):
        found |= {result.key: result for result in process.poll(_PATIENCE_S)}
    return [found[key] for key in keys]


def measure_prompts(
    process: EnvironmentProcess, tokenizer: PreTrainedTokenizerBase, train: Train
) -> RunEnvironment:
    """Measure the prompts. One that leaves no room to answer is refused or left out, as too_long says."""
    about = process.description
    everything = range(about.train)
    eval_split: Split = "eval" if about.eval else "train"
    lengths: dict[int, int] = {}
    tasks: Sequence[int] = everything
    writer = PromptWriter.of_run(tokenizer, about, train)
    if not about.multi_turn:
        some = everything if about.train <= _MEASURED else permutation(about.train, 0, 0)[:_MEASURED]
        lengths = _lengths(process, writer, some, "train")
        tasks = _usable(everything, lengths, train)
    held = range(about.eval) if about.eval else tasks
    chosen = [held[place] for place in sorted(permutation(len(held), 0, 0)[: train.eval_rows])]
    evaluated: dict[int, int] = {}
    if about.eval and not about.multi_turn:
        evaluated = _lengths(process, writer, chosen, "eval")
    notes = []
    if len(tasks) < about.train:
        notes.append(f"{about.train - len(tasks)} of {about.train} tasks leave no room to answer; left out")
    if eval_split == "train":
        notes.append("the environment has no held-out rows, so tasks that are trained on are evaluated")
    facts = DataFacts(
        rows=len(tasks),
        tokens=round(sum(lengths.values()) / len(lengths) * len(tasks)) if lengths else None,
        longest=max([*lengths.values(), *evaluated.values()], default=None),
        turns=None if about.multi_turn else 1,
    )
    usual = sampled_tokens(train, facts)
    measured_all = len(lengths) == about.train and len(evaluated) == (len(chosen) if about.eval else 0)
    room = usual if measured_all else train.max_length
    return RunEnvironment(process, tasks, chosen, eval_split, room, usual, facts, tuple(notes))


def _lengths(
    process: EnvironmentProcess, writer: PromptWriter, tasks: Iterable[int], split: Split
) -> dict[int, int]:
    asked = list(tasks)
    found = {}
    for task, result in zip(asked, _ask(process, [_start(t, split) for t in asked]), strict=True):
        if result.value is None:
            continue
        try:
            found[task] = len(writer.prompt(result.value["messages"]))
        except RefusedRow as refusal:
            raise InvalidSpec(f"the prompt of task {task} cannot be written: {refusal}") from None
    return found


def _usable(tasks: Sequence[int], lengths: Mapping[int, int], train: Train) -> Sequence[int]:
    full = [task for task, length in lengths.items() if length >= train.max_length]
    if not full:
        return tasks
    first = f"task {full[0]} has a prompt of {lengths[full[0]]} tokens"
    if train.too_long == "refuse" or len(full) == len(tasks):
        raise InvalidSpec(
            f"{len(full)} tasks leave no room to answer within max_length {train.max_length}: {first}",
            'Raise max_length, shorten the prompts, or set too_long = "skip".',
        )
    out = set(full)
    return [task for task in tasks if task not in out]
