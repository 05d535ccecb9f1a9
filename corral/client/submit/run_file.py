"""Reads a run file, with overrides, and expands it into the runs that it stands for."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from corral.client.submit.all_faults import LookFurther, refusal
from corral.client.submit.problems import ProblemList
from corral.domain.errors import SPEC_HINT, FieldError, InvalidInput
from corral.domain.paths import printable
from corral.domain.secrets.secrets import secret_names
from corral.wire.base import explain
from corral.wire.spec.run_file import RunFile, RunSpec, Scalar, in_clear

M = TypeVar("M", bound=BaseModel)
MAX_RUNS = 10_000
# A run file is written by hand; what is larger is another file given by mistake.
MAX_FILE_BYTES = 4 << 20


@dataclass(frozen=True)
class RunVariant:
    """What tells one run of a group from the others; `train` holds what was swept, by dotted name."""

    params: Mapping[str, Scalar]
    seed: int | None
    train: Mapping[str, Scalar] = field(default_factory=dict)


# What a manifest has and a run file has not.
MANIFEST_KEYS = frozenset({"runs", "hosts", "defaults"})


def load(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    defaults: Mapping[str, str] | None = None,
    look: LookFurther[RunFile] | None = None,
) -> RunFile:
    """Read and check. `overrides` as `params.lr=3e-4`; `defaults` fill top-level keys left out.

    Raises InvalidInput with the line and column, or with every field that is wrong. Of a file that is refused
    `look` may find out more.
    """
    text = read_text(path, what="a run file; docs/reference/run-file.md shows one")
    what = printable(str(path))
    given = parse_toml(text, what=what)
    if given.keys() & MANIFEST_KEYS and not given.keys() & {"argv", "train"}:
        raise InvalidInput(
            f"{what} is a manifest, and no run file", hint=f"Say `corral manifest apply {what}`."
        )
    return build({**(defaults or {}), **given}, what=what, overrides=overrides, look=look)


def parse(
    text: str,
    *,
    what: str,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, str] | None = None,
) -> RunFile:
    return build({**(defaults or {}), **parse_toml(text, what=what)}, what=what, overrides=overrides)


def parse_toml(text: str, *, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(
            f"{what} is not valid TOML: {error}", hint="Correct the file at that place and try again."
        ) from error
    except RecursionError:
        raise InvalidInput(f"{what} is nested too deeply", hint="Write it flatter.") from None


def build(
    table: Mapping[str, Any],
    *,
    what: str,
    overrides: Sequence[str] = (),
    look: LookFurther[RunFile] | None = None,
) -> RunFile:
    """Check a run file that is already a table."""
    made = checked(RunFile, table, what=what, overrides=overrides, look=look)
    _refuse_set_against_sweep(made, overrides)
    return made


def _refuse_set_against_sweep(run_file: RunFile, overrides: Sequence[str]) -> None:
    """What --set gives to all runs would be lost without a word where each takes its own from `[sweep]`."""
    for given in map(_override, overrides):
        for name in given.names():
            swept = name.removeprefix("params.")
            if name.startswith(("params.", "train.")) and swept in run_file.sweep:
                raise InvalidInput(
                    f"--set {name} has no effect: [sweep] gives each run its own {swept}",
                    hint=f"Say `--set 'sweep.{swept}=[...]'` to try other values, or take it out of [sweep].",
                    fields=[FieldError(f"sweep.{swept}", f"is swept, and set by --set {name}")],
                )


def checked(
    model: type[M],
    table: Mapping[str, Any],
    *,
    what: str,
    overrides: Sequence[str],
    look: LookFurther[M] | None = None,
) -> M:
    """The table with overrides made to it, as the model. InvalidInput tells all that is wrong."""
    given = [_override(text) for text in overrides]
    try:
        return model.model_validate(_overridden(table, given))
    except ValidationError as error:
        # The text of a version or a name may read like a number: `environment.python=3.10`.
        texts = {_text_place(item) for item in error.errors()}
    given = [one.as_text() if one.place in texts else one for one in given]
    whole = _overridden(table, given)
    try:
        return model.model_validate(whole)
    except ValidationError as error:
        refused, sound = refusal(model, whole, error, what=what, hint=SPEC_HINT)
    problems = ProblemList()
    problems.add(refused)
    if look is not None and sound is not None:
        problems.collect(partial(look, sound))
    problems.check(what)
    raise refused


def edited(spec: RunSpec, changes: Sequence[str]) -> RunSpec | None:
    """A run's spec with `changes` (as `params.lr=3e-4`) made to it; None if it is the same as before.

    InvalidInput names what does not fit.
    """
    changed = checked(RunSpec, spec.model_dump(exclude_unset=True), what="the changed run", overrides=changes)
    # What was accepted once stays as it is.
    new = {name: value for name, value in changed.env.items() if spec.env.get(name) != value}
    if found := secret_names(new):
        raise explain(RunSpec, in_clear(found), what="the changed run", hint=SPEC_HINT)
    return None if changed.model_dump() == spec.model_dump() else changed


def _text_place(item: ErrorDetails) -> tuple[int | str, ...] | None:
    """Where a text was wanted; the recipes tell a place of theirs in one piece."""
    if item["type"] == "train" and "a string" in item["msg"]:
        return tuple(part for piece in item["loc"] for part in str(piece).split("."))
    return tuple(item["loc"]) if item["type"] == "string_type" else None


def expand(run_file: RunFile) -> list[RunVariant]:
    """Every combination: keys of `[sweep]` in the file's order, the last one fastest, then seeds."""
    seeds: list[int | None] = list(run_file.seeds) or [None]
    count = math.prod((len(values) for values in run_file.sweep.values()), start=len(seeds))
    if count > MAX_RUNS:
        field = FieldError("sweep" if run_file.sweep else "seeds", f"makes {count} runs, at most {MAX_RUNS}")
        raise InvalidInput(
            f"the run file stands for {count} runs, at most {MAX_RUNS} go at once",
            hint="Sweep over fewer values, or split it into several files.",
            fields=[field],
        )
    combinations = itertools.product(*run_file.sweep.values())
    return [
        _variant(run_file, dict(zip(run_file.sweep, values, strict=True)), seed)
        for values in combinations
        for seed in seeds
    ]


