"""Which machine suits a run best: every machine is judged, and whatever speaks against one is said.

`corral estimate` ranks machines by it. Placement is the server's: of the hosts that fit a run, the first that
is free takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.recipes.forecast import Forecast, forecast
from corral.recipes.gpus import GpuFacts
from corral.recipes.models import ModelFacts
from corral.recipes.train_tables import DataFacts, Train

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that a run could take. `gpu` is None where it has none; a run uses one of its GPUs.

    `price_per_hour` is for the whole machine: 0 for one's own, None where it is not known. `setup_s` passes
    before a run can start there. `unavailable` says why it cannot be had now, or that nobody could ask.
    """

    name: str
    gpu: GpuFacts | None = None
    ram_bytes: int | None = None
    cores: int = 1
    price_per_hour: float | None = 0.0
    setup_s: float = 0.0
    unavailable: str | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    machine: Machine
    forecast: Forecast
    against: tuple[str, ...]

    @property
    def possible(self) -> bool:
        return not self.against

    @property
    def cost(self) -> float | None:
        return self.forecast.cost


def offers(
    train: Train,
    facts: ModelFacts,
    data: DataFacts | None,
    machines: Sequence[Machine],
) -> list[Offer]:
    """All machines, best first: those that can do it by what the whole run costs there, setup included, then
    by time; then those that cannot, each with every reason."""
    found = []
    for machine in machines:
        said = forecast(
            train,
            facts,
            machine.gpu,
            data,
            cores=machine.cores,
            ram_bytes=machine.ram_bytes,
            price_per_hour=machine.price_per_hour,
            machine_setup_s=machine.setup_s,
        )
        found.append(Offer(machine, said, tuple(_against(train, machine, said))))
    return sorted(found, key=_rank)


def _rank(offer: Offer) -> tuple[bool, bool, float, float, str]:
    # An unknown price may be any price, so it comes after all that are known.
    cost = offer.cost
    return (not offer.possible, cost is None, cost or 0.0, offer.forecast.total_s, offer.machine.name)


def _against(train: Train, machine: Machine, said: Forecast) -> list[str]:
    reasons = []
    gpu = machine.gpu
    if machine.unavailable:
        reasons.append(machine.unavailable)
    has = gpu.memory_bytes if gpu is not None else machine.ram_bytes
    if not said.fits and has is not None:
        reasons.append(f"needs {said.needed_bytes / _GIB:.1f} GiB of memory, has {has / _GIB:.1f}")
    if gpu is not None and gpu.capability < (8, 0) and train.precision != "fp32":
        reasons.append(f"{gpu.name} has no bf16")
    return reasons
