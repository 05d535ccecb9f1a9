"""Notices a run that no longer learns, says why that may be and what to try, and stops it by policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from corral.engine.errors import EngineError
from corral.recipes.train_tables import Guards

Policy = Literal["stop", "warn", "skip"]

# One odd batch is no collapse.
COLLAPSE_STEPS = 3
# With the policy `skip`: more bad steps in a row than this are not bad luck.
SKIPS_MAX = 5
_SOLVED_SLACK = 1e-6
# A run that a guard stops has no result, and what it recorded is in its last checkpoint.
_SAMPLES = "samples.jsonl (of a stopped run it is record/samples.jsonl in its last checkpoint)"


@dataclass(frozen=True)
class GuardFinding:
    """What was noticed, what it means, what to try, and what follows from it."""

    name: str
    policy: Policy
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.message} {self.hint}"


class GuardStop(EngineError):
    """The run is ended because of a finding."""

    def __init__(self, finding: GuardFinding) -> None:
        super().__init__(finding.message, finding.hint)
        self.finding = finding


@dataclass(frozen=True)
class RolloutStats:
    """What one step's rollouts looked like. `spread` is the largest difference of rewards within a group."""

    reward: float
    spread: float
    length: float
    entropy: float | None = None
    mismatch: float | None = None


@dataclass
class _Counts:
    """What the guards count over the run; its fields are those of a checkpoint."""

    flat: int = 0
    varied: bool = False
    best: float | None = None
    thin: dict[str, int] = field(default_factory=lambda: {"entropy": 0, "length": 0})
    skips: int = 0
    moved: bool = False
    said: list[str] = field(default_factory=list)


class GuardMonitor:
    """Counts over the run; `state` and `restore` carry the counts through a checkpoint.

    Each method returns what it found. A finding with the policy `stop` is to be raised by the caller once
    the numbers of the step are told, so that the curve shows what the message speaks of.
    """

    def __init__(self, guards: Guards, *, mismatch_limit: float = 0.0) -> None:
        self._guards, self._mismatch_limit = guards, mismatch_limit
        self._counts = _Counts()

    def state(self) -> dict[str, Any]:
        return asdict(self._counts)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._counts = _Counts(**{**state, "thin": dict(state["thin"])})

    def gradients(self, step: int, *, loss: float, grad_norm: float, expected: bool) -> GuardFinding | None:
        """After the backward pass and before the weights change. `expected`: some token has weight."""
        counts = self._counts
        if math.isfinite(loss) and math.isfinite(grad_norm):
            counts.skips = 0
            if expected and grad_norm == 0.0:
                return _zero_gradients(step, moved=counts.moved)
            counts.moved = counts.moved or grad_norm > 0.0
            return None
        counts.skips += 1
        what = "loss" if not math.isfinite(loss) else "gradient"
        policy: Policy = "stop" if counts.skips > SKIPS_MAX else self._guards.nan
        again = f" It is the {counts.skips}th step in a row that was skipped." if counts.skips > 1 else ""
        return GuardFinding(
            "nan",
            policy,
            f"The {what} of step {step} is not a finite number "
            f"(loss {loss}, gradient norm {grad_norm}).{again}",
            "Lower learning_rate (a tenth is a good next try), add warmup, or check the data of this step; "
            'guards.nan = "skip" passes over single bad batches.',
        )

    def rollouts(self, step: int, seen: RolloutStats) -> list[GuardFinding]:
        guards = self._guards
        found = [
            self._reward(step, seen),
            self._collapse("entropy", step, seen.entropy, guards.min_entropy, guards.low_entropy),
            self._collapse("length", step, seen.length, guards.min_length, guards.low_length),
            self._mismatch(step, seen.mismatch),
        ]
        return [finding for finding in found if finding is not None]

    def _reward(self, step: int, seen: RolloutStats) -> GuardFinding | None:
        steps, counts = self._guards.dead_reward_steps, self._counts
        best = -math.inf if counts.best is None else counts.best
        if seen.spread > 0:
            counts.flat, counts.varied = 0, True
            counts.best = max(best, seen.reward)
            return None
        counts.flat += 1
        if not steps or counts.flat < steps:
            return None
        if counts.varied and seen.reward >= best - _SOLVED_SLACK:
            return self._once(
                GuardFinding(
                    "solved",
                    "warn",
                    f"For {steps} steps every completion has earned the same {seen.reward:.4g}, "
                    "the most so far: the tasks are solved and nothing more can be learned from them.",
                    "Give harder tasks, or fewer steps.",
                )
            )
        finding = GuardFinding(
            "dead_reward",
            self._guards.dead_reward,
            f"For {counts.flat} steps, up to step {step}, all completions of each prompt earned "
            f"the same reward (mean {seen.reward:.4g}): advantages are 0 and nothing is learned.",
            f"Look at {_SAMPLES}; give easier tasks or a reward with partial credit, train with sft first, "
            "raise group_size or temperature, or raise guards.dead_reward_steps.",
        )
        return finding if finding.policy == "stop" else self._once(finding)

    def _collapse(
        self, name: str, step: int, value: float | None, least: float, policy: Policy
    ) -> GuardFinding | None:
        thin = self._counts.thin
        if value is None or least <= 0 or value >= least:
            thin[name] = 0
            return None
        thin[name] += 1
        if thin[name] < COLLAPSE_STEPS:
            return None
        unit = "nats" if name == "entropy" else "tokens"
        finding = GuardFinding(
            f"{name}_collapse",
            policy,
            f"The mean {name} of the completions is {value:.4g} {unit} at step {step}, "
            f"for {thin[name]} steps below the limit of {least:.4g}.",
            _COLLAPSE_HINTS[name],
        )
        return finding if policy == "stop" else self._once(finding)

    def _mismatch(self, step: int, value: float | None) -> GuardFinding | None:
        limit = self._mismatch_limit
        if value is None or limit <= 0 or value <= limit:
            return None
        return GuardFinding(
            "mismatch",
            "stop",
            f"Sampler and trainer disagree at step {step}: the mean gap of their logprobs is "
            f"{value:.4g} nats, the limit is {limit:.4g}. What is learned from such samples is wrong.",
            "Set precision to fp32 to see whether it is rounding; otherwise this is a fault of the engine: "
            "report it with the model's name. grpo.mismatch_limit sets the limit, 0 switches it off.",
        )

    def _once(self, finding: GuardFinding) -> GuardFinding | None:
        if finding.name in self._counts.said:
            return None
        self._counts.said = sorted([*self._counts.said, finding.name])
        return finding


_COLLAPSE_HINTS = {
    "entropy": "The model has become sure of itself and explores no more: lower learning_rate, raise "
    "temperature or grpo.clip_high, or add grpo.entropy_coef.",
    "length": f"The reward may favour an empty answer: look at {_SAMPLES}, and let the reward ask for what "
    "the answer must hold.",
}


def _zero_gradients(step: int, *, moved: bool) -> GuardFinding:
    never = (
        "The adapter is not part of the computation: check lora.targets; report this with the model's name."
    )
    away = "Earlier steps had some: the weights were thrown too far. Lower learning_rate, or add warmup."
    return GuardFinding(
        "zero_gradients",
        "stop",
        f"All gradients of step {step} are exactly 0 although tokens have weight: nothing would be learned.",
        away if moved else never,
    )
