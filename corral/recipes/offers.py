"""Which machine a run should take: every machine is judged, and whatever speaks against one is said.

`corral estimate` shows this list and placement takes its first, so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.recipes.calibration import Calibration
from corral.recipes.forecast import Forecast, forecast
from corral.recipes.gpus import GpuFacts
from corral.recipes.models import ModelFacts
from corral.recipes.train_tables import DataFacts, Train

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that a run could take. `gpu` is None where it has none; a run uses one of its `count` GPUs.

    `price_per_hour` is for the whole machine: 0 for one's own, None where it is not known. `setup_s` passes
    before a run can start there. `unavailable` says why it cannot be had now, or that nobody could ask.
    """

    name: str
    gpu: GpuFacts | None = None
    count: int = 1
    ram_bytes: int | None = None
    cores: int = 1
    price_per_hour: float | None = 0.0
    setup_s: float = 0.0
    unavailable: str | None = None


@dataclass(frozen=True, slots=True)
class MachineRequirements:
    """What the user asks of a machine: a card or machine by name, a limit of time, of money, of memory."""

    only: str | None = None
    deadline_s: float | None = None
    most_cost: float | None = None
    least_memory_bytes: int = 0


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
    *,
    wish: MachineRequirements | None = None,
    constants: Calibration | None = None,
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
            constants=constants,
        )
        found.append(
            Offer(machine, said, tuple(_against(train, machine, said, wish or MachineRequirements())))
        )
    return sorted(found, key=_rank)


def _rank(offer: Offer) -> tuple[bool, bool, float, float, str]:
    # An unknown price may be any price, so it comes after all that are known.
    cost = offer.cost
    return (not offer.possible, cost is None, cost or 0.0, offer.forecast.total_s, offer.machine.name)


def _against(train: Train, machine: Machine, said: Forecast, wish: MachineRequirements) -> list[str]:
    reasons = []
    gpu = machine.gpu
    if machine.unavailable:
        reasons.append(machine.unavailable)
    if wish.only is not None and not _named(machine, wish.only):
        reasons.append(f"it is not {wish.only}, which the run asks for")
    has = gpu.memory_bytes if gpu is not None else machine.ram_bytes
    if not said.fits and has is not None:
        reasons.append(f"needs {said.needed_bytes / _GIB:.1f} GiB of memory, has {has / _GIB:.1f}")
    if has is not None and has < wish.least_memory_bytes:
        reasons.append(
            f"has {has / _GIB:.1f} GiB of memory, and {wish.least_memory_bytes / _GIB:.1f} are asked for"
        )
    if gpu is not None and gpu.capability < (8, 0) and train.precision != "fp32":
        reasons.append(f"{gpu.name} has no bf16")
    if wish.deadline_s is not None and said.total_s > wish.deadline_s:
        reasons.append(f"takes {said.total_s / 3600:.2f} h, and {wish.deadline_s / 3600:.2f} h are allowed")
    if wish.most_cost is not None:
        if said.cost is None:
            reasons.append("its price is not known, and the cost is limited")
        elif said.cost > wish.most_cost:
            reasons.append(f"costs ${said.cost:.2f}, and ${wish.most_cost:.2f} are allowed")
    return reasons


def _named(machine: Machine, name: str) -> bool:
    wanted = name.lower()
    gpu = machine.gpu
    names = [machine.name, *((gpu.id, gpu.name, *gpu.aliases) if gpu else ("cpu",))]
    return wanted in (one.lower() for one in names)
