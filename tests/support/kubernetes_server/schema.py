"""The published schema, field by field: types, formats, required fields, and no others."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from support.kubernetes_server.errors import ApiError, FieldError, bad_request, invalid, required
from support.kubernetes_server.objects import Json
from support.kubernetes_server.syntax import parse_quantity

_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_PYTHON: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "object": dict,
    "array": list,
    "number": (int, float),
}


@cache
def document() -> Json:
    """openapi.json, as generate_openapi.py wrote it, and what Kueue adds where it is installed."""
    loaded: Json = json.loads(Path(__file__).with_name("openapi.json").read_text(encoding="utf-8"))
    kueue: Json = json.loads(Path(__file__).with_name("kueue.json").read_text(encoding="utf-8"))
    return loaded | {name: loaded[name] | added for name, added in kueue.items()}


class _Fault(Exception):
    """The body cannot be read as the type that it should be."""


class _Walk:
    """One pass over a body: what it holds without nulls, and the required fields that it lacks."""

    def __init__(self) -> None:
        self.missing: list[FieldError] = []
        self.unknown: list[str] = []
        self._definitions: Json = document()["definitions"]

    def value(self, schema: Json, value: Any, field: str) -> Any:
        if (name := schema.get("$ref")) is not None:
            if name == _QUANTITY:
                return _quantity(value, field)
            return self.value(self._definitions[name], value, field)
        if "oneOf" in schema:
            return _one_of(schema["oneOf"], value, field)
        kind = schema.get("type")
        if kind is None:
            # Only raw JSON has no type.
            return value
        _check_type(kind, value, field)
        if kind == "object":
            return self._object(schema, value, field)
        if kind == "array":
            items = schema["items"]
            return [self.value(items, one, f"{field}[{i}]") for i, one in enumerate(value)]
        _check_format(schema.get("format", ""), value, field)
        if "enum" in schema and value not in schema["enum"]:
            raise _Fault(f"{field}: {json.dumps(value)} is none of {', '.join(schema['enum'])}")
        return value

    def _object(self, schema: Json, value: Json, field: str) -> Json:
        properties: Json = schema.get("properties", {})
        others = schema.get("additionalProperties")
        kept = {}
        for name, child in value.items():
            path = f"{field}.{name}" if field else name
            if name in properties:
                # A null is what a field that is not there would be.
                if child is not None:
                    kept[name] = self.value(properties[name], child, path)
            elif isinstance(others, dict):
                kept[name] = self.value(others, child, path)
            elif not properties and others is not False:
                kept[name] = child
            else:
                self.unknown.append(path)
        for name in schema.get("required", ()):
            if name not in kept:
                self.missing.append(required(f"{field}.{name}" if field else name))
        return kept


def _check_type(kind: str, value: Any, field: str) -> None:
    good = isinstance(value, _PYTHON[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not good:
        given = {str: "string", bool: "bool", dict: "object", list: "array"}.get(type(value), "number")
        raise _Fault(f"json: cannot unmarshal {given} into Go struct field {field} of type {kind}")


def _check_format(form: str, value: Any, field: str) -> None:
    if form in _RANGES:
        low, high = _RANGES[form]
        if not low <= value <= high:
            raise _Fault(f"json: cannot unmarshal number {value} into Go struct field {field} of type {form}")
    elif form == "byte":
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise _Fault(f"{field}: illegal base64 data") from None
    elif form == "date-time":
        try:
            good = datetime.fromisoformat(value).tzinfo is not None and "T" in value
        except ValueError:
            good = False
        if not good:
            raise _Fault(f"{field}: parsing time {json.dumps(value)}: it is not RFC 3339")


def _quantity(value: Any, field: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _Fault(f"{field}: a quantity is a string or a number")
    try:
        parse_quantity(value)
    except ValueError as error:
        raise _Fault(f"{field}: {error}") from error
    return str(value)


def _one_of(schemas: list[Json], value: Any, field: str) -> Any:
    for schema in schemas:
        try:
            _check_type(schema["type"], value, field)
        except _Fault:
            continue
        return value
    raise _Fault(f"{field}: {json.dumps(value)} is neither of {', '.join(s['type'] for s in schemas)}")


def decode(definition: str, body: Any, *, kind: str, group: str, version: str) -> Json:
    """The body without nulls; 400 for what cannot be read, 422 for required fields that are not there."""
    unread = f'{kind} in version "{version}" cannot be handled as a {kind}: '
    walk = _Walk()
    try:
        decoded: Json = walk.value(document()["definitions"][definition], body, "")
    except _Fault as fault:
        raise bad_request(unread + str(fault)) from None
    if walk.unknown:
        said = ", ".join(f'unknown field "{field}"' for field in walk.unknown)
        raise bad_request(f"{unread}strict decoding error: {said}")
    if walk.missing:
        metadata: Json = decoded.get("metadata", {})
        name = str(metadata.get("name") or metadata.get("generateName") or "")
        raise invalid(kind, group, name, walk.missing)
    return decoded


def merge_key(schema: Json) -> str | None:
    """By which field a strategic merge tells the items of a list apart."""
    return schema.get("mergeKey")


def resolve(schema: Json) -> Json:
    """The schema that is meant, where a schema only refers to one; what it says beside that is kept."""
    if (name := schema.get("$ref")) is None:
        return schema
    found: Json = document()["definitions"][name]
    return found | {key: value for key, value in schema.items() if key != "$ref"}


def self_check(definition: str, obj: Json) -> None:
    """What controllers write must be legal too; a fault here is a fault of this test server."""
    try:
        decode(definition, obj, kind=obj.get("kind", "?"), group="", version="v1")
    except ApiError as error:
        raise AssertionError(f"the test server wrote what the API does not allow: {error.message}") from error
