"""Evaluating and sampling what a training run made, beside the model that it began with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from corral.engine.data import sft_dataset
from corral.engine.data.chat import Renderer
from corral.engine.data.prompt_form import PromptForm
from corral.engine.data.sequences import SamplingParams
from corral.engine.engine import Engine
from corral.engine.environments.protocol import with_system
from corral.engine.model.adapters import is_adapted
from corral.engine.reports import report
from corral.engine.reports.events import EventWriter
from corral.engine.spec import InvalidSpec, JobSpec, with_defaults
from corral.engine.training.evaluation import Evaluation, change
from corral.engine.training.stop_signal import StopSignal
from corral.recipes.train_tables import Train

EVAL: Mapping[str, Any] = {"which": "last", "rows": 256, "data": None}
SAMPLE: Mapping[str, Any] = {
    "which": "last",
    "messages": [],
    "prompt": None,
    "n": 1,
    "max_tokens": 256,
    "temperature": 0.7,
    "seed": 0,
}
WHICH = ("last", "best")


def task_options(spec: JobSpec) -> dict[str, Any]:
    """The task's table, complete; before anything is loaded."""
    ask = with_defaults(spec.ask, EVAL if spec.task == "eval" else SAMPLE, where=spec.task)
    if ask["which"] not in WHICH:
        raise InvalidSpec(f"{spec.task}.which is {ask['which']!r}", f"It can be {' or '.join(WHICH)}.")
    for key in ("rows", "n", "max_tokens"):
        if key in ask and ask[key] < 1:
            raise InvalidSpec(f"{spec.task}.{key} must be at least 1, not {ask[key]}")
    if spec.task == "sample":
        _check_question(ask["messages"], ask["prompt"])
    return ask


def _check_question(messages: Sequence[Any], prompt: Any) -> None:
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt or messages:
            raise InvalidSpec("sample.prompt must be a text, and in place of messages")
        return
    whole = all(isinstance(m, dict) and isinstance(m.get("content"), str) and m.get("role") for m in messages)
    if not messages or not whole:
        raise InvalidSpec("sample.messages needs at least one message with role and content")


@dataclass(frozen=True)
class TrainedModel:
    """The model of a run, and what the two phases are called."""

    engine: Engine
    train: Train
    events: EventWriter
    stop: StopSignal

    def phases(self) -> Iterator[tuple[str, AbstractContextManager[None]]]:
        """The model before training, where it has an adapter to leave out, then the model as it is."""
        if is_adapted(self.engine.loaded.model):
            yield "before", self.engine.without_adapter()
        yield "after", nullcontext()


def evaluate(
    trained: TrainedModel, evaluator: Callable[[int], list[Evaluation]], ask: Mapping[str, Any]
) -> dict[str, Any]:
    """Every evaluation before and after, and the change: `metrics.json` of the task."""
    found: dict[str, list[Evaluation]] = {}
    for phase, around in trained.phases():
        trained.events.phase(f"evaluating the model {phase} training")
        with around, trained.stop.interruptible():
            found[phase] = evaluator(0 if phase == "before" else 1)
    said: dict[str, Any] = {"task": "eval", "which": ask["which"], "evaluations": []}
    for place, after in enumerate(found["after"]):
        row: dict[str, Any] = {"metric": after.metric, "after": asdict(after.interval), "before": None}
        told = {after.metric: after.interval.mean}
        lines = [f"{after.metric} after training: {after}"]
        if "before" in found:
            before = found["before"][place]
            difference = change(before, after)
            row |= {"before": asdict(before.interval), "change": asdict(difference)}
            told[f"{after.metric}_before"] = before.interval.mean
            lines.insert(0, f"{after.metric} before training: {before}")
            lines.append(f"{after.metric} change: {difference.over(after.unit)}")
        said["evaluations"].append(row)
        trained.events.metrics(1, told)
        for line in lines:
            trained.events.say(line)
    return said


@dataclass(frozen=True)
class Question:
    """What is asked, as tokens and as the rows of the result tell it; its form, and that of the training."""

    tokens: Sequence[int]
    asked: Mapping[str, Any]
    form: PromptForm
    trained_as: PromptForm | None

    def told(self) -> dict[str, Any]:
        return {**self.asked, "form": self.form, "trained_as": self.trained_as}


