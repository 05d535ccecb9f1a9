"""How a function is run: retries, batches, scaling, schedules. Checked where they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.durations import LEAST_S, parse_duration
from corral.functions.pickle_names import pickle_as
from corral.functions.program import names_of

_SHORTEST_PERIOD_S = 10.0
# A number is bytes; whoever writes less than a mebibyte means another unit.
_LEAST_MEMORY = 1 << 20


def seconds(value: float | str, what: str) -> float:
    """`30`, `"30s"`, `"1h30m"`. ValueError names `what`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{what} must be seconds or a text such as '30s', not {value!r}")
    try:
        number = parse_duration(value) if isinstance(value, str) else float(value)
    except ValueError as error:
        raise ValueError(f"{what} = {value!r} {error}") from None
    if not LEAST_S <= number < float("inf"):
        raise ValueError(f"{what} must be a millisecond or more, not {value!r}")
    return number


@dataclass(frozen=True)
class Retries:
    """Try again when the function raises one of `on`; the pause doubles, with some spread."""

    count: int = 3
    on: tuple[type[BaseException], ...] = ()
    delay: float | str = 1.0
    backoff: float = 2.0
    max_delay: float | str = 60.0

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or not 0 <= self.count <= 1000:
            raise ValueError(f"Retries.count must be 0 to 1000, not {self.count!r}")
        wrong = [one for one in self.on if not (isinstance(one, type) and issubclass(one, BaseException))]
        if wrong:
            raise TypeError(f"Retries.on takes exception types, not {wrong[0]!r}")
        if self.backoff < 1:
            raise ValueError(f"Retries.backoff must be 1 or more, not {self.backoff!r}")

    def table(self) -> dict[str, Any]:
        return {
            "retries": self.count,
            "retry_on": [name for one in self.on for name in names_of(one)],
            "delay_s": seconds(self.delay, "Retries.delay") if self.delay else 0.0,
            "backoff": float(self.backoff),
            "max_delay_s": seconds(self.max_delay, "Retries.max_delay"),
        }


def as_retries(given: Retries | int | None) -> Retries | None:
    return Retries(given) if isinstance(given, int) else given


@dataclass(frozen=True)
class Batch:
    """Gather up to `size` calls for at most `wait`, and run them as one: the method gets and gives lists."""

    size: int
    wait: float | str = "50ms"

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= 10_000:
            raise ValueError(f"Batch.size must be 1 to 10000, not {self.size!r}")
        seconds(self.wait, "Batch.wait")

    def table(self) -> dict[str, Any]:
        return {"batch_size": self.size, "batch_wait_s": seconds(self.wait, "Batch.wait")}


@dataclass(frozen=True)
class Cron:
    """Call the function by a cron line, read in `timezone`.

    `missed`: of times that passed while the server was away, one call is made for all ("once"), or none
    ("skip"). `overlap`: a time at which the call before has not ended is left out ("skip"), queued beside it
    ("queue"), or ends it ("cancel").
    """

    line: str
    timezone: str = "UTC"
    missed: str = "once"
    overlap: str = "skip"

    def __post_init__(self) -> None:
        if not isinstance(self.line, str) or len(self.line.split()) != 5:
            raise ValueError(f'Cron takes five fields, as "0 3 * * *", not {self.line!r}')
        _check_rules(self.missed, self.overlap)

    def table(self) -> dict[str, Any]:
        return {"cron": self.line, "timezone": self.timezone, "missed": self.missed, "overlap": self.overlap}


@dataclass(frozen=True)
class Period:
    """Call the function every so often, as "10m"; at least every 10 seconds. The rest is as for Cron."""

    every: float | str
    missed: str = "once"
    overlap: str = "skip"

    def __post_init__(self) -> None:
        if seconds(self.every, "Period") < _SHORTEST_PERIOD_S:
            raise ValueError(f"Period must be {_SHORTEST_PERIOD_S:g} s or more, not {self.every!r}")
        _check_rules(self.missed, self.overlap)

    def table(self) -> dict[str, Any]:
        return {"every": seconds(self.every, "Period"), "missed": self.missed, "overlap": self.overlap}


def _check_rules(missed: str, overlap: str) -> None:
    if missed not in ("once", "skip"):
        raise ValueError(f'missed must be "once" or "skip", not {missed!r}')
    if overlap not in ("skip", "queue", "cancel"):
        raise ValueError(f'overlap must be "skip", "queue" or "cancel", not {overlap!r}')


