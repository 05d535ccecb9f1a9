"""How many instances the calls of a pool ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from corral.domain.endpoints import ScalingRule


@dataclass(frozen=True)
class EndpointLoad:
    """The calls of one pool: how many wait and run, how long the first has waited, and its instances."""

    waiting: int
    waited_s: float
    running: int
    instances: int
    # Instances that have not asked for calls yet.
    starting: int


def desired(load: EndpointLoad, rule: ScalingRule) -> int:
    """How many instances the pool should have now. It never asks for fewer: idle ones end by themselves."""
    want = max(load.instances, rule.min)
    if load.waiting and not load.instances:
        want = max(want, 1)
    # Instances that are starting will take some of the calls.
    missing = load.waiting - load.starting * rule.concurrency
    if rule.per_instance is not None:
        want = max(want, math.ceil((load.waiting + load.running) / rule.per_instance))
    elif rule.queue_delay_s is not None and missing > 0 and load.waited_s >= rule.queue_delay_s:
        want = max(want, load.instances + max(1, math.ceil(missing / rule.concurrency / 2)))
    return min(want, max(rule.max, rule.min))
