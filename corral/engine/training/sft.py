"""Supervised fine-tuning: the weighted mean of -logprob over the tokens of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from corral.engine.data.order import Order
from corral.engine.data.sequences import Example
from corral.engine.engine import Engine
from corral.engine.training import advantages, losses
from corral.engine.training.course import Course, learning_rate
from corral.engine.training.evaluate import Evaluation, interval

Row = tuple[Sequence[int], Sequence[float]]

# Rows of one evaluation that are scored together: enough to fill packs, few enough to hold in memory.
_TOGETHER = 64


def run(course: Course, rows: Sequence[Row], order: Order) -> None:
    """Train on `rows` from wherever the course stands to its end."""
    train = course.train
    loss = losses.make(train)
    # Epochs end where they end: the last batch may be smaller.
    stop = None if train.epochs is None else order.rows(train.epochs)

    def batch_of(step: int) -> list[Example]:
        places = order.batch(step, train.batch_size, stop=stop) if step < course.total else []
        return advantages.supervised([rows[place] for place in places])

    batch = batch_of(course.done)
    course.meter.begin()
    for step in range(course.done, course.total):
        rate = learning_rate(
            step, course.total, peak=course.rate, schedule=train.schedule, warmup=train.warmup
        )
        with course.stop.interruptible():
            seen = course.gradients(batch, loss)
        norm = course.apply(rate)
        # While the device works.
        batch = batch_of(step + 1)
        numbers = course.read(seen, norm)
        course.meter.count(seen.tokens)
        metrics = {"loss": numbers["loss"], "grad_norm": numbers["grad_norm"], "lr": rate}
        course.close({**metrics, "tokens": float(seen.tokens)})


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
