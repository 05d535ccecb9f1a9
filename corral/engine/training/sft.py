"""Supervised fine-tuning: the weighted mean of -logprob over the tokens of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from corral.engine.data.row_order import RowOrder
from corral.engine.data.sequences import Example
from corral.engine.engine import Engine
from corral.engine.training import advantages, losses
from corral.engine.training.evaluation import Evaluation, interval
from corral.engine.training.training_run import TrainingRun

Row = tuple[Sequence[int], Sequence[float]]

# Rows of one evaluation that are scored together: enough to fill packs, few enough to hold in memory.
_TOGETHER = 64


def run(training: TrainingRun, rows: Sequence[Row], order: RowOrder) -> None:
    """Train on `rows` from wherever the training stands to its end."""
    train = training.train
    loss = losses.make(train)
    share = training.share
    # Epochs end where they end: the last batch may be smaller. Of several replicas some would have none.
    stop = None if train.epochs is None or share.of > 1 else order.rows(train.epochs)

    def batch_of(step: int) -> list[Example]:
        if step >= training.total:
            return []
        places = order.batch(share.batch_of(step), train.batch_size, stop=stop)
        return advantages.supervised([rows[place] for place in places])

    batch = batch_of(training.done)
    training.meter.begin()
    while (step := training.done) < training.total:
        rate = training.rate_at(step)
        with training.stop.interruptible():
            seen = training.gradients(batch, loss)
        norm = training.apply(rate)
        # While the device works.
        batch = batch_of(step + 1)
        numbers = training.read(seen, norm)
        training.meter.count(seen.tokens)
        metrics = {"loss": numbers["loss"], "grad_norm": numbers["grad_norm"], "lr": rate}
        training.close({**metrics, "tokens": float(seen.tokens)})
        if training.done != step + 1:
            batch = batch_of(training.done)


def held_out_loss(engine: Engine, rows: Sequence[Row], step: int) -> Evaluation:
    """The mean of -logprob over the weighted tokens of rows that were not trained on."""
    values, weights = [], []
    for start in range(0, len(rows), _TOGETHER):
        some = [rows[place] for place in range(start, min(start + _TOGETHER, len(rows)))]
        found = engine.logprobs([Example(tokens, {}) for tokens, _ in some])
        for (_, column), logprobs in zip(some, found, strict=True):
            if weight := math.fsum(column):
                values.append(-math.fsum(w * p for w, p in zip(column, logprobs, strict=True)) / weight)
                weights.append(weight)
    return Evaluation(step, "eval_loss", interval(values, weights), values, weights=weights)
