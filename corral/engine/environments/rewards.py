"""Makes one number, and named ones, out of whatever a reward function returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from corral.engine.environments.protocol import Score

_TOTALS = ("reward", "score", "total")


class BadReward(ValueError):
    """What a reward function returned is no reward."""


def number(value: object, what: str) -> float:
    """A finite float. A bool counts as 0 or 1; a NumPy or torch scalar is a number; a string never is."""
    if isinstance(value, str | bytes):
        raise BadReward(f"{what} is the string {str(value)[:80]!r}, not a number")
    if value is None:
        raise BadReward(f"{what} is None: it does not apply to this sample")
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        # RuntimeError is torch's for a tensor with several elements.
        raise BadReward(f"{what} is {_shown(value)}, not a number") from None
    if not math.isfinite(result):
        raise BadReward(f"{what} is {result}")
    return result


def score(value: object, weights: Mapping[str, float], *, name: str = "reward") -> Score:
    """Take a number, a mapping of named parts, or an object with `score` or `reward`.

    A mapping with `reward` in it gives the total there, the others are for show. Without, the total is the
    sum of the parts times their weights, 1 where none is named; a part that is None does not apply.
    """
    if isinstance(value, Mapping):
        return _of_parts(value, weights, name)
    for attribute in _TOTALS:
        if not isinstance(value, int | float) and hasattr(value, attribute):
            return _of_object(value, attribute, name)
    return Score(number(value, name))


def _of_parts(parts: Mapping[Any, Any], weights: Mapping[str, float], name: str) -> Score:
    known = {str(part): value for part, value in parts.items() if value is not None}
    metrics = {part: number(value, f"{name}[{part!r}]") for part, value in known.items()}
    if "reward" in metrics:
        return Score(metrics.pop("reward"), metrics)
    if not metrics:
        raise BadReward(f"{name} has no part that applies to this sample: {_shown(dict(parts))}")
    return Score(math.fsum(weights.get(part, 1.0) * value for part, value in metrics.items()), metrics)


def _of_object(value: object, attribute: str, name: str) -> Score:
    """Flash's RewardResult and its like: a total, `metrics` by name or as objects, `error` if it failed."""
    if error := getattr(value, "error", None):
        raise BadReward(f"{name} failed: {str(error)[:300]}")
    found = getattr(value, "metrics", None) or {}
    if not isinstance(found, Mapping):
        found = {
            str(getattr(m, "name", f"metric_{i}")): getattr(m, "score", None) for i, m in enumerate(found)
        }
    metrics = {
        str(part): number(part_value, f"{name} metric {part!r}")
        for part, part_value in found.items()
        if part_value is not None
    }
    return Score(number(getattr(value, attribute), name), metrics)


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:120]
