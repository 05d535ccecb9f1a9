"""Reads the `[diloco]` table of a run file. Submit and the engine both call this."""

# `setting` is `dataclasses.field` with limits, which ruff cannot know.
# ruff: noqa: RUF009

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, ClassVar, Literal, NamedTuple

from corral.durations import LEAST_S, parse_duration
from corral.recipes import json_schema as _json_schema
from corral.recipes.schema import SettingProblem, check_fields, setting, to_plain
from corral.recipes.train import TrainError

# What `store` is called where it is left out: the one that the control plane has.
OWN_STORE = "corral"
_LONGEST_GRACE_S = 366 * 86400.0
_BUCKET = re.compile(r"(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._=-]+)*/?")
_SHARED = "write the whole path of a folder that all hosts of the run share, or s3://bucket/prefix"


@dataclass(frozen=True, slots=True)
class Outer:
    """The step that is made of what all replicas learned: SGD with Nesterov momentum."""

    lr: float = setting(
        "Rate of the outer step; 1 with momentum 0 is plain averaging.",
        default=0.7,
        gt=0,
        le=10,
        also=("outer_lr", "learning_rate"),
    )
    momentum: float = setting("Its Nesterov momentum.", default=0.9, ge=0, lt=1, also=("outer_momentum",))


@dataclass(frozen=True, slots=True)
class Diloco:
    """Replicas that train apart and meet in a store every so many steps, as it is in effect."""

    inner_steps: int = setting(
        "Steps of each replica between two rounds.",
        default=100,
        ge=1,
        le=10_000_000,
        also=("sync_every", "local_steps", "h"),
    )
    outer: Outer = setting("The outer step.", default_factory=Outer)
    quorum: int | None = setting(
        "A round takes place with so many replicas at least; `replicas.min` where not given.",
        default=None,
        ge=1,
        le=4096,
        also=("min_replicas",),
    )
    grace: str | float = setting(
        "How long a round that has its quorum waits for the replicas of the round before: seconds, or text "
        'such as "30s".',
        default="30s",
        ge=0,
        le=_LONGEST_GRACE_S,
        max_chars=64,
    )
    compress: Literal["none", "bf16", "int8", "int4"] = setting(
        "What a replica brings to a round, and how small; what is left out is brought to the next.",
        default="none",
        also=("compression", "quantize"),
    )
    fragments: int = setting(
        "The weights meet in so many parts, spread over the inner steps.",
        default=1,
        ge=1,
        le=1024,
        also=("num_fragments",),
    )
    delay: int = setting(
        "For so many inner steps a round goes on beside the training.",
        default=0,
        ge=0,
        le=10_000_000,
        also=("fragment_sync_delay",),
    )
    blend: float = setting(
        "The share of a replica's own weights that remains in it when a round is taken over. The last round "
        "of a run leaves none.",
        default=0.0,
        ge=0,
        lt=1,
        also=("fragment_update_alpha",),
    )
    store: str | None = setting(
        "Where the replicas meet: a folder that all hosts share, s3://bucket/prefix, gs:// or az://. The "
        "control plane's own where not given.",
        default=None,
        max_chars=1024,
    )

    REFUSED: ClassVar[dict[str, str]] = {
        "replicas": "it stands at the top of the run file",
        "steps": "it is `train.steps`, and counts the inner steps of each replica",
    }

    @property
    def grace_s(self) -> float:
        return parse_duration(self.grace) if isinstance(self.grace, str) else self.grace


class RankRange(NamedTuple):
    """How many ranks a run has."""

    least: int
    most: int


def parse(table: object, ranks: RankRange) -> Diloco:
    """The table with every default filled in. TrainError names everything that is wrong."""
    checked = check_fields(Diloco, table, "diloco")
    problems = checked.problems
    if "" in checked.bad:
        raise TrainError(problems)
    found = Diloco(**checked.values)
    for reads, rule in _RULES:
        if checked.bad.isdisjoint(reads):
            problems += [
                SettingProblem(f"diloco.{name}", said, hint) for name, said, hint in rule(found, ranks)
            ]
    if problems:
        raise TrainError(problems)
    return replace(found, quorum=found.quorum or ranks.least, grace=found.grace_s)


def to_table(diloco: Diloco) -> dict[str, Any]:
    """The table as in effect; `parse` makes the same of it."""
    table: dict[str, Any] = to_plain(diloco)
    return {key: value for key, value in table.items() if value is not None}


def json_schema() -> dict[str, Any]:
    return {"title": "diloco", **_json_schema.json_schema(Diloco)}


def is_folder(store: str | None) -> bool:
    return store not in (None, OWN_STORE) and "://" not in str(store).removeprefix("file://")


# -- rules between settings -----------------------------------------------------------------------------

Found = Iterator[tuple[str, str, str]]  # where, what, what to do
Find = Callable[[Diloco, RankRange], Found]


def _quorum(found: Diloco, ranks: RankRange) -> Found:
    if found.quorum is not None and found.quorum > ranks.least:
        yield (
            "quorum",
            f"{found.quorum} is more than the {ranks.least} replicas that the run begins with",
            "lower it, or raise `replicas.min`",
        )


def _grace(found: Diloco, ranks: RankRange) -> Found:
    try:
        grace_s = found.grace_s
    except ValueError as error:
        yield "grace", str(error), 'as in grace = "30s"'
        return
    if not (grace_s == 0 or LEAST_S <= grace_s <= _LONGEST_GRACE_S):
        yield "grace", "is longer than a year, or shorter than a millisecond", "30 s is usual"


def _fragments(found: Diloco, ranks: RankRange) -> Found:
    if found.inner_steps % found.fragments:
        yield (
            "inner_steps",
            f"{found.inner_steps} is no multiple of {found.fragments} fragments",
            "each fragment meets once in as many steps as any other; change one of the two",
        )


def _delay(found: Diloco, ranks: RankRange) -> Found:
    between = found.inner_steps // found.fragments
    if found.delay and found.delay >= between:
        yield (
            "delay",
            f"{found.delay} steps, and the next round begins after {between}",
            "a round must be over before the next begins: lower it, or raise `inner_steps`",
        )


def _store(found: Diloco, ranks: RankRange) -> Found:
    store = found.store
    if store is None or store == OWN_STORE:
        return
    if is_folder(store):
        path = store.removeprefix("file://")
        whole = PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()
        if not whole:
            yield "store", f"{store!r} is no whole path, and each rank starts in a folder of its own", _SHARED
        elif ".." in PurePosixPath(path).parts:
            yield "store", f"{store!r} goes up by `..`", _SHARED
    elif "@" in store or "?" in store:
        yield (
            "store",
            "has more in it than a bucket and a prefix",
            'credentials are secrets of the project: `secrets = ["AWS_ACCESS_KEY_ID", ...]`',
        )
    elif store.startswith(("http://", "https://")):
        yield (
            "store",
            f"{store!r} is the address of a server",
            "name the bucket as s3://bucket/prefix, and the server in AWS_ENDPOINT_URL under [env]",
        )
    elif not _BUCKET.fullmatch(store):
        yield "store", f"no store is known by {store!r}", "as in s3://bucket/prefix; also gs:// and az://"


_RULES: tuple[tuple[tuple[str, ...], Find], ...] = (
    (("quorum",), _quorum),
    (("grace",), _grace),
    (("inner_steps", "fragments"), _fragments),
    (("inner_steps", "fragments", "delay"), _delay),
    (("store",), _store),
)
