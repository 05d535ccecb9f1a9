"""A text model that replicas train apart is nearly as good as one that is trained in one place."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from repo.sources import ROOT

sys.path.insert(0, str(ROOT))

from bench.diloco.quality import INNER_STEPS, ROWS, STEPS
from bench.diloco.text_model import OUTER, Task, data_parallel, replicas


def test_four_replicas_learn_text_beside_data_parallel_on_the_same_tokens(tmp_path: Path) -> None:
    """DL-C28, DL-D42, DL-D43: on text held out, with int4 payloads, and better than one of them alone.

    One seed of three: `python -m bench diloco_quality` has them all.
    """
    task = Task(steps=STEPS, rows=ROWS, seed=0)
    together = data_parallel(task, STEPS)
    alone = data_parallel(Task(steps=STEPS, rows=ROWS, seed=0, replicas=1), STEPS)
    options = {"inner_steps": INNER_STEPS, "lr": OUTER[0], "momentum": OUTER[1], "compress": "int4"}

    found = replicas(task, tmp_path, options)

    for one in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(one.weights, found[0].weights, strict=True))
    assert found[0].loss < 1.03 * together.loss
    assert found[0].loss < alone.loss
    # It has learned, and not just stayed where it began.
    assert found[0].loss < 0.8 * found[0].curve[0][1]
