"""How fast the run goes, how much of the device it uses, and how long it will still take."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from corral.engine.reports.events import StepStatus
from corral.engine.training.peak_memory import PeakMemory

# A step's time varies; speed and ETA are taken over this many of the last steps.
_WINDOW = 20
# Steps in which compilers work and CUDA graphs are made; see corral/engine/training/cuda_graphs.py.
_WARMING = 3


# In a step the host samples, or waits for the device to end what it was given.
StepPart = Literal["sampling", "waiting"]
T = TypeVar("T")


@dataclass
class ThroughputMeter:
    """Times steps without what happens between them (evaluating, saving).

    `flops_per_token` are the model's own, not what recomputing adds; with `peak_flops` of the device they
    give the share that was used (MFU). None is not known. The first step of a process compiles: that is part
    of setting up, so it has a time and no speed.
    """

    flops_per_token: float | None = None
    peak_flops: float | None = None
    clock: Callable[[], float] = time.perf_counter
    memory: PeakMemory = field(default_factory=PeakMemory)
    steps_s: list[float] = field(default_factory=list)
    parts_s: list[dict[StepPart, float]] = field(default_factory=list)
    evaluations_s: list[float] = field(default_factory=list)
    tokens: int = 0
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _began: float = 0.0
    _now_tokens: int = 0
    _now_parts: dict[StepPart, float] = field(default_factory=dict)

    def begin(self) -> None:
        self._began, self._now_tokens, self._now_parts = self.clock(), 0, {}

    def count(self, tokens: int) -> None:
        """Tokens that the step works on, however often it goes over them."""
        self._now_tokens += tokens

    @property
    def step_tokens(self) -> int:
        """What was counted since the step began."""
        return self._now_tokens

    def spend(self, part: StepPart, seconds: float) -> None:
        """So much of the step went there."""
        self._now_parts[part] = self._now_parts.get(part, 0.0) + seconds

    def end_step(self, step: int, total: int, *, headline: str, metrics: Mapping[str, float]) -> StepStatus:
        """The step that began with `begin` has ended."""
        took_s = self.clock() - self._began
        self.steps_s.append(took_s)
        self.parts_s.append(self._now_parts)
        self.tokens += self._now_tokens
        if len(self.steps_s) > 1:
            self._recent.append((took_s, self._now_tokens))
        speed = self._speed()
        told = dict(metrics)
        if speed is not None:
            told["tokens_per_s"] = speed
        told["step_s"] = took_s
        mfu = None
        if speed is not None and self.flops_per_token and self.peak_flops:
            mfu = told["mfu"] = speed * self.flops_per_token / self.peak_flops
        memory = self.memory.bytes()
        if memory is not None:
            told["memory_gib"] = memory / 2**30
        return StepStatus(
            step,
            total,
            headline,
            told,
            tokens_per_s=speed,
            mfu=mfu,
            memory_bytes=memory,
            eta_s=self._eta_s(total - step),
        )

    def _speed(self) -> float | None:
        """The median of the last steps: making a CUDA graph within one of them is no part of their speed."""
        speeds = [tokens / seconds for seconds, tokens in self._recent if seconds > 0]
        return statistics.median(speeds) if speeds else None

    def _eta_s(self, steps: int) -> float | None:
        """After the first step nobody knows how much of it was compiling."""
        if not steps or not self._recent:
            return None if steps else 0.0
        return statistics.median(seconds for seconds, _ in self._recent) * steps

    def usual_step_s(self) -> float | None:
        """The median over the run, without the first steps, which also warm up."""
        usual = _usual(self.steps_s)
        return statistics.median(usual) if usual else None

    def usual_parts_s(self) -> dict[StepPart, float]:
        """The same for the parts of a step. A step that waits for nothing is paced by the host."""
        usual = _usual(self.parts_s)
        named = {part for step in usual for part in step}
        return {part: statistics.median(step.get(part, 0.0) for step in usual) for part in sorted(named)}

    def warming_s(self) -> float:
        """What the first steps and the first evaluation took longer than later ones: compiling, and making
        CUDA graphs."""
        usual = self.usual_step_s() or 0.0
        steps = sum(max(0.0, seconds - usual) for seconds in self.steps_s[:_WARMING])
        return steps + _excess(self.evaluations_s)


def _usual(steps: Sequence[T]) -> Sequence[T]:
    return steps[_WARMING:] or steps[1:] or steps


def _excess(seconds: Sequence[float]) -> float:
    first, later = seconds[:1], seconds[1:]
    return max(0.0, first[0] - statistics.median(later)) if first and later else 0.0


@dataclass
class SetupClock:
    """What the time before the first step goes to."""

    clock: Callable[[], float] = time.perf_counter
    parts_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        began = self.clock()
        try:
            yield
        finally:
            self.parts_s[part] = self.parts_s.get(part, 0.0) + self.clock() - began
