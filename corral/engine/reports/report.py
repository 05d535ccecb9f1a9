"""What a run leaves for people: metrics, samples, settings asked and in effect, forecast against actual."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from corral.engine.training.evaluation import Evaluation, Interval, change

# Rows of rollouts that stay in memory and in the artifact; the oldest give way.
SAMPLES_MAX = 20_000
TEXT_MAX_CHARS = 8_000
_MARKS = "▁▂▃▄▅▆▇█"

Row = Mapping[str, Any]


@dataclass
class RunRecord:
    """Everything that was said so far. It travels in each checkpoint, so a resumed run reports the whole."""

    history: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.history.append({"step": step, **metrics})

    def sample(self, rows: Iterable[Row]) -> None:
        self.samples += rows
        del self.samples[:-SAMPLES_MAX]

    def rewind(self, step: int) -> None:
        """Forget what was said of later steps: they are done again."""
        self.history = [row for row in self.history if row["step"] <= step]
        self.evaluations = [one for one in self.evaluations if one.step <= step]
        self.samples = [row for row in self.samples if row.get("step", 0) <= step]

    def series(self, name: str) -> list[float]:
        return [row[name] for row in self.history if name in row]

    def save(self, folder: Path) -> None:
        folder.mkdir()
        write_lines(folder / "history.jsonl", self.history)
        write_lines(folder / "evaluations.jsonl", map(asdict, self.evaluations))
        write_lines(folder / "samples.jsonl", self.samples)
        write_lines(folder / "notes.jsonl", ({"note": text} for text in self.notes))

    @classmethod
    def load(cls, folder: Path) -> RunRecord:
        evaluations = [
            Evaluation(**{**row, "interval": Interval(**row["interval"])})
            for row in read_lines(folder / "evaluations.jsonl")
        ]
        return cls(
            history=read_lines(folder / "history.jsonl"),
            evaluations=evaluations,
            samples=list(read_lines(folder / "samples.jsonl")),
            notes=[row["note"] for row in read_lines(folder / "notes.jsonl")],
        )


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(_plain(row), ensure_ascii=False, allow_nan=False) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(text) for text in file]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def write_metrics(path: Path, record: RunRecord, *, headline: str, best_step: int | None) -> None:
    """`metrics.json`: the last values, evaluations with their intervals, the change, and every step."""
    last = record.history[-1] if record.history else {}
    said: dict[str, Any] = {
        "headline": headline,
        "steps": int(last.get("step", 0)),
        "last": last,
        "best_step": best_step,
        "evaluations": [_evaluation(e) for e in record.evaluations],
        "changes": [
            {"metric": first.metric, **asdict(change(first, last))}
            for first, last in first_and_last(record.evaluations)
        ],
        "notes": record.notes,
        "history": record.history,
    }
    write_json(path, said)


def first_and_last(evaluations: Sequence[Evaluation]) -> list[tuple[Evaluation, Evaluation]]:
    """The pairs that show what training did: of each metric the first and the last over the same rows."""
    pairs = []
    for metric in dict.fromkeys(e.metric for e in evaluations):
        first, *_, last = [e for e in evaluations if e.metric == metric] * 2
        if first.step != last.step and len(first.values) == len(last.values):
            pairs.append((first, last))
    return pairs


def settings(asked: Mapping[str, Any], in_effect: Mapping[str, Any]) -> dict[str, Any]:
    """Each setting as asked and as in effect; `changed` names those that differ, as `auto` does."""
    changed = sorted(key for key, value in asked.items() if in_effect.get(key) != value)
    return {"asked": dict(asked), "in_effect": dict(in_effect), "changed": changed}


def forecast_record(forecast: Mapping[str, Any] | None, actual: Mapping[str, Any]) -> dict[str, Any]:
    """Forecast beside actual, with the relative error where both are known: (forecast - actual) / actual."""
    errors: dict[str, float | None] = {}
    for key in ("peak_bytes", "step_s", "total_s", "setup_s"):
        said, was = (forecast or {}).get(key), actual.get(key)
        both = isinstance(said, int | float) and isinstance(was, int | float)
        errors[key] = (said - was) / was if both and said is not None and was else None
    return {"forecast": forecast, "actual": dict(actual), "error": errors}


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The shape of a series on one line; each mark is the mean of its share of the points."""
    means = _shares(values, width)
    if not means:
        return ""
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_MARKS[round((mean - low) / span * (len(_MARKS) - 1))] for mean in means)


def plot(name: str, values: Sequence[float], *, width: int = 60, height: int = 8) -> str:
    """A curve for a terminal, with the value at the top and the bottom and the steps below."""
    means = _shares(values, width)
    if not means:
        return f"{name}: nothing to show"
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    rows = [round((mean - low) / span * (height - 1)) for mean in means]
    lines = [name]
    for row in reversed(range(height)):
        label = f"{low + span * row / (height - 1):>10.4g}" if row in (0, height - 1) else " " * 10
        lines.append(f"{label} |" + "".join("*" if mark == row else " " for mark in rows).rstrip())
    lines.append(f"{'':>10} +{'-' * len(means)}")
    lines.append(f"{'':>12}{'1':<{max(len(means) - len(str(len(values))), 1)}}{len(values)}")
    return "\n".join(lines)


def summary(record: RunRecord, headline: str) -> list[str]:
    """The end of a run in a few lines: the curve, and the evaluations before and after."""
    lines = []
    if series := record.series(headline):
        lines.append(plot(headline, series))
        lines.append(f"{headline}: {series[0]:.4f} -> {series[-1]:.4f}  {sparkline(series)}")
    for first, last in first_and_last(record.evaluations):
        difference = change(first, last).over(last.unit)
        lines.append(f"{first.metric} before training: {first}")
        lines.append(f"{last.metric} after {last.step} steps: {last}; change: {difference}")
    return lines


def shorten(text: str) -> str:
    return text if len(text) <= TEXT_MAX_CHARS else text[: TEXT_MAX_CHARS - 3] + "..."


def _shares(values: Sequence[float], width: int) -> list[float]:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return []
    count = min(width, len(finite))
    edges = [len(finite) * index // count for index in range(count + 1)]
    return [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    said = asdict(evaluation)
    # One number per row is for comparing, not for reading.
    said.pop("weights")
    return said


def _plain(value: Any) -> Any:
    """As JSON can hold it: what is not finite is null, keys are text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
