"""The outer step: SGD with Nesterov momentum on the mean of pseudo-gradients, as torch.optim.SGD has it.

Each operation rounds to fp32 by itself; none is fused with another. So the same numbers come out on every
machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from corral.diloco.codec import Vector


@dataclass(frozen=True)
class OuterOptimizer:
    """`lr` 1 and `momentum` 0 is plain averaging of the replicas' weights."""

    lr: float = 0.7
    momentum: float = 0.9

    def step(self, weights: Vector, momentum: Vector, gradient: Vector) -> tuple[Vector, Vector]:
        """The next weights and momentum."""
        rate, keep = np.float32(self.lr), np.float32(self.momentum)
        moved: Vector = momentum * keep
        moved += gradient
        ahead: Vector = moved * keep
        ahead += gradient
        ahead *= rate
        np.subtract(weights, ahead, out=ahead)
        return ahead, moved


def weighted_mean(gradients: Iterable[Vector], tokens: Sequence[int]) -> Vector:
    """By tokens, added up in the order given, in fp32; alike where nobody counts any. One gradient after the
    other is asked for, so that no two are held at once."""
    if not any(tokens):
        tokens = [1] * len(tokens)
    total = sum(tokens)
    mean: Vector | None = None
    for gradient, count in zip(gradients, tokens, strict=True):
        part: Vector = gradient * np.float32(count / total)
        if mean is None:
            mean = part
        else:
            mean += part
    assert mean is not None
    return mean
