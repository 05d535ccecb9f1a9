"""A JSON schema from the same dataclasses that check a table, so that the two cannot differ."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from corral.recipes.schema import default_of, fields_of, has_default, nested, to_plain

_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def json_schema(cls: type) -> dict[str, Any]:
    """Draft 2020-12. Rules between fields are not in it; `check` and `parse` know those."""
    properties: dict[str, Any] = {}
    required = []
    for name, spec, tp in fields_of(cls):
        inner = nested(tp)
        one = json_schema(inner) if inner else _of_type(tp, spec.metadata)
        text = spec.metadata["help"]
        by = spec.metadata.get("by")
        if by:
            text += " Default: " + ", ".join(f"{value} for {key}" for key, value in by.items()) + "."
        elif inner is None and has_default(spec):
            one["default"] = to_plain(default_of(spec))
        one["description"] = text
        properties[name] = one
        if not has_default(spec):
            required.append(name)
    table: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    if required:
        table["required"] = required
    return table


def _of_type(tp: Any, limits: Mapping[str, Any]) -> dict[str, Any]:
    origin = get_origin(tp)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of_type(member, limits) for member in get_args(tp)]}
    if tp is types.NoneType:
        return {"type": "null"}
    if origin is Literal:
        return {"enum": list(get_args(tp))}
    made: dict[str, Any]
    if origin is tuple:
        made = {"type": "array", "items": _of_type(get_args(tp)[0], limits)}
        return made | _sizes(limits, "minItems", "maxItems")
    if origin is not None:
        made = {"type": "object", "additionalProperties": _of_type(get_args(tp)[1], limits)}
        return made | _sizes(limits, "minProperties", "maxProperties")
    made = {"type": _SCALARS[tp]}
    if tp in (int, float):
        made |= {word: limits[key] for key, word in _LIMITS.items() if key in limits}
    if tp is str:
        made |= {"minLength": 1, "maxLength": limits.get("max_chars", 4096)}
        if "pattern" in limits:
            made["pattern"] = f"^(?:{limits['pattern']})$"
    return made


def _sizes(limits: Mapping[str, Any], low: str, high: str) -> dict[str, int]:
    sizes = {low: limits.get("min_items"), high: limits.get("max_items")}
    return {word: size for word, size in sizes.items() if size is not None}
