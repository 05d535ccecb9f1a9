"""What an executor costs, as its operator says. What nobody said is unknown, never nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from corral.domain.errors import FieldError
from corral.domain.hosts.capability import Requirements

PER_HOUR = "price_per_hour"
PER_GPU_HOUR = "price_per_gpu_hour"
# The options of an executor, of any kind, that say what it costs.
PRICES = (PER_HOUR, PER_GPU_HOUR)
# In dollars; a number of hundreds of digits is a slip, and no float.
_MOST = 1_000_000
# In a table of GPU models, for every model.
_ANY = ""
_WORD = re.compile(r"[a-z0-9]+")


class ExecutorPrice(NamedTuple):
    """In dollars: of a worker whatever it has, and beside that of each of its GPUs, by model."""

    per_hour: float | None
    per_gpu_hour: Mapping[str, float]


class GpuRate(NamedTuple):
    """What one worker costs in an hour, with GPUs of this model; None for one without, or of any model."""

    model: str | None
    per_hour: float


def read_price(options: Mapping[str, object]) -> ExecutorPrice:
    """Of options that were checked when the executor was added."""
    per_hour, per_gpu = options.get(PER_HOUR), options.get(PER_GPU_HOUR)
    table: Mapping[str, float] = {}
    if isinstance(per_gpu, Mapping):
        table = {str(model): float(price) for model, price in per_gpu.items()}
    elif isinstance(per_gpu, int | float):
        table = {_ANY: float(per_gpu)}
    return ExecutorPrice(float(per_hour) if isinstance(per_hour, int | float) else None, table)


def price_faults(options: Mapping[str, object]) -> list[FieldError]:
    """What is wrong with the prices among the options."""
    found = []
    if PER_HOUR in options and not _is_price(options[PER_HOUR]):
        found.append(FieldError(PER_HOUR, "is not a number of dollars, 0 or more"))
    per_gpu = options.get(PER_GPU_HOUR, 0)
    if isinstance(per_gpu, Mapping):
        found += [
            FieldError(f"{PER_GPU_HOUR}.{model}", "is not a number of dollars, 0 or more")
            for model, price in per_gpu.items()
            if not model or not _is_price(price)
        ]
    elif not _is_price(per_gpu):
        found.append(FieldError(PER_GPU_HOUR, "is neither a number of dollars nor a table of them by GPU"))
    return found


def _is_price(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST


def rates(price: ExecutorPrice, need: Requirements) -> list[GpuRate]:
    """What a worker for one rank may cost there, for each GPU model that it may get; empty is unknown."""
    base = price.per_hour
    if not need.wants_gpu or not price.per_gpu_hour:
        return [] if base is None else [GpuRate(None, base)]
    return [
        GpuRate(model or None, (base or 0.0) + need.gpus * each)
        for model, each in price.per_gpu_hour.items()
        if model == _ANY or not need.gpu or any(is_same_gpu(model, wanted) for wanted in need.gpu)
    ]


def is_same_gpu(one: str, other: str) -> bool:
    """By whole words: `H100` is also `NVIDIA H100 80GB`, and `A10` is not `A100`."""
    first, second = (set(_WORD.findall(name.lower())) for name in (one, other))
    return first <= second or second <= first


def price_of(price: ExecutorPrice, need: Requirements, ranks: int) -> float | None:
    """Of all ranks in an hour. Where several GPU models may be given, the dearest counts."""
    dearest = max((rate.per_hour for rate in rates(price, need)), default=None)
    return None if dearest is None else dearest * ranks
