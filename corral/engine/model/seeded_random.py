"""Random tensors that are the same bits on every machine, and that leave torch's generators alone.

torch.randn differs in its last bits between processors, as its logarithms and cosines are vectorised. Here
the bits come from SHAKE-256 over a name and a seed, and become floats by integer sums and one product.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch

_WORD = 1 << 16


def uniform(name: str, seed: int, shape: Sequence[int], bound: float) -> torch.Tensor:
    """fp32 on the CPU, evenly spread in (-bound, bound) over 65,536 values, none of which is 0."""
    return (_words(name, seed, math.prod(shape)) * 2 + 1).float().mul_(bound / _WORD).view(*shape)


def normal(name: str, seed: int, shape: Sequence[int], std: float) -> torch.Tensor:
    """fp32 on the CPU, near to a normal distribution: the sum of four even ones, so within 3.5 std."""
    words = _words(name, seed, 4 * math.prod(shape)).view(-1, 4).sum(1)
    # Each odd number 2w + 1 has variance (2^32 - 1) / 3; four of them have four times that.
    scale = std / math.sqrt(4 * (_WORD**2 - 1) / 3)
    return (words * 2 + 4).float().mul_(scale).view(*shape)


def _words(name: str, seed: int, count: int) -> torch.Tensor:
    """Numbers from -32,768 to 32,767, as int32. The machine is taken to be little-endian."""
    stream = bytearray(hashlib.shake_256(f"{seed}\0{name}".encode()).digest(2 * count))
    return torch.frombuffer(stream, dtype=torch.int16).to(torch.int32)
