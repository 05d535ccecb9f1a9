"""Metrics of a run: how many are kept with it, and whether a small or a large value is good."""

from __future__ import annotations

import re
from typing import Literal

Better = Literal["min", "max"]
# So many of a run are kept with it, by name: lists of runs show them all.
MOST_METRICS = 1024

_SMALL = frozenset(
    {
        *("loss", "losses", "perplexity", "ppl", "nll", "bpb", "error", "err", "errors", "regret"),
        *("mse", "rmse", "mae", "mape", "wer", "cer", "fid", "latency"),
    }
)
_LARGE = frozenset(
    {
        *("reward", "rewards", "return", "score", "accuracy", "acc", "f1", "auc", "auroc", "map", "ndcg"),
        *("precision", "recall", "bleu", "rouge", "iou", "dice", "r2", "psnr", "success", "win", "pass"),
    }
)
_BREAK = re.compile(r"[^a-z0-9]+")


def better(metric: str) -> Better | None:
    """As its name tells; None where that says nothing: nobody knows which learning rate is the good one."""
    words = set(_BREAK.split(metric.lower()))
    if words & _SMALL:
        return "min"
    return "max" if words & _LARGE else None
