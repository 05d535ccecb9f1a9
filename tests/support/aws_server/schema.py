"""Requests and answers against the models that AWS publishes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.validate import ParamValidator

SERVICES = ("sagemaker", "secretsmanager", "logs", "ecr", "service-quotas", "sts", "iam")
# Java's names for classes of characters, which Python's patterns lack.
_CLASSES = {
    r"\p{L}": "a-zA-Z\u00c0-\uffff",
    r"\p{Z}": " ",
    r"\p{N}": "0-9",
    r"\p{Alnum}": "a-zA-Z0-9",
}


class AwsError(Exception):
    """What a service answers instead."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


@cache
def service_model(name: str) -> ServiceModel:
    return _session().get_service_model(name)


@cache
def _session() -> botocore.session.Session:
    return botocore.session.get_session()


@cache
def targets() -> dict[str, str]:
    """Which service a prefix of X-Amz-Target means."""
    found = {service_model(name).metadata.get("targetPrefix"): name for name in SERVICES}
    return {prefix: name for prefix, name in found.items() if prefix}


def check_request(operation: OperationModel, request: dict[str, Any]) -> None:
    shape = operation.input_shape
    if shape is None:
        return
    report = ParamValidator().validate(request, shape)
    faults = [report.generate_report()] if report.has_errors() else _faults(shape, request, "")
    unknown = set(request) - set(shape.members)
    faults += [f"{name} is not a field" for name in unknown]
    if faults:
        raise AwsError("ValidationException", "; ".join(faults))


def check_answer(operation: OperationModel, answer: dict[str, Any]) -> None:
    """Our own must be right as well."""
    shape = operation.output_shape
    if shape is None:
        assert not answer, f"{operation.name} answers nothing"
        return
    report = ParamValidator().validate(answer, shape)
    assert not report.has_errors(), f"{operation.name}: {report.generate_report()}"
    assert set(answer) <= set(shape.members), f"{operation.name}: {sorted(answer)}"


def _faults(shape: Shape, value: Any, path: str) -> list[str]:
    """What botocore leaves to the service: unknown fields, lengths, patterns, enumerations."""
    if shape.type_name == "structure":
        found = [f"{path}.{name} is not a field" for name in value if name not in shape.members]
        for name, member in shape.members.items():
            if name in value:
                found += _faults(member, value[name], f"{path}.{name}")
        return found
    if shape.type_name == "list":
        found = _length(shape, value, path)
        return found + [
            fault
            for index, one in enumerate(value)
            for fault in _faults(shape.member, one, f"{path}[{index}]")
        ]
    if shape.type_name == "map":
        found = _length(shape, value, path)
        for key, one in value.items():
            found += _faults(shape.key, key, f"{path} key") + _faults(shape.value, one, f"{path}.{key}")
        return found
    return _string_faults(shape, value, path) if shape.type_name == "string" else _range(shape, value, path)


def _string_faults(shape: Shape, value: str, path: str) -> list[str]:
    found = _length(shape, value, path)
    if (allowed := shape.metadata.get("enum")) and value not in allowed:
        found.append(f"{path}: {value!r} is none of the enumeration")
    if (pattern := shape.metadata.get("pattern")) and not re.fullmatch(_pattern(pattern), value):
        found.append(f"{path}: {value!r} does not match {pattern}")
    return found


def _pattern(java: str) -> str:
    for name, python in _CLASSES.items():
        java = java.replace(name, python)
    return java


def _length(shape: Shape, value: Any, path: str) -> list[str]:
    return (
        [] if _within(shape, len(value)) else [f"{path}: length {len(value)} is outside of {_bounds(shape)}"]
    )


def _range(shape: Shape, value: Any, path: str) -> list[str]:
    if shape.type_name not in ("integer", "long", "float", "double"):
        return []
    return [] if _within(shape, value) else [f"{path}: {value} is outside of {_bounds(shape)}"]


def _within(shape: Shape, number: float) -> bool:
    low, high = _bounds(shape)
    return (low is None or number >= low) and (high is None or number <= high)


def _bounds(shape: Shape) -> tuple[float | None, float | None]:
    return shape.metadata.get("min"), shape.metadata.get("max")
