"""Courses for tests of the recipes: `corral/tiny` with an engine that can be made to fail."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from corral.engine.data.sequences import Example
from corral.engine.engine import Engine, Options, Step
from corral.engine.model import adapters
from corral.engine.model import load as models
from corral.engine.reports.events import EventWriter, TerminalOutput
from corral.engine.training.checkpoints import CheckpointWriter
from corral.engine.training.guards import GuardMonitor
from corral.engine.training.losses import Loss
from corral.engine.training.stop_signal import StopSignal
from corral.engine.training.throughput import ThroughputMeter
from corral.engine.training.training_run import TrainingRun
from corral.recipes.train import parse
from corral.recipes.train_tables import Train

SUMS = [f"{a}+{b}={a + b}\n" for a in range(6) for b in range(6)]


class FailingEngine(Engine):
    """Runs out of memory above `fits` tokens at a time, and gives a NaN loss at the `bad` calls."""

    fits: int = 1 << 30
    needs_recompute: bool = False
    bad: frozenset[int] = frozenset()
    calls: int = 0

    def forward_backward(self, examples: Sequence[Example], loss: Loss, *, temperature: float = 1.0) -> Step:
        self.calls += 1
        if self.options.micro_tokens > self.fits or (self.needs_recompute and not self.options.recompute):
            # As it happens: some of the gradients are there already.
            super().forward_backward(examples[:1], loss, temperature=temperature)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore words.")
        step = super().forward_backward(examples, loss, temperature=temperature)
        if self.calls in self.bad:
            for parameter in self._trained.values():
                if parameter.grad is not None:
                    parameter.grad.fill_(float("nan"))
            step.loss = step.loss * float("nan")
        return step


def rows(engine: Engine) -> list[tuple[list[int], list[float]]]:
    encoded = [engine.loaded.tokenizer.encode(text) for text in SUMS]
    return [(tokens, [0.0] + [1.0] * (len(tokens) - 1)) for tokens in encoded]


def engine(train: Train, *, micro_tokens: int = 512) -> FailingEngine:
    torch.set_num_threads(1)
    loaded = models.load(train.model)
    names = adapters.attach(loaded.model, train.lora, seed=0)
    return FailingEngine(loaded, names, Options(micro_tokens=micro_tokens))


def sft_train(**changes: Any) -> Train:
    table = {"recipe": "sft", "data": "rows.jsonl", "steps": 4, "batch_size": 8, "learning_rate": 5e-3}
    return parse("corral/tiny", {**table, "max_length": 64, **changes})


def course(train: Train, folder: Path, made: Engine, *, total: int | None = None) -> TrainingRun:
    events = EventWriter(folder / "events.jsonl", TerminalOutput(io.StringIO()))
    return TrainingRun(
        train=train,
        total=total or train.steps or 1,
        rate=float(train.learning_rate),
        engine=made,
        events=events,
        checkpoints=CheckpointWriter(folder / "checkpoints", {"steps": total}, events),
        guards=GuardMonitor(train.guards, mismatch_limit=train.grpo.mismatch_limit),
        meter=ThroughputMeter(),
        stop=StopSignal(),
        work=folder / "checkpoints" / "work",
        headline="loss" if train.recipe == "sft" else "reward",
        longest=8,
    )
