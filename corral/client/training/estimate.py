"""What a training run will need, take and cost on each machine that could run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Literal

from corral.client.training.placement import ForecastSubject, card_as_host, gpu_of
from corral.domain.hosts.capability import judge
from corral.recipes import gpus as cards
from corral.recipes.forecast import Forecast
from corral.recipes.offers import Machine, Offer, offers
from corral.wire.hosts import HostView
from corral.wire.runs import HostVerdict
from corral.wire.spec.run_file import RunSpec

# Of a group with more kinds of runs than this, the first ones stand for all.
MOST_KINDS = 32
# What passes until a rented machine has started and fetched what it needs.
RENTED_SETUP_S = 180.0
NOT_RENTED = "Corral does not rent machines yet"


@dataclass(frozen=True)
class MachineEstimate:
    """One machine. Of several runs `forecast` is that of the one that needs most memory."""

    name: str
    kind: Literal["host", "card"]
    gpu: str | None
    against: tuple[str, ...]
    price_per_hour: float | None
    price_from: str | None
    total_s: float
    cost: float | None
    forecast: Forecast

    @property
    def possible(self) -> bool:
        return not self.against

    def table(self) -> dict[str, Any]:
        """For JSON. Times and costs are those of all runs together."""
        forecast = self.forecast.to_table()
        return {**vars(self), "against": list(self.against), "possible": self.possible, "forecast": forecast}


@dataclass(frozen=True)
class Estimate:
    """`machines` best first, hosts before cards; `taken` is the name of the one that the run would go to."""

    runs: int
    machines: Sequence[MachineEstimate]
    taken: str | None
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class FleetSnapshot:
    """What the server says of its hosts, with the reasons by which it places; empty without a server."""

    hosts: Sequence[HostView] = ()
    placements: Sequence[HostVerdict] = ()

    def against(self) -> Mapping[str, tuple[str, ...]]:
        return {found.host: tuple(found.reasons) for found in self.placements}


def estimate_machines(
    subjects: Sequence[ForecastSubject], spec: RunSpec, known: FleetSnapshot, *, today: date
) -> Estimate:
    """`subjects` are the runs of a group, `spec` the first of them with its resources settled."""
    kinds = _kinds(subjects)
    machines, kept, dropped = _machines(spec, known, today=today), kinds[:MOST_KINDS], kinds[MOST_KINDS:]
    found = [
        _judged(machine, [(_offer(subject, machine), count) for subject, count in kept])
        for machine in machines
    ]
    hosts = sorted((one for one in found if one.kind == "host"), key=_rank)
    rest = sorted((one for one in found if one.kind == "card"), key=_rank)
    notes = tuple(dict.fromkeys(note for one in (*hosts, *rest)[:1] for note in one.forecast.notes))
    if dropped:
        notes += (f"{len(dropped)} kinds of runs more are not in it",)
    taken = next((one.name for one in hosts if one.possible), None)
    return Estimate(len(subjects), [*hosts, *rest], taken, notes)


@dataclass(frozen=True)
class _Candidate:
    machine: Machine
    kind: Literal["host", "card"]
    against: tuple[str, ...]
    price_from: str | None = None


def _kinds(subjects: Sequence[ForecastSubject]) -> list[tuple[ForecastSubject, int]]:
    """Runs that differ in their seeds alone share one subject."""
    counted: dict[int, tuple[ForecastSubject, int]] = {}
    for subject in subjects:
        first, count = counted.get(id(subject), (subject, 0))
        counted[id(subject)] = (first, count + 1)
    return list(counted.values())


def _machines(spec: RunSpec, known: FleetSnapshot, *, today: date) -> list[_Candidate]:
    need = spec.requirements()
    against = known.against()
    found = [
        _Candidate(
            Machine(
                name=host.name,
                gpu=gpu_of(host, need),
                ram_bytes=host.capability.ram_bytes if host.capability else None,
                cores=(host.capability.cores if host.capability else None) or 1,
            ),
            "host",
            against.get(host.name, ()),
        )
        for host in known.hosts
        if host.run_id is None
    ]
    if need.gpus == 0 and "gpus" in spec.resources.model_fields_set:
        return found
    # Whatever a rented machine lacks beside its card can be asked for.
    wished = replace(need, gpus=1, engine=False, hosts=())
    for card in cards.catalogue().values():
        price = card.cheapest
        lacks = judge(wished, card_as_host(card, wished), host=card.id).shortfalls
        pinned = (f"the run allows only {', '.join(need.hosts)}",) if need.hosts else ()
        machine = Machine(
            card.name,
            card,
            price_per_hour=price.per_hour if price else None,
            setup_s=RENTED_SETUP_S,
        )
        said = price.describe(today) if price else None
        found.append(_Candidate(machine, "card", (*pinned, *lacks, NOT_RENTED), said))
    return found


def _offer(subject: ForecastSubject, candidate: _Candidate) -> Offer:
    (offer,) = offers(subject.train, subject.facts, subject.data, [candidate.machine])
    return offer


def _judged(candidate: _Candidate, found: Sequence[tuple[Offer, int]]) -> MachineEstimate:
    machine = candidate.machine
    worst = max((offer for offer, _ in found), key=lambda offer: offer.forecast.peak_bytes)
    costs = [None if offer.cost is None else offer.cost * count for offer, count in found]
    reasons = [reason for offer, _ in found for reason in offer.against]
    return MachineEstimate(
        name=machine.name,
        kind=candidate.kind,
        gpu=machine.gpu.name if machine.gpu else None,
        forecast=worst.forecast,
        against=tuple(dict.fromkeys([*reasons, *candidate.against])),
        price_per_hour=machine.price_per_hour,
        price_from=candidate.price_from,
        total_s=sum(offer.forecast.total_s * count for offer, count in found),
        cost=None if None in costs else sum(cost for cost in costs if cost is not None),
    )


def _rank(one: MachineEstimate) -> tuple[bool, bool, bool, float, float, str]:
    """By what the whole costs, setup included, then by time; an unknown price comes last."""
    fits = one.forecast.fits
    return not one.possible, not fits, one.cost is None, one.cost or 0.0, one.total_s, one.name
