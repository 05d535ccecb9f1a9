"""What makes a run the run that it is, and what is only policy.

The identity is the SHA-256 of the canonical form of a run's work: what it executes, with which parameters,
code, data, environment, model and seed. Its name, priority, labels, limits and needs are policy: they can
change while it waits, and it stays the same run.

Two forms of one number are one number only where somebody said so. A schema that says `number` (the
recipe's, a JSON Schema, a parser's `type=float`) makes `1` and `1.0` the same before this is asked; without
one they are different text on the command line, and so different runs.
"""

from __future__ import annotations

from typing import Any

from corral.domain.canonical import canonical, digest_of
from corral.domain.ids import Digest
from corral.wire.spec.run_file import RunSpec

WORK = (
    *("kind", "model", "model_revision", "train", "task", "eval", "sample", "service"),
    *("argv", "params", "env", "secrets", "seed", "code_digest", "environment", "inputs", "input_paths"),
    *("after", "replicas", "diloco"),
)
POLICY = (
    *("labels", "priority", "preemptible", "resources", "placement", "retries", "keep"),
    *("wall_limit", "stall_limit", "grace"),
)
# Where it is kept and what it is called; `code` and `inputs` are known by their digests.
PLACE = ("project", "name", "code", "input_digests", "origins", "params_from", "params_schema")

# In words of their own below.
_TOLD = ("environment", "inputs", "after", "secrets")
# What a digest must not change with: a key that a later version adds has its default here.
_DEFAULTS = {
    name: field.get_default(call_default_factory=True) for name, field in RunSpec.model_fields.items()
}


def identity_of(spec: RunSpec) -> Digest:
    """Equal work has an equal identity, whatever it is called and whoever wants it when."""
    table = {
        name: value
        for name in WORK
        if name not in _TOLD and (value := getattr(spec, name)) != _DEFAULTS[name]
    }
    if spec.environment is not None:
        table["environment"] = spec.environment.digest
    if inputs := _inputs(spec):
        table["inputs"] = inputs
    if after := _after(spec):
        table["after"] = after
    if spec.secrets:
        table["secrets"] = sorted(spec.secrets)
    for asked in ("eval", "sample", "service", "replicas"):
        if asked in table:
            table[asked] = table[asked].model_dump(mode="json")
    if spec.train is not None:
        _without_paths(table, spec)
    return digest_of(table)


def policy_of(spec: RunSpec) -> dict[str, Any]:
    """What may change while the run waits, without what is as it always is."""
    return spec.model_dump(mode="json", include=set(POLICY), exclude_defaults=True)


def _inputs(spec: RunSpec) -> dict[str, object]:
    """By what they hold; the result of a run, which may be yet to come, by what that run is."""
    made = {
        key.removeprefix("inputs."): runs for key, runs in spec.origins.items() if key.startswith("inputs.")
    }
    return {**spec.inputs, **spec.input_digests, **made}


def _after(spec: RunSpec) -> list[str]:
    """What it waits for is part of what it is; what gives it an input is told there."""
    waits = [one for one in spec.after if f"inputs.{one.input}" not in spec.origins]
    return sorted(
        canonical([sorted(spec.origins.get(one.run, [])) or one.run, one.input, one.on_failure])
        for one in waits
    )


def _without_paths(table: dict[str, Any], spec: RunSpec) -> None:
    """What was shipped is known by its digest; where it lay on somebody's disk says nothing."""
    shipped = {*spec.inputs, *spec.input_digests}
    table["train"] = {key: value for key, value in (spec.train or {}).items() if key not in shipped}
    if "model" in shipped:
        table.pop("model", None)
