"""How names, labels, keys and quantities are written."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_ENV_NAME = re.compile(r"[ -<>-~]+")
_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")
_SUFFIXES = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)}

RFC_1123_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
RFC_1123_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
RFC_1035_LABEL = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
    "character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for "
    "validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_QUALIFIED_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


def wrong_label(value: str) -> str:
    """What is wrong with a DNS label; empty when nothing is. So are the answers of all functions here."""
    if len(value) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL.fullmatch(value) else RFC_1123_LABEL


def wrong_label_1035(value: str) -> str:
    if len(value) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL_1035.fullmatch(value) else RFC_1035_LABEL


def wrong_subdomain(value: str) -> str:
    if len(value) > 253:
        return "must be no more than 253 characters"
    return "" if _SUBDOMAIN.fullmatch(value) else RFC_1123_SUBDOMAIN


def wrong_path_segment(value: str) -> str:
    """Names of RBAC objects may have any form that a path can carry."""
    if value in (".", ".."):
        return f"may not be '{value}'"
    return "may not contain '/' or '%'" if "/" in value or "%" in value else ""


def wrong_qualified_name(value: str) -> str:
    """Keys of labels and annotations, finalizers, names of resources: `[prefix/]name`."""
    prefix, slash, name = value.rpartition("/")
    if slash and not prefix:
        return "prefix part must be non-empty"
    if slash and (wrong := wrong_subdomain(prefix)):
        return f"prefix part {wrong}"
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 characters"
    return "" if _QUALIFIED.fullmatch(name) else _QUALIFIED_NAME


def wrong_label_value(value: str) -> str:
    if len(value) > 63:
        return "must be no more than 63 characters"
    return "" if not value or _QUALIFIED.fullmatch(value) else _LABEL_VALUE


def wrong_config_key(value: str) -> str:
    if len(value) > 253:
        return "must be no more than 253 characters"
    if value in (".", "..") or value.startswith(".."):
        return "must not be '.', '..' or start with '..'"
    return (
        ""
        if _CONFIG_KEY.fullmatch(value)
        else "a valid config key must consist of alphanumeric, '-', '_' or '.'"
    )


def wrong_env_name(value: str) -> str:
    if _ENV_NAME.fullmatch(value):
        return ""
    return "a valid environment variable name must consist only of printable ASCII characters other than '='"


def parse_quantity(value: Any) -> Decimal:
    """The number that a quantity stands for; ValueError when it is none."""
    found = _QUANTITY.fullmatch(str(value))
    if found is None or isinstance(value, bool):
        raise ValueError(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    number, suffix = found[1], found[2] or ""
    try:
        if suffix in _BINARY:
            return Decimal(number) * Decimal(_BINARY[suffix])
        if suffix in _SUFFIXES:
            return Decimal(number).scaleb(_SUFFIXES[suffix])
        return Decimal(number).scaleb(int(suffix[1:]))
    except InvalidOperation as error:
        raise ValueError(f"unable to parse quantity: {value}") from error
