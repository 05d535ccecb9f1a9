"""What every recipe does around its steps: update, report, guard, evaluate, save, and resume."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corral.engine.data.row_order import RowShare
from corral.engine.data.sequences import Example
from corral.engine.engine import Engine, Step
from corral.engine.errors import EngineError
from corral.engine.reports.events import EventWriter
from corral.engine.reports.report import RunRecord
from corral.engine.training.checkpoints import JOURNAL, Checkpoint, CheckpointWriter, link, link_tree
from corral.engine.training.evaluation import Evaluation, better
from corral.engine.training.guards import GuardFinding, GuardMonitor, GuardStop
from corral.engine.training.losses import Loss
from corral.engine.training.outer_rounds import OuterRounds
from corral.engine.training.rollout_journal import RolloutJournal
from corral.engine.training.stop_signal import StopSignal
from corral.engine.training.throughput import ThroughputMeter
from corral.recipes.train_tables import Train

# Rollouts that took longer than this are worth an upload: another machine may have to resume from them.
ANNOUNCE_AFTER_S = 30.0


# What torch says where the system gives it no more memory; for a GPU it has an error of its own.
_NO_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")


class OutOfMemory(EngineError):
    """Memory does not hold even one sequence at a time."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: a GPU's, or the host's."""
    if isinstance(error, OutOfMemory | torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _NO_MEMORY)


def learning_rate(step: int, total: int, *, peak: float, schedule: str, warmup: float) -> float:
    """The rate of `step` (from 0): a rise over the warm-up, then constant, or down to near 0 at the end."""
    rising = math.ceil(warmup * total)
    if step < rising:
        return peak * (step + 1) / rising
    gone = (step - rising) / max(total - rising, 1)
    if schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * gone))
    return peak * (1 - gone) if schedule == "linear" else peak


@dataclass
class BestStep:
    """The step whose evaluation was best so far; its adapter lies in a folder of its own."""

    step: int | None = None
    value: float | None = None


