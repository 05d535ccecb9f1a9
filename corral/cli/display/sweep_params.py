"""The runs of a group, told apart by what was swept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.cli.display.run_values import train_settings
from corral.client.corral import Corral
from corral.wire.runs import RunView
from corral.wire.spec.run_file import RunSpec, Scalar

Params = Mapping[str, Mapping[str, Scalar]]
# A list of runs does not hold their params; each is one call more.
MOST_ASKED = 50


def swept_params(corral: Corral, runs: Sequence[RunView]) -> Params:
    """By run, the params in which the runs differ; nothing for a long list."""
    if len(runs) > MOST_ASKED:
        return {}
    found = {run.id: _settings(corral.runs.get(run.id).spec) for run in runs}
    return differing(found)


def _settings(spec: RunSpec) -> Mapping[str, Scalar]:
    """Params, and of a training run its own settings, which can be swept too."""
    own = train_settings(spec.train) if spec.train else {}
    scalars = {key: value for key, value in own.items() if isinstance(value, bool | int | float | str)}
    return {**spec.params, **scalars}


def differing(params: Mapping[str, Mapping[str, Scalar]]) -> Params:
    values: dict[str, set[object]] = {}
    for each in params.values():
        for key, value in each.items():
            values.setdefault(key, set()).add((type(value), value))
    swept = {key for key, seen in values.items() if len(seen) > 1}
    return {run: {key: each[key] for key in each if key in swept} for run, each in params.items()}


def in_order(runs: Sequence[RunView], params: Params) -> list[RunView]:
    """The newest first; what was submitted at once by params, then by seed."""

    def place(run: RunView) -> tuple[float, list[tuple[str, bool, float, str]], int]:
        swept = [_rank(key, value) for key, value in params.get(run.id, {}).items()]
        return -run.created_at, swept, run.seed or 0

    return sorted(runs, key=place)


def _rank(key: str, value: Scalar) -> tuple[str, bool, float, str]:
    """Numbers by their size and before text."""
    return (key, True, 0.0, value) if isinstance(value, str) else (key, False, float(value), "")
