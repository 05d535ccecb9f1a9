"""What a training run asks of a machine: the forecast becomes requirements, so that placement goes by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from corral.client.training.dataset import DataAmount
from corral.domain.hosts.capability import CHEAPEST, Capability, Gpu, Requirements, fitting_gpus, judge
from corral.recipes import gpus as cards
from corral.recipes.forecast import forecast, forecast_plan
from corral.recipes.forecast_case import Device, ForecastCase
from corral.recipes.gpus import GpuFacts
from corral.recipes.memory_plan import smallest
from corral.recipes.models import ModelFacts
from corral.recipes.train_tables import DataFacts, Train
from corral.wire.hosts import HostView
from corral.wire.spec.tables import PlacementTable, Resources

# Bytes of text in a token: for large vocabularies on prose, code has fewer.
_BYTES_PER_TOKEN = 4.0
_BYTES_PER_TOKEN_LEAST = 3.0
# Below this a vocabulary is one of bytes.
_BYTE_VOCABULARY = 1000
# What a chat template puts around the messages of a row.
_TEMPLATE_TOKENS = 16


@dataclass(frozen=True)
class ForecastSubject:
    """A run whose needs are asked for."""

    train: Train
    facts: ModelFacts
    data: DataFacts


def data_facts(amount: DataAmount | None, facts: ModelFacts | None, train: Train) -> DataFacts:
    """Tokens guessed from bytes; exact ones are the engine's, which has the tokenizer."""
    if amount is None or amount.rows is None:
        return DataFacts()
    by_bytes = facts is not None and facts.vocab < _BYTE_VOCABULARY
    usual, least = (1.0, 1.0) if by_bytes else (_BYTES_PER_TOKEN, _BYTES_PER_TOKEN_LEAST)
    longest = int(amount.longest_bytes / least) + _TEMPLATE_TOKENS
    return DataFacts(
        rows=amount.rows,
        tokens=int(amount.text_bytes / usual) + _TEMPLATE_TOKENS * amount.rows,
        longest=min(longest, train.max_length),
    )


def least_vram(subject: ForecastSubject) -> int:
    """Bytes that a GPU must have in all for the run to fit, however slowly."""
    # Which card it is makes no difference to how much is needed.
    any_card = next(iter(cards.catalogue().values()))
    case = ForecastCase(subject.train, subject.facts, Device(any_card), subject.data)
    return forecast_plan(case, smallest(case)).needed_bytes


def with_model(asked: Resources, disk_bytes: int | None) -> Resources:
    """What a training run asks of a disk, with the room that its model takes there, where that is known."""
    if disk_bytes is None:
        return asked
    return asked.model_copy(update={"min_disk": (asked.min_disk or 0) + disk_bytes})


def settled(
    asked: Resources, subject: ForecastSubject | None, hosts: Iterable[HostView], *, engine: bool
) -> Resources:
    """What the user left open is filled in: whether it takes a GPU, and how much memory that must have.

    Without a word about `gpus` it takes one where a living host has one that it fits, else it goes to a CPU.
    `engine` is whether the host must bring the training engine.
    """
    if subject is None:
        return asked
    least = least_vram(subject)
    if asked.prefer is not None:
        # Where it gets one, that must be large enough; where it gets none, it goes without.
        return asked if asked.min_vram is not None else asked.model_copy(update={"min_vram": least})
    if "gpus" not in asked.model_fields_set:
        need = replace(asked.requirements(), gpus=1, min_vram_bytes=least, engine=engine)
        if not any(could_take(host, need) for host in hosts):
            return asked
        asked = asked.model_copy(update={"gpus": 1})
    if asked.gpus and asked.min_vram is None:
        asked = asked.model_copy(update={"min_vram": least})
    return asked


def with_forecast(asked: PlacementTable, subject: ForecastSubject | None) -> PlacementTable:
    """With how long the run takes on each card that it fits, where the cheapest executor is wanted."""
    if subject is None or CHEAPEST not in asked.executors or asked.forecast_s:
        return asked
    made = {
        card.id: forecast(subject.train, subject.facts, card, subject.data)
        for card in cards.catalogue().values()
    }
    return asked.model_copy(
        update={"forecast_s": {card: round(one.total_s, 1) for card, one in made.items() if one.fits}}
    )


def could_take(host: HostView, need: Requirements) -> bool:
    has = counts(host)
    if not host.alive or host.draining or host.set_aside_until is not None or has is None:
        return False
    return judge(need, has, host=host.name).eligible


def counts(host: HostView) -> Capability | None:
    """What of the host counts; an older server says only what it reports."""
    has = host.effective or host.capability
    return None if has is None else has.capability()


def gpu_of(host: HostView, need: Requirements) -> GpuFacts | None:
    """The card of the host that a run with this need would get; None for the CPU, or if it is not known."""
    has = counts(host)
    if has is None or not need.wants_gpu:
        return None
    # One that does not fit is shown too: its forecast says by how much.
    found: Sequence[Gpu] = fitting_gpus(need, has) or has.gpus or ()
    if not found:
        return None
    return cards.seen(found[0].name, found[0].memory_bytes, _version(found[0].compute_capability))


def card_as_host(card: GpuFacts, engine: Requirements) -> Capability:
    """A rented machine with one such card, as it would report itself; able to do what it is asked for."""
    major, minor = card.capability
    name = card.aliases[0] if card.aliases else card.name
    gpu = Gpu(0, name, memory_bytes=card.memory_bytes, compute_capability=f"{major}.{minor}")
    return Capability(
        hostname=card.id,
        os=engine.os or "linux",
        arch=engine.arch or "x86_64",
        cores=engine.min_cores,
        ram_bytes=engine.min_ram_bytes,
        disk_bytes=engine.min_disk_bytes,
        gpus=(gpu,),
        labels=engine.labels,
    )


def _version(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)
