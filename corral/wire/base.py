"""What every model of the wire shares: strict keys with a hint, and the units users write."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationError,
)
from pydantic import JsonValue as Json
from pydantic_core import CoreSchema

from corral.domain.errors import FieldError, InvalidInput
from corral.domain.ids import is_digest, is_id, is_name, is_request_id
from corral.domain.paths import why_bad
from corral.durations import parse_duration
from corral.errors import WHOLE
from corral.wire.faults import UNKNOWN_KEY, faults

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


_COLLECTIONS = frozenset({"list", "tuple", "set", "frozenset", "dict"})


def _stop_at_first_fault(schema: Any) -> None:
    """In all collections of pydantic's description of a model; nested models have their own."""
    if isinstance(schema, dict):
        if schema.get("type") in _COLLECTIONS:
            schema["fail_fast"] = True
        for key, inner in schema.items():
            if key not in ("metadata", "serialization"):
                _stop_at_first_fault(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            _stop_at_first_fault(inner)


class Strict(BaseModel):
    """Unknown keys are refused at every level. Of a list or table only the first bad member is told.

    Whoever sends a million of them would otherwise have a million faults collected.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def elsewhere(cls, key: str) -> str:
        """Of a key that it does not have: where that belongs, as the end of a message; empty if unknown."""
        return ""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_first_fault(handler.resolve_ref_schema(schema))
        return schema


class Exact(Strict):
    """Nothing is coerced either: `"1"` and `true` are not numbers."""

    model_config = ConfigDict(strict=True)


class Answer(BaseModel):
    """What the server sends: a client of an older version ignores what it does not know."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class AnswerPage(Answer, Generic[T]):
    """One page of a list; `next` is the cursor of the following one, None at the end."""

    items: list[T]
    next: str | None = None


def known_only(model: type[BaseModel]) -> BeforeValidator:
    """For a strict model inside an answer: drops the keys that a newer server added, at every level."""

    def drop(value: object) -> object:
        return _known_part(model, value) if isinstance(value, dict) else value

    return BeforeValidator(drop)


def _known_part(model: type[BaseModel], value: dict[str, Any]) -> dict[str, Any]:
    kept = {key: inner for key, inner in value.items() if key in model.model_fields}
    for key, inner in kept.items():
        nested = _model_in(model.model_fields[key].annotation)
        if nested is None:
            continue
        if isinstance(inner, dict):
            kept[key] = _known_part(nested, inner)
        elif isinstance(inner, list):
            kept[key] = [_known_part(nested, item) if isinstance(item, dict) else item for item in inner]
    return kept


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model in `Model`, `Model | None` or `list[Model] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]i?B?|B|)\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def _seconds(value: object) -> object:
    """`90`, `"90s"`, `"1h30m"`: seconds."""
    return parse_duration(value) if isinstance(value, str) else value


def parse_size(value: object) -> object:
    """`1024`, `"24GiB"`, `"500MB"`: bytes."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError('is not a size; write for example "24GiB" or "500MB"')
    unit = match[2].upper()
    base = 1024 if "I" in unit else 1000
    return int(float(match[1]) * base ** _POWERS[unit.rstrip("B").rstrip("I")])


def _is(ok: Callable[[str], bool], what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not ok(text):
            raise ValueError(f"is not {what}")
        return text

    return AfterValidator(check)


def _as_unicode(text: str) -> str:
    # A child's last words may be binary; they are worth keeping, and Postgres takes no NUL. Half a surrogate
    # pair no database takes.
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _storable(value: dict[str, Json]) -> dict[str, Json]:
    # Half a surrogate pair passes for text in Python, and NaN for a number; no store of JSON agrees.
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise ValueError("holds text that is not Unicode, or a number that is not finite") from None
    return value


PlainText = Annotated[str, AfterValidator(_as_unicode)]
JsonMap = Annotated[dict[str, Json], AfterValidator(_storable)]
Duration = Annotated[float, BeforeValidator(_seconds)]
Size = Annotated[int, BeforeValidator(parse_size)]
Name = Annotated[str, _is(is_name, "a name (letters, digits, `.`, `_`, `-`; at most 64)")]
RunIdText = Annotated[str, _is(lambda text: is_id(text, "r"), "a run id")]
LeaseIdText = Annotated[str, _is(lambda text: is_id(text, "l"), "a lease id")]
CallIdText = Annotated[str, _is(lambda text: is_id(text, "c"), "a call id")]
PartText = Annotated[str, _is(lambda text: why_bad(text) is None, "a path in an artifact")]
ArtifactIdText = Annotated[str, _is(lambda text: is_id(text, "a"), "an artifact id")]
RequestId = Annotated[str, _is(is_request_id, "a request id (8 to 64 of A-Z a-z 0-9 _ -)")]
DigestText = Annotated[str, _is(is_digest, "a SHA-256 digest (64 lower-case hex digits)")]


def _place(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or WHOLE


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """The one whose key is at `location`. Parts that name no field are indexes, keys of a table of tables, or
    the members of unions, which pydantic names too."""
    parts = iter(location[:-1])
    for part in parts:
        field = model.model_fields.get(str(part))
        if field is not None and (nested := _model_in(field.annotation)) is not None:
            model = nested
            if get_origin(field.annotation) is dict:
                next(parts, None)
    return model


# Words that other tools have for a key of ours.
_OTHER_WORDS = {
    **dict.fromkeys(("memory", "ram", "mem", "min_memory", "memory_gb"), "min_ram"),
    **dict.fromkeys(("cpu", "cpus", "cores", "num_cpus", "min_cpus", "vcpus"), "min_cores"),
    **dict.fromkeys(("gpu_count", "num_gpus", "n_gpus", "gpus_per_node"), "gpus"),
    **dict.fromkeys(("vram", "gpu_memory", "gpu_ram", "gpu_mem"), "min_vram"),
    **dict.fromkeys(("disk", "storage", "disk_size"), "min_disk"),
    **dict.fromkeys(("command", "cmd", "args", "run", "entrypoint"), "argv"),
    **dict.fromkeys(("environ", "env_vars", "environment_variables", "envs"), "env"),
    **dict.fromkeys(("timeout", "time_limit", "max_time", "walltime"), "wall_limit"),
}


def _unknown(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """What a key may be that is not known there."""
    at, key = _model_at(model, location), str(location[-1])
    belongs = at.elsewhere(key) if issubclass(at, Strict) else ""
    meant = _OTHER_WORDS.get(key.lower())
    if not belongs and meant in at.model_fields:
        return f"{UNKNOWN_KEY}; did you mean `{meant}`?"
    return UNKNOWN_KEY + (belongs or did_you_mean(key, at.model_fields, 0.5))


def did_you_mean(word: str, known: Iterable[str], alike: float = 0.6) -> str:
    """The end of a message that names the nearest of the known words; empty if none is near."""
    near = difflib.get_close_matches(word, list(known), 1, alike)
    return f"; did you mean `{near[0]}`?" if near else ""


def validated(model: type[M], table: Mapping[str, Any], *, what: str, under: str = "", hint: str = "") -> M:
    """The table as the model; InvalidInput that names everything wrong with `what`."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise explain(model, error, what=what, under=under, hint=hint) from None


def explain(
    model: type[BaseModel], error: ValidationError, *, what: str, under: str = "", hint: str = ""
) -> InvalidInput:
    """Pydantic's findings in our words, each with its place (below `under`, such as `hosts.big`) and, for a
    mistyped key, the nearest one."""
    fields: list[FieldError] = []
    for location, message in faults(error.errors(include_url=False, include_input=False)):
        if message == UNKNOWN_KEY:
            message = _unknown(model, location)
        fields.append(FieldError(_place((under, *location) if under else location), message))
    lines = "; ".join(map(str, fields[:20]))
    return InvalidInput(f"{what} is not valid: {lines}", hint=hint, fields=fields)
