"""How a training run stands: one line while it runs, and the curve of a metric."""

from __future__ import annotations

from corral.cli.display import render
from corral.cli.display.chart import chart
from corral.client.corral import Corral
from corral.wire.runs import RunView

# The first that a run has is what people watch.
HEADLINES = ("reward", "loss")


def headline(run: RunView) -> str | None:
    return next((name for name in HEADLINES if name in run.metrics), None)


def standing(run: RunView) -> list[str]:
    """`loss 1.234`, `36.8k tok/s`, `MFU 41%`, `32.5 GiB`: what of it is known."""
    said: list[str] = []
    if name := headline(run):
        said.append(f"{name} {run.metrics[name]:.4g}")
    if (speed := run.metrics.get("tokens_per_s")) is not None:
        said.append(f"{thousands(speed)} tok/s")
    if (mfu := run.metrics.get("mfu")) is not None:
        said.append(f"MFU {mfu:.0%}")
    if (memory := run.metrics.get("memory_gib")) is not None:
        said.append(render.size(int(memory * (1 << 30))) or "")
    phase = run.progress.get("phase")
    return said + ([phase] if isinstance(phase, str) and (not said or phase != "training") else [])


def thousands(value: float) -> str:
    """`980`, `36.8k`, `1.2M`."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def plot(corral: Corral, run_id: str, name: str) -> list[str]:
    """One metric over the steps. Where an attempt repeats steps of one before, the last word counts."""
    points: dict[float, float] = {}
    for number, point in enumerate(corral.runs.iter_metrics(run_id, name=name)):
        points[float(number if point.step is None else point.step)] = point.value
    return chart(name, sorted(points.items()))
