"""All that is wrong with a run file's table: what one check refuses does not hide what the next one would."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from corral.domain.errors import FieldError, InvalidInput
from corral.errors import WHOLE
from corral.wire.base import explain

M = TypeVar("M", bound=BaseModel)
Place = tuple[int | str, ...]
# Fields first, then what several of them say together.
_ROUNDS = 3
# What stands for a command that is wrong or missing while the rest is looked at.
_SOME_COMMAND = ["true"]
# And for a model: one of which nothing is known.
_SOME_MODEL = "some/model"
# What means something only beside a table `train`.
_OF_TRAIN = ("train", "model", "sweep")


@dataclass(frozen=True)
class SoundPart(Generic[M]):
    """What is left of a table without its faults, and the keys that something was taken out of."""

    value: M
    without: frozenset[str]


# Finds out more about what is left: InvalidInput says what else is wrong.
LookFurther = Callable[[SoundPart[M]], None]


def refusal(
    model: type[M], table: Mapping[str, Any], error: ValidationError, *, what: str, hint: str
) -> tuple[InvalidInput, SoundPart[M] | None]:
    """Every fault of the table; and what is left of it, None if nothing can be made of that."""
    found: dict[FieldError, None] = {}
    rest, removed = copy.deepcopy(dict(table)), set[str]()
    for _ in range(_ROUNDS):
        told = explain(model, error, what=what).fields
        places = [item["loc"] for item in error.errors(include_url=False, include_input=False)]
        # What is refused because something was taken out says nothing of the file.
        found.update(dict.fromkeys(one for one in told if not found or _is_of(table, one, removed)))
        removed |= {_take_out(rest, place) for place in places}
        if removed & {"train", "argv"}:
            rest = {key: value for key, value in rest.items() if key not in _OF_TRAIN}
            rest["argv"] = _SOME_COMMAND
        elif "model" in removed and "train" in rest:
            rest["model"] = _SOME_MODEL
        try:
            sound: SoundPart[M] | None = SoundPart(model.model_validate(rest), frozenset(removed - {""}))
            break
        except ValidationError as another:
            error, sound = another, None
    fields = list(found)
    message = f"{what} is not valid: {'; '.join(map(str, fields[:20]))}"
    return InvalidInput(message, hint=hint, fields=fields), sound


def _is_of(table: Mapping[str, Any], fault: FieldError, removed: set[str]) -> bool:
    key = _key(fault.path)
    return fault.path == WHOLE or (key in table and (key not in removed or key in ("env", "inputs")))


def _key(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def _take_out(table: dict[str, Any], place: Place) -> str:
    """Without the value at the place, or without the list that it is in. Gives the top-level key."""
    inner: Any = table
    for at, part in enumerate(place):
        below = inner.get(part) if isinstance(inner, dict) else None
        if at + 1 < len(place) and isinstance(below, dict):
            inner = below
            continue
        if isinstance(inner, dict):
            inner.pop(part, None)
        break
    return str(place[0]) if place else ""
