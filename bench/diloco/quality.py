"""How well a text model learns by replicas that meet in a folder, beside data parallel on the same tokens."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bench.diloco.picture import draw
from bench.diloco.text_model import OUTER, Task, Trained, data_parallel, replicas
from bench.options import Options
from bench.processes import folder
from bench.report import Figure, Result, Table

NAME = "diloco_quality"
SEEDS = (0, 1, 2)
STEPS, ROWS = 200, 512
INNER_STEPS = 10
TARGETS = {"none": 0.02, "int4": 0.03}
PICTURES = Path(__file__).parents[2] / "docs" / "images"
METHOD = (
    "A model that guesses a byte from the eight before it learns Python's own help (pydoc_data.topics), "
    "the last tenth of which is held out. Data parallel is one process on whole batches; of four "
    "replicas each has a quarter of every batch, from a quarter of the text that is its own, and an "
    "OuterLoop; all have the same tokens, AdamW and schedule.",
    "Replicas are threads that meet in a folder. Losses are in nats for each byte, held out, of the "
    "model that all have after the last round. `alone` has batches of one replica, drawn from the whole "
    "text: a quarter of the tokens.",
)


def measure(options: Options) -> Result:
    torch.set_num_threads(1)
    result = Result(NAME, "Four replicas beside data parallel", METHOD)
    steps, seeds = (20, SEEDS[:1]) if options.quick else (STEPS, SEEDS)
    kept: dict[str, list[Trained]] = {}
    with folder() as root:
        for seed in seeds:
            task = Task(steps=steps, rows=ROWS, seed=seed)
            kept.setdefault("data parallel", []).append(data_parallel(task, INNER_STEPS))
            for compression in TARGETS:
                kept.setdefault(compression, []).append(_apart(task, root, {"compress": compression}))
        task = Task(steps=steps, rows=ROWS, seed=0)
        alone = data_parallel(Task(steps=steps, rows=ROWS, seed=0, replicas=1), INNER_STEPS)
        swept = {
            f"H = {inner}, lr {lr:g}, momentum {momentum:g}": _apart(
                task, root, {"inner_steps": inner, "lr": lr, "momentum": momentum}
            )
            for inner, lr, momentum in ([] if options.quick else SWEEP)
        }
    _tell(result, kept, seeds)
    _sweep(result, kept, alone, swept)
    if not options.quick:
        _draw(kept, alone)
    return result


# Around what was chosen, and what the papers have for long runs.
SWEEP = ((20, *OUTER), (10, 0.7, 0.9))


def _apart(task: Task, root: Path, options: Mapping[str, Any]) -> Trained:
    lr, momentum = OUTER
    said = {"inner_steps": INNER_STEPS, "lr": lr, "momentum": momentum, **options}
    name = "-".join(str(value) for value in (task.seed, *said.values()))
    found = replicas(task, root / name, said)
    for one in found[1:]:
        same = all(torch.equal(a, b) for a, b in zip(one.weights, found[0].weights, strict=True))
        assert same, "replicas ended with different weights"
    return found[0]


def _tell(result: Result, kept: Mapping[str, list[Trained]], seeds: tuple[int, ...]) -> None:
    parallel = [one.loss for one in kept["data parallel"]]
    rows = [["data parallel", *(f"{one:.4f}" for one in parallel), ""]]
    for compression, target in TARGETS.items():
        more = [one.loss / beside - 1 for one, beside in zip(kept[compression], parallel, strict=True)]
        what = f"held-out loss of four replicas, {compression}, worst of {len(seeds)} seeds"
        measured = f"{max(more):+.2%}"
        result.figures.append(
            Figure(what, measured, f"within {target:.0%} of data parallel", max(more) <= target)
        )
        losses = [f"{one.loss:.4f}" for one in kept[compression]]
        rows.append([f"four replicas, {compression}", *losses, f"{statistics.mean(more):+.2%}"])
        result.data[compression] = [one.curve for one in kept[compression]]
    result.data["data parallel"] = [one.curve for one in kept["data parallel"]]
    headers = ("way", *(f"seed {seed}" for seed in seeds), "mean of more")
    result.details.append(
        Table(headers, rows, f"H = {INNER_STEPS}, outer lr {OUTER[0]:g}, momentum {OUTER[1]:g}")
    )


def _sweep(
    result: Result, kept: Mapping[str, list[Trained]], alone: Trained, swept: Mapping[str, Trained]
) -> None:
    beside = kept["data parallel"][0].loss
    named = {"data parallel": kept["data parallel"][0], "alone": alone}
    named |= {f"H = {INNER_STEPS}, lr {OUTER[0]:g}, momentum {OUTER[1]:g}": kept["none"][0], **swept}
    rows = [[name, f"{one.loss:.4f}", f"{one.loss / beside - 1:+.2%}"] for name, one in named.items()]
    result.details.append(Table(("way", "held-out loss", "more"), rows, "Seed 0, no compression"))
    result.data["sweep"] = {name: one.loss for name, one in named.items()}


def _draw(kept: Mapping[str, list[Trained]], alone: Trained) -> None:
    names = {"data parallel": "data parallel", "none": "four replicas", "int4": "four replicas, int4"}
    curves = {said: _mean(kept[name]) for name, said in names.items()}
    curves["one of them alone, without the others"] = [(4 * at, loss) for at, loss in alone.curve]
    drawn = draw(
        "A text model: loss on text that was held out",
        {name: curve[1:] for name, curve in curves.items()},
        across="tokens of all four together",
        up="nats per byte",
    )
    (PICTURES / "diloco-quality.svg").write_text(drawn, encoding="utf-8")


def _mean(found: list[Trained]) -> list[tuple[float, float]]:
    """Of the seeds."""
    return [
        (points[0][0], statistics.mean(loss for _, loss in points))
        for points in zip(*(one.curve for one in found), strict=True)
    ]
