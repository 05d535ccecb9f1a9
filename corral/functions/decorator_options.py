"""The options of `@app.function()`, `@app.web()` and `@app.cls()`: each with its type and what it means."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypedDict

from corral.domain.secrets.secrets import refusal, secret_names
from corral.functions.options import (
    Batch,
    Cron,
    Environment,
    FunctionResources,
    FunctionSettings,
    Period,
    Retries,
    Scale,
    as_executors,
    as_names,
    as_retries,
)
from corral.functions.volumes import Volume, mounts

_LISTS = ("python", "labels", "hosts", "system", "secrets", "public_env")


class ClassOptions(TypedDict, total=False):
    """What `@app.cls()` takes. `FunctionOptions` has the same and two more.

    An instance is a process on a host that serves calls. Durations are seconds or text such as "30s" or
    "1h30m", sizes bytes or text such as "8GiB".
    """

    name: str | None
    """The name in the app; that of the function or class by default. A deployed one ends in a letter or a
    digit: `quit_` of the app `mine` is `mine.quit`."""
    python: Sequence[str] | None
    """Requirements as pip takes them, instead of the app's."""
    gpu: str | int | Sequence[str] | None
    """GPUs of an instance: a number, "any", a model as "H100" or "H100:2", or a list of models any of which
    will do. By default what the app says."""
    memory: str | int | None
    """Memory that the host must have. By default what the app says."""
    cores: int | None
    """Physical cores that the host must have."""
    labels: Sequence[str]
    """Labels that the host must carry, all of them."""
    hosts: Sequence[str]
    """Only these hosts, by name."""
    executors: Sequence[str] | Literal["cheapest"]
    """Where instances are brought up, tried in this order: names of executors, as "slurm", "fleet" for the
    hosts that have joined, and "cheapest" for all others by their price. Without it, on hosts that have
    joined. By default what the app says."""
    system: Sequence[str]
    """Programs or Debian packages that the host must have already, beside those of the app."""
    secrets: Sequence[str]
    """Secrets of the project that an instance gets as environment variables, beside those of the app."""
    env: dict[str, str] | None
    """Environment variables, beside those of the app. Names that look like secrets' are refused."""
    public_env: Sequence[str]
    """Names in `env` that look like those of secrets, and are none."""
    volumes: Mapping[str, Volume] | None
    """Which folder is which volume: `{"data": corral.Volume("notes")}`."""
    retries: Retries | int | None
    """How often a call is tried again after an exception. Calls of a lost host go to another in any case."""
    timeout: float | str | None
    """A call that runs for longer is killed and raises CallTimeout. Without limit by default."""
    ttl: float | str | None
    """A call that no instance has begun by then raises CallExpired. Without limit by default."""
    keep: float | str
    """How long arguments and result are kept after the end; "7d" by default."""
    min_instances: int
    """Instances that are kept although nobody calls; 0 by default."""
    max_instances: int
    """Instances at most; 1 by default."""
    idle: float | str
    """An instance that had no calls for so long is closed; "60s" by default."""
    concurrency: int
    """Calls that one instance runs at a time; 1 by default."""
    queue_delay: float | str | None
    """Another instance is started when a call has waited for so long; "4s" by default, None for never."""
    per_instance: int | None
    """Another instance is started for each so many calls that wait or run."""
    max_memory: str | int | None
    """An instance that has grown beyond it ends its calls, is closed and replaced."""


class FunctionOptions(ClassOptions, total=False):
    """What `@app.function()` and `@app.web()` take."""

    batch: Batch | None
    """Run several calls as one: the function gets a list of items and gives a list of results."""
    schedule: Cron | Period | None
    """Call it by the clock once it is deployed, without arguments."""


def settings_of(
    base: FunctionSettings, options: Mapping[str, Any], *, known: Collection[str]
) -> FunctionSettings:
    """The app's settings with these options. TypeError or ValueError names an option that is wrong."""
    if unknown := sorted(set(options) - set(known)):
        near = difflib.get_close_matches(unknown[0], known, n=1)
        meant = f"; did you mean `{near[0]}`?" if near else f"; there are: {', '.join(sorted(known))}"
        raise TypeError(f"there is no option {', '.join(unknown)}{meant}")
    given = {key: value for key, value in options.items() if value is not None or key == "queue_delay"}
    given |= {key: as_names(given[key], key) for key in _LISTS if key in given}
    if "executors" in given:
        given["executors"] = as_executors(given["executors"])
    system = (*base.resources.system, *given.pop("system", ()))
    changes = {
        **_of(FunctionSettings, given),
        "environment": replace(base.environment, **_of(Environment, given)),
        "resources": replace(base.resources, **_of(FunctionResources, given), system=_once(system)),
        "scale": Scale(**_of(Scale, given)),
        "retries": as_retries(given.get("retries")),
        "secrets": _once((*base.secrets, *given.get("secrets", ()))),
        "env": tuple(sorted({**dict(base.env), **given.get("env", {})}.items())),
        "public_env": _once((*base.public_env, *given.get("public_env", ()))),
        "volumes": mounts(given.get("volumes") or {}),
    }
    made = replace(base, **changes)
    # Whatever is wrong is said here, and not when the first call is made.
    made.resources.table()
    made.call_options()
    made.scale.table()
    refuse_secrets(made)
    return made


def refuse_secrets(made: FunctionSettings) -> None:
    """ValueError where a plain variable looks like a secret."""
    if found := secret_names(dict(made.env), made.public_env):
        raise ValueError(f"env: {found[0]} {refusal(found[0])}")


def _of(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: given[one.name] for one in fields(kind) if one.name in given}


def _once(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
