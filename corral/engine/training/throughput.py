"""How fast the run goes, how much of the device it uses, and how long it will still take."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from corral.engine.reports.events import StepStatus
from corral.engine.training.peak_memory import PeakMemory

# A step's time varies; speed and ETA are taken over this many of the last steps.
_WINDOW = 20
# Steps in which compilers work and CUDA graphs are made; see corral/engine/training/cuda_graphs.py.
_WARMING = 3


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
    evaluations_s: list[float] = field(default_factory=list)
    tokens: int = 0
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _began: float = 0.0
    _now_tokens: int = 0

    def begin(self) -> None:
        self._began, self._now_tokens = self.clock(), 0

    def count(self, tokens: int) -> None:
        """Tokens that the step works on, however often it goes over them."""
        self._now_tokens += tokens

    def end_step(self, step: int, total: int, *, headline: str, metrics: Mapping[str, float]) -> StepStatus:
        """The step that began with `begin` has ended."""
        took_s = self.clock() - self._began
        self.steps_s.append(took_s)
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
        usual = self.steps_s[_WARMING:] or self.steps_s[1:] or self.steps_s
        return statistics.median(usual) if usual else None

    def warming_s(self) -> float:
        """What the first steps and the first evaluation took longer than later ones: compiling, and making
        CUDA graphs."""
        usual = self.usual_step_s() or 0.0
        steps = sum(max(0.0, seconds - usual) for seconds in self.steps_s[:_WARMING])
        return steps + _excess(self.evaluations_s)


def _excess(seconds: Sequence[float]) -> float:
    first, later = seconds[:1], seconds[1:]
    return max(0.0, first[0] - statistics.median(later)) if first and later else 0.0
