"""What an operator declares of a host: limits and policy. `corral.wire.hosts` reads it from a table.

The more restrictive of what the host reports and what is declared wins. A limit stands in for what the
host could not find out; only labels are added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

from corral.domain.canonical import canonical, digest_of
from corral.domain.hosts.capability import Capability, Gpu
from corral.domain.ids import Digest

# What a pattern may be about; without one of these in front it is about the run's name.
SUBJECTS = ("name", "kind", "recipe", "model", "project")


@dataclass(frozen=True)
class HostPolicy:
    """None is no limit. `gpus` is how many, or which by index; `vram_bytes` of each of them.

    `slots_per_gpu` is how many runs may share one GPU. `secrets` are the projects whose secrets it may get.
    """

    slots: int | None = None
    cores: int | None = None
    ram_bytes: int | None = None
    disk_bytes: int | None = None
    gpus: int | tuple[int, ...] | None = None
    vram_bytes: int | None = None
    slots_per_gpu: int | None = None
    labels: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    projects: tuple[str, ...] | None = None
    secrets: tuple[str, ...] | None = None
    # Of the whole host, in dollars.
    price_per_hour: float | None = None

    @property
    def digest(self) -> Digest:
        return digest_of(json.loads(render_declared(self)))

    @property
    def asks_for_names(self) -> bool:
        """Whether the policy can be settled only with the name of a run."""
        return any(_split(pattern)[0] == "name" for pattern in (*self.allow, *self.deny))


NOTHING_DECLARED = HostPolicy()


class RequestedWork(NamedTuple):
    """What a policy looks at. Without a name, what depends on it is left open."""

    project: str
    kind: str = "command"
    recipe: str | None = None
    model: str | None = None
    name: str | None = None
    secrets: bool = False


def render_declared(declared: HostPolicy) -> str:
    """As JSON, in one form: what is not declared is left out."""
    table = asdict(declared)
    return canonical({key: value for key, value in table.items() if value != getattr(NOTHING_DECLARED, key)})


@lru_cache(maxsize=4096)
def read_declared(text: str | None) -> HostPolicy:
    """What `render_declared` wrote. A key of a newer version is ignored."""
    if not text:
        return NOTHING_DECLARED
    table: dict[str, Any] = json.loads(text)
    known: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in table.items()
        if key in HostPolicy.__dataclass_fields__
    }
    return HostPolicy(**known)


def effective(reported: Capability, declared: HostPolicy) -> Capability:
    """What counts: the lesser of both, and the labels of both."""
    return replace(
        reported,
        cores=_least(reported.cores, declared.cores),
        ram_bytes=_least(reported.ram_bytes, declared.ram_bytes),
        disk_bytes=_least(reported.disk_bytes, declared.disk_bytes),
        gpus=_gpus(reported.gpus, declared),
        labels=tuple(dict.fromkeys((*reported.labels, *declared.labels))),
    )


def effective_slots(reported: int, declared: HostPolicy) -> int:
    return reported if declared.slots is None else min(reported, declared.slots)


def refusals(declared: HostPolicy, work: RequestedWork) -> tuple[str, ...]:
    """Every reason why the policy keeps this work from the host."""
    found: list[str] = []
    if declared.projects is not None and work.project not in declared.projects:
        serves = ", ".join(declared.projects) or "none"
        found.append(f"the host serves the projects {serves}; the run is of {work.project}")
    if work.secrets and declared.secrets is not None and work.project not in declared.secrets:
        found.append(f"the host may not get the secrets of project {work.project}")
    found += [f"the host denies {pattern}" for pattern in declared.deny if _matches(pattern, work)]
    open_by_name = work.name is None and any(_split(pattern)[0] == "name" for pattern in declared.allow)
    allowed = any(_matches(pattern, work) for pattern in declared.allow)
    if declared.allow and not allowed and not open_by_name:
        found.append(f"the host allows only {', '.join(declared.allow)}")
    return tuple(found)


def _gpus(reported: tuple[Gpu, ...] | None, declared: HostPolicy) -> tuple[Gpu, ...] | None:
    if declared.gpus in (0, ()):
        return ()
    if reported is None:
        return None
    by_index = sorted(reported, key=lambda gpu: gpu.index)
    if isinstance(declared.gpus, int):
        by_index = by_index[: declared.gpus]
    elif declared.gpus is not None:
        by_index = [gpu for gpu in by_index if gpu.index in declared.gpus]
    return tuple(replace(gpu, memory_bytes=_least(gpu.memory_bytes, declared.vram_bytes)) for gpu in by_index)


def _least(reported: int | None, declared: int | None) -> int | None:
    values: Iterable[int] = (value for value in (reported, declared) if value is not None)
    return min(values, default=None)


def _matches(pattern: str, work: RequestedWork) -> bool:
    subject, glob = _split(pattern)
    value: str | None = getattr(work, subject)
    return value is not None and fnmatchcase(value, glob)


def _split(pattern: str) -> tuple[str, str]:
    subject, colon, glob = pattern.partition(":")
    return (subject, glob) if colon else ("name", pattern)