def _variant(run_file: RunFile, swept: dict[str, Scalar], seed: int | None) -> RunVariant:
    if run_file.train is None:
        return RunVariant({**run_file.params, **swept}, seed)
    return RunVariant(run_file.params, seed, {key.removeprefix("train."): swept[key] for key in swept})


def with_swept(table: Mapping[str, Any], swept: Mapping[str, Scalar]) -> dict[str, Any]:
    """The train table of one variant."""
    whole = {"train": dict(table)}
    for name, value in swept.items():
        _set(whole, _Override(("train", *name.split(".")), str(value), value))
    return whole["train"]


def is_group(run_file: RunFile) -> bool:
    return bool(run_file.sweep or run_file.seeds)


def read_text(path: Path, *, what: str) -> str:
    """A file that a user wrote; `what` says which one is wanted, if it is not that."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InvalidInput(
                f"{printable(str(path))} is larger than {MAX_FILE_BYTES} bytes",
                hint=f"Give the path of {what}.",
            )
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidInput(
            f"{printable(str(path))} cannot be read: {error.strerror}",
            hint=f"Give the path of {what}.",
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{printable(str(path))} is not UTF-8: byte {error.start}", hint="Save it as UTF-8."
        ) from error


def path_from(base_dir: Path, given: str) -> Path:
    """A path as a run file names it: relative ones start from `base_dir`."""
    return (base_dir / Path(given).expanduser()).absolute()


def wrong_field(
    place: str, message: str, *, hint: str = "Paths in a run file start from the folder that it is in."
) -> InvalidInput:
    """For what a key of a run file names and is not there, or is not fit for it."""
    return InvalidInput(f"{place}: {message}", hint=hint, fields=[FieldError(place, message)])


@dataclass(frozen=True)
class _Override:
    place: tuple[str, ...]
    text: str
    value: Any

    def names(self) -> list[str]:
        """What it sets, by dotted name; a table sets all that is in it."""
        place = ".".join(self.place)
        if not isinstance(self.value, dict):
            return [place]
        return [
            name for key, value in self.value.items() for name in _Override((place, key), "", value).names()
        ]

    def as_text(self) -> _Override:
        return replace(self, value=self.text) if isinstance(self.value, bool | int | float) else self


def _override(given: str) -> _Override:
    key, equals, text = given.partition("=")
    place = tuple(part.strip() for part in key.split("."))
    if not equals or not all(place):
        raise InvalidInput(f"--set {given!r} is not KEY=VALUE", hint="Write it as `--set params.lr=3e-4`.")
    return _Override(place, text.strip(), _value(text))


def _overridden(table: Mapping[str, Any], overrides: Sequence[_Override]) -> dict[str, Any]:
    whole = dict(table)
    for override in overrides:
        _set(whole, override)
    return whole


def _set(whole: dict[str, Any], override: _Override) -> None:
    *above, last = override.place
    inner = whole
    for depth, part in enumerate(above, 1):
        below = inner.get(part, {})
        if not isinstance(below, Mapping):
            place = ".".join(above[:depth])
            raise InvalidInput(
                f"--set {'.'.join(override.place)} reaches into {place}, which is not a table",
                hint=f"Set {place} as a whole.",
                fields=[FieldError(place, "is not a table")],
            )
        # Copied on the way down: the caller's table stays as it is.
        inner[part] = dict(below)
        inner = inner[part]
    inner[last] = override.value


def _value(text: str) -> Any:
    """As TOML would read it; a bare word is a string, so that shells need no second quotes."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = table.pop("value")
    # More keys came from a line break in the text; dates have no place in a run file.
    return value if not table and isinstance(value, bool | int | float | str | list | dict) else text
