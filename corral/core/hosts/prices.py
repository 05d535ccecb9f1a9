"""What a run's time on a host costs: its share of the price that was declared for the host."""

from __future__ import annotations

from corral.core.queue.eligibility import declared_of, effective_of
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import effective_slots
from corral.domain.leases import Lease
from corral.domain.runs.runs import Run


def price_per_hour(host: Host, gpus: tuple[int, ...], gpu_bytes: int | None) -> float | None:
    """Of a lease on these GPUs, or on `gpu_bytes` of each; in dollars. None where no price was declared.

    Who has GPUs pays for these of all GPUs of the host, who has none for one of its slots.
    """
    declared = declared_of(host)
    if declared.price_per_hour is None:
        return None
    cards = effective_of(host).gpus or ()
    if not gpus or not cards:
        return declared.price_per_hour / max(1, effective_slots(host.slots, declared))
    memory = {card.index: card.memory_bytes for card in cards}
    held = sum(_part(gpu_bytes, memory.get(index)) for index in gpus)
    return declared.price_per_hour * held / len(cards)


def _part(held: int | None, whole: int | None) -> float:
    return 1.0 if held is None or not whole else min(1.0, held / whole)


def with_cost(run: Run, lease: Lease, ran_s: float) -> Run:
    """The run with what this time of the lease cost; once a part is unknown, so is the whole.

    `ran_s` is negative where time was counted too early. To be called before it is added to the run's own.
    """
    unknown = run.cost is None and run.ran_s > 0
    if unknown or lease.price_per_hour is None:
        return run if not ran_s else run._replace(cost=None)
    return run._replace(cost=max(0.0, (run.cost or 0.0) + lease.price_per_hour * ran_s / 3600))