@dataclass(frozen=True)
class Environment:
    """What must be installed where the function runs. None of it means: the host's own Python."""

    python: tuple[str, ...] = ()
    version: str | None = None
    find_links: str | None = None
    wheels: str | None = None

    @property
    def is_host(self) -> bool:
        return not self.python and self.version is None


@dataclass(frozen=True)
class FunctionResources:
    """What one instance takes."""

    gpu: str | int | Sequence[str] | None = None
    memory: str | int | None = None
    cores: int | None = None
    labels: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    system: tuple[str, ...] = ()

    def table(self) -> dict[str, Any]:
        if isinstance(self.memory, int) and 0 < self.memory < _LEAST_MEMORY:
            raise ValueError(f'memory is {self.memory} bytes; write a size as "{self.memory}GiB"')
        found = {
            "min_ram": self.memory,
            "min_cores": self.cores,
            "labels": list(self.labels),
            "hosts": list(self.hosts),
            "system": list(self.system),
            **({} if self.gpu is None else _gpu_table(self.gpu)),
        }
        return {key: value for key, value in found.items() if value not in (None, [])}


def _gpu_table(gpu: str | int | Sequence[str]) -> dict[str, Any]:
    """`"any"`, `"H100"`, `"H100:2"`, `2`, or a list of models any of which will do."""
    if isinstance(gpu, bool):
        raise TypeError("gpu must be a number, a model or a list of models")
    if isinstance(gpu, int):
        return {"gpus": gpu} if gpu else {}
    names = [gpu] if isinstance(gpu, str) else list(gpu)
    counts = {int(part) for name in names for part in [name.partition(":")[2]] if part}
    if len(counts) > 1:
        raise ValueError(f"gpu names different counts: {', '.join(names)}")
    models = [name.partition(":")[0] for name in names]
    wanted = {} if models == ["any"] else {"gpu": models}
    return {"gpus": counts.pop() if counts else 1, **wanted}


@dataclass(frozen=True)
class Scale:
    """How many instances; they end after `idle` without calls."""

    min_instances: int = 0
    max_instances: int = 1
    idle: float | str = 60.0
    concurrency: int = 1
    queue_delay: float | str | None = 4.0
    per_instance: int | None = None

    def table(self) -> dict[str, Any]:
        return {
            "min": self.min_instances,
            "max": self.max_instances,
            "idle_s": max(1.0, seconds(self.idle, "idle")),
            "concurrency": self.concurrency,
            "queue_delay_s": None if self.queue_delay is None else seconds(self.queue_delay, "queue_delay"),
            "per_instance": self.per_instance,
        }


@dataclass(frozen=True)
class FunctionSettings:
    """Everything that a decorator was told about one function or class."""

    environment: Environment = field(default_factory=Environment)
    resources: FunctionResources = field(default_factory=FunctionResources)
    scale: Scale = field(default_factory=Scale)
    retries: Retries | None = None
    timeout: float | str | None = None
    secrets: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    # Names of `env` that look like those of secrets, and are none.
    public_env: tuple[str, ...] = ()
    keep: float | str = "7d"
    ttl: float | str | None = None
    # Folder and volume.
    volumes: tuple[tuple[str, str], ...] = ()
    schedule: Cron | Period | None = None
    # An instance that has more when it looks is closed in good order, and another takes its place.
    max_memory: str | int | None = None
    # Who brings up the hosts of its instances, in this order.
    executors: tuple[str, ...] = ()

    def call_options(self) -> dict[str, Any]:
        table: dict[str, Any] = {"keep_s": seconds(self.keep, "keep")}
        if self.timeout is not None:
            table["timeout_s"] = seconds(self.timeout, "timeout")
        if self.ttl is not None:
            table["ttl_s"] = seconds(self.ttl, "ttl")
        if self.retries is not None:
            table |= self.retries.table()
        return table


def options_of(given: dict[str, Any]) -> dict[str, Any]:
    """Of some options as a user writes them, only what they say."""
    known = {"timeout", "retries", "ttl", "keep"}
    if unknown := sorted(set(given) - known):
        raise TypeError(f"a call has no option {', '.join(unknown)}; it has: {', '.join(sorted(known))}")
    table = FunctionSettings(**{**given, "retries": as_retries(given.get("retries"))}).call_options()
    return {key: value for key, value in table.items() if key != "keep_s" or "keep" in given}


def as_names(given: Sequence[str], what: str) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError(f'{what} takes a list, as ["{given}"]')
    return tuple(given)


def as_executors(given: Sequence[str]) -> tuple[str, ...]:
    return ("cheapest",) if given == "cheapest" else as_names(given, "executors")


pickle_as("corral.functions.options", Settings=FunctionSettings, Resources=FunctionResources)