@dataclass
class TrainingRun:
    """A run under way. `done` counts whole steps; everything else that a resume needs is in the parts.

    `longest` is the most tokens that a sequence of the run can have. `work` is a folder for the journal and
    the best adapter, on the file system of the checkpoints.
    """

    train: Train
    total: int
    rate: float
    engine: Engine
    events: EventWriter
    checkpoints: CheckpointWriter
    guards: GuardMonitor
    meter: ThroughputMeter
    stop: StopSignal
    work: Path
    headline: str
    longest: int
    evaluate_with: Callable[[int], list[Evaluation]] | None = None
    # Of a run of several replicas: what this one trains on, and how it meets the others.
    share: RowShare = field(default_factory=RowShare)
    rounds: OuterRounds | None = None
    record: RunRecord = field(default_factory=RunRecord)
    best: BestStep = field(default_factory=BestStep)
    done: int = 0
    _saved: int | None = None
    _unannounced_s: float = 0.0

    def __post_init__(self) -> None:
        self.journal = RolloutJournal(self.work / JOURNAL, self.checkpoints.config_digest)

    # -- one step -------------------------------------------------------------------------------------

    def rate_at(self, step: int) -> float:
        train = self.train
        return learning_rate(step, self.total, peak=self.rate, schedule=train.schedule, warmup=train.warmup)

    def gradients(self, examples: Sequence[Example], loss: Loss, *, temperature: float = 1.0) -> Step:
        """forward_backward; when memory runs out, again with less at a time."""
        while True:
            try:
                return self._forward_backward(examples, loss, temperature)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                problem = str(error).partition("\n")[0]
            # Outside the handler, since the error holds on to what was computed.
            self.engine.forget_gradients()
            self._shrink(problem)

    def _forward_backward(self, examples: Sequence[Example], loss: Loss, temperature: float) -> Step:
        if self.train.pack:
            return self.engine.forward_backward(examples, loss, temperature=temperature)
        whole = Step()
        for example in examples:
            alone = self.engine.forward_backward([example], loss, temperature=temperature)
            whole.add(alone.loss, alone.sums)
            whole.tokens += alone.tokens
            whole.padding += alone.padding
        return whole

    def apply(self, rate: float) -> Tensor:
        """optim_step, given to the device but not waited for; gives the norm of the gradients. Those that are
        not finite change nothing; `read` finds them."""
        return self.engine.optim_step(rate, clip=self.train.grad_clip)

    def read(self, seen: Step, norm: Tensor) -> dict[str, float]:
        """The numbers of a step: the one place where it waits for the device."""
        began = self.meter.clock()
        numbers = {**seen.read(), "grad_norm": float(norm)}
        self.meter.spend("waiting", self.meter.clock() - began)
        if finding := self.guards.gradients(
            self.done + 1,
            loss=numbers["loss"],
            grad_norm=numbers["grad_norm"],
            expected=numbers.get("tokens", 1.0) > 0,
        ):
            self.heed(finding)
        return numbers

    def take_less(self) -> str | None:
        """Half as many tokens at a time; when that is one sequence, activations are computed twice.

        What changed, in words; None where nothing smaller is left. The results stay the same.
        """
        options = self.engine.options
        smaller = max(options.micro_tokens // 2, self.longest)
        if smaller < options.micro_tokens:
            self.engine.options = replace(options, micro_tokens=smaller)
            return f"micro_tokens goes from {options.micro_tokens} to {smaller}"
        if options.recompute:
            return None
        self.engine.options = replace(options, recompute=True)
        return "activations are recomputed from now on"

    def _shrink(self, problem: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        change = self.take_less()
        if change is None:
            raise OutOfMemory(
                f"Memory ran out at step {self.done + 1} with {self.longest} tokens at a time: {problem}",
                "Lower max_length, take a smaller model or lora.rank, or a machine with more memory.",
            )
        self.note(f"Memory ran out at step {self.done + 1}: {change}, and the step is repeated.")

    def heed(self, finding: GuardFinding) -> None:
        if finding.policy == "stop":
            raise GuardStop(finding)
        self.note(str(finding))

    def note(self, text: str) -> None:
        self.record.notes.append(text)
        self.events.note(text)

    def close(self, metrics: Mapping[str, float]) -> None:
        """The step is whole: tell it, and evaluate and save where it is time."""
        self.done += 1
        status = self.meter.end_step(self.done, self.total, headline=self.headline, metrics=metrics)
        self.record.step(self.done, status.metrics)
        self.events.step(status)
        self._meet()
        self.catch_up()
        if self._is_due(self.train.save_every):
            self.save()
        self.stop.check()
        self.meter.begin()

    def _meet(self) -> None:
        """A round with the other replicas, where it is time. They may be further than this one."""
        if self.rounds is None:
            return
        with self.stop.interruptible():
            self.done = self.rounds.step(self.meter.step_tokens)

    def join(self) -> None:
        """Take the weights of the last round, and go on where the replicas are. Of a checkpoint of one's own
        stay optimiser and record; what was sampled from other weights does not."""
        if self.rounds is None:
            return
        with self.stop.interruptible():
            step = self.rounds.join()
        if step == self.done and not self.rounds.changed:
            return
        self.record.rewind(step)
        self.journal.clear()
        if self.best.step is not None and self.best.step > step:
            self.best = BestStep()
            shutil.rmtree(self.best_folder, ignore_errors=True)
        self.done, self._saved = step, None
        if step:
            self.events.say(f"goes on after {step} of {self.total} steps, where the replicas are")

    def _is_due(self, every: int) -> bool:
        return self.done % every == 0 or self.done == self.total

    # -- evaluating -----------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Evaluate where it is time and was not done: a stop may have come in between."""
        every = self.train.eval_every or self.train.save_every
        if self._is_due(every) and not any(e.step == self.done for e in self.record.evaluations):
            self.evaluate()

    def evaluate(self) -> None:
        if self.evaluate_with is None:
            return
        began = self.meter.clock()
        with self.stop.interruptible():
            found = self.evaluate_with(self.done)
        self.meter.evaluations_s.append(self.meter.clock() - began)
        for evaluation in found:
            self.record.evaluations.append(evaluation)
            told = {evaluation.metric: evaluation.interval.mean, **evaluation.extra}
            self.events.metrics(self.done, told)
            when = f"after {self.done} steps" if self.done else "before training"
            self.events.say(f"{evaluation.metric} {when}: {evaluation}")
            if evaluation.metric == self.train.metric and self.done:
                self._keep_if_best(evaluation)

    def _keep_if_best(self, evaluation: Evaluation) -> None:
        if not better(evaluation.metric, evaluation.interval.mean, self.best.value):
            return
        self.best = BestStep(self.done, evaluation.interval.mean)
        part = self.work / ".best"
        shutil.rmtree(part, ignore_errors=True)
        self.engine.save_adapter(part)
        shutil.rmtree(self.best_folder, ignore_errors=True)
        part.rename(self.best_folder)

    @property
    def best_folder(self) -> Path:
        return self.work / "best"

    # -- keeping --------------------------------------------------------------------------------------

    def save(self) -> None:
        """A checkpoint of the whole steps; nothing if there is one already."""
        if self._saved == self.done and not self._fresh():
            return
        metric = next(
            (e.interval.mean for e in reversed(self.record.evaluations) if e.metric == self.train.metric),
            None,
        )
        self.checkpoints.write(self.done, self._fill, parts=self._parts(), metric=metric)
        self._saved = self.done
        # Only now: a kill while the checkpoint is written must not cost the rollouts too.
        self.journal.forget(self.done)

    def _fresh(self) -> list[Path]:
        """The rollouts that no checkpoint has learned from."""
        return [file for file in self.journal.files() if int(file.stem) >= self.done]

    def sampled(self, rows: Sequence[Mapping[str, Any]], took_s: float) -> None:
        """Keep the rollouts of the step under way, so that no kill makes them be paid for twice."""
        self.meter.spend("sampling", took_s)
        self.journal.write(self.done, rows)
        self._unannounced_s += took_s
        if not self.events.watched or self._unannounced_s < ANNOUNCE_AFTER_S:
            return
        self._unannounced_s = 0.0
        newest = self.checkpoints.newest
        if newest is None or self._saved is None:
            self.save()
        else:
            self.checkpoints.add_journal(newest, self.journal.files(), step=self._saved)

    def resume(self, saved: Checkpoint) -> None:
        self.engine.load_state(saved.folder / "engine")
        self.record = RunRecord.load(saved.folder / "record")
        self.guards.restore(saved.parts["watch"])
        self.best = BestStep(**saved.parts["best"])
        # The folder may hold the best of steps after the checkpoint, which are now done again.
        shutil.rmtree(self.best_folder, ignore_errors=True)
        if (saved.folder / "best").is_dir():
            shutil.copytree(saved.folder / "best", self.best_folder, copy_function=shutil.copyfile)
        options = saved.parts["options"]
        self.engine.options = replace(
            self.engine.options,
            micro_tokens=min(self.engine.options.micro_tokens, options["micro_tokens"]),
            recompute=self.engine.options.recompute or options["recompute"],
        )
        self.journal.adopt(saved.journal)
        self.journal.forget(saved.step)
        self.done = self._saved = saved.step

    def _parts(self) -> dict[str, Any]:
        options = self.engine.options
        return {
            "watch": self.guards.state(),
            "best": {"step": self.best.step, "value": self.best.value},
            "options": {"micro_tokens": options.micro_tokens, "recompute": options.recompute},
        }

    def _fill(self, folder: Path) -> None:
        self.engine.save(folder / "engine")
        self.record.save(folder / "record")
        if self.best_folder.is_dir():
            link_tree(self.best_folder, folder / "best")
        for file in self._fresh():
            (folder / JOURNAL).mkdir(exist_ok=True)
            link(file, folder / JOURNAL / file.name)
