"""How fast the run goes, how much of the device it uses, and how long it will still take."""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from corral.engine.reports.events import StepStatus

if sys.platform != "win32":
    import resource

# A step's time varies; speed and ETA are taken over this many of the last steps.
_WINDOW = 20


def peak_memory_bytes() -> int | None:
    """The most that this process has held: of the GPU where there is one, else of the machine."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved()
    if sys.platform == "win32":
        return None
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@dataclass
class ThroughputMeter:
    """Times steps without what happens between them (evaluating, saving).

    `flops_per_token` are the model's own, not what recomputing adds; with `peak_flops` of the device they
    give the share that was used (MFU). None is not known.
    """

    flops_per_token: float | None = None
    peak_flops: float | None = None
    clock: Callable[[], float] = time.perf_counter
    steps_s: list[float] = field(default_factory=list)
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
        self._recent.append((took_s, self._now_tokens))
        span_s = sum(seconds for seconds, _ in self._recent)
        speed = sum(tokens for _, tokens in self._recent) / span_s if span_s > 0 else None
        told = dict(metrics)
        if speed is not None:
            told["tokens_per_s"] = speed
        told["step_s"] = took_s
        mfu = None
        if speed is not None and self.flops_per_token and self.peak_flops:
            mfu = told["mfu"] = speed * self.flops_per_token / self.peak_flops
        memory = peak_memory_bytes()
        if memory is not None:
            told["memory_gib"] = memory / 2**30
        usual_s = statistics.median(seconds for seconds, _ in self._recent)
        return StepStatus(
            step,
            total,
            headline,
            told,
            tokens_per_s=speed,
            mfu=mfu,
            memory_bytes=memory,
            eta_s=usual_s * (total - step),
        )

    def usual_step_s(self) -> float | None:
        """The median over the run, without the first step, which also warms up."""
        return statistics.median(self.steps_s[1:] or self.steps_s) if self.steps_s else None