def question(trained: TrainedModel, ask: Mapping[str, Any], form: PromptForm | None) -> Question:
    """Of a `prompt`, plain text. Of messages, what the run was trained on: a single one is plain text to a
    model that saw no other; a system message or an answer can only be told by a chat template."""
    renderer = Renderer(trained.engine.loaded.tokenizer, thinking=trained.train.thinking)
    text, messages = ask["prompt"], ask["messages"]
    if text is None and form is PromptForm.TEXT and [one["role"] for one in messages] == ["user"]:
        text = messages[0]["content"]
    if text is not None:
        return Question(renderer.plain(text), {"prompt": text}, PromptForm.TEXT, form)
    messages = with_system(messages, trained.train.system)
    return Question(renderer.prompt(messages), {"messages": messages}, PromptForm.CHAT, form)


def sample(trained: TrainedModel, ask: Mapping[str, Any], form: PromptForm | None) -> list[dict[str, Any]]:
    """`n` answers of each phase to the same question with the same seeds: `samples.jsonl` of the task.

    `form` is the one that the model was trained in.
    """
    asked = question(trained, ask, form)
    trained.events.say(f"asked as {'plain text' if asked.form is PromptForm.TEXT else 'a chat'}")
    rows = []
    for phase, around in trained.phases():
        with around, trained.stop.interruptible():
            answers = answer(trained.engine, [asked.tokens] * int(ask["n"]), ask)
        trained.events.say(f"--- {phase} training")
        for number, row in enumerate(answers):
            rows.append({"phase": phase, "number": number, **asked.told(), **row})
            trained.events.say(row["completion"])
    return rows


def answer(engine: Engine, prompts: Sequence[Sequence[int]], ask: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One completion for each prompt; seeds count up from the one in `ask`."""
    tokenizer = engine.loaded.tokenizer
    params = SamplingParams(
        max_tokens=int(ask["max_tokens"]),
        temperature=float(ask["temperature"]),
        seed=int(ask["seed"]),
        stop_tokens=end_tokens(engine),
    )
    longest = max(len(prompt) for prompt in prompts) + params.max_tokens
    facts = engine.loaded.facts
    if facts is not None and longest > facts.context:
        raise InvalidSpec(
            f"the prompt and {params.max_tokens} tokens make {longest}; the model has {facts.context}",
            "Lower max_tokens or shorten the prompt.",
        )
    return [
        {
            "completion": tokenizer.decode(_without_end(one.tokens, params.stop_tokens)),
            "tokens": len(one.tokens),
            "reason": one.reason,
            "logprob": sum(one.logprobs),
        }
        for one in engine.sample(prompts, params)
    ]


def end_tokens(engine: Engine) -> tuple[int, ...]:
    """What ends an answer: the model's own list where it has one, and the tokenizer's."""
    config = getattr(engine.loaded.model, "generation_config", None)
    own = getattr(config, "eos_token_id", None)
    ids = [*(own if isinstance(own, list) else [own]), engine.loaded.tokenizer.eos_token_id]
    return tuple(dict.fromkeys(int(i) for i in ids if i is not None))


def _without_end(tokens: Sequence[int], ends: Sequence[int]) -> list[int]:
    return list(tokens[:-1] if tokens and tokens[-1] in ends else tokens)


def before_and_after(
    trained: TrainedModel, rows: Sequence[sft_dataset.MaskedSequence], *, count: int = 4
) -> list[report.Row]:
    """A few held-out prompts answered by both models, each with what it finds most likely."""
    chosen = [row for row in rows if any(row.weights)][:count]
    begins = [next(i for i, weight in enumerate(row.weights) if weight) for row in chosen]
    pairs = [(row, begin) for row, begin in zip(chosen, begins, strict=True) if begin > 0]
    if not pairs:
        return []
    tokenizer = trained.engine.loaded.tokenizer
    longest = max(len(row.tokens) - begin for row, begin in pairs)
    ask = {"max_tokens": min(max(longest, 16), 256), "temperature": 0.0, "seed": 0}
    prompts = [list(row.tokens[:begin]) for row, begin in pairs]
    said: list[report.Row] = []
    for phase, around in trained.phases():
        with around:
            answers = answer(trained.engine, prompts, ask)
        for (row, begin), one in zip(pairs, answers, strict=True):
            tokens = list(row.tokens)
            asked, wanted = tokenizer.decode(tokens[:begin]), tokenizer.decode(tokens[begin:])
            said.append({"phase": phase, "prompt": asked, "wanted": wanted, **one})
    return said
