"""How fast a host gives work to torch: steps that the host paces differ with this from machine to machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

_OPERATIONS, _TURNS = 400, 15


def measure() -> dict[str, float]:
    """Microseconds of one core for a torch operation and its backward pass, on so few numbers that only the
    calls count; and for one turn of a loop in Python."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch_s, python_s = _median(_operations), _median(_loop)
    finally:
        torch.set_num_threads(before)
    return {"torch_operation_us": torch_s / _OPERATIONS * 1e6, "python_turn_us": python_s / 100_000 * 1e6}


def _operations() -> None:
    x = weight = torch.ones(4, requires_grad=True)
    for _ in range(_OPERATIONS):
        x = x * weight
    torch.autograd.grad(x.sum(), weight)


def _loop() -> None:
    total = 0
    for number in range(100_000):
        total += number & 3


def _median(work: Callable[[], None]) -> float:
    took = []
    for _ in range(_TURNS):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return median(took[1:])
