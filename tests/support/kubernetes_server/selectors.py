"""Label selectors and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from support.kubernetes_server.errors import bad_request
from support.kubernetes_server.objects import Json
from support.kubernetes_server.resources import Resource
from support.kubernetes_server.syntax import wrong_label_value, wrong_qualified_name

_SET = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s+\(([^()]*)\)\s*")
_EQUAL = re.compile(r"\s*([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=,()]*)\s*")
_EXISTS = re.compile(r"\s*(!?)\s*([^\s!=,()]+)\s*")
# What may be asked of the objects of a resource, beside their names.
_FIELDS: Mapping[str, frozenset[str]] = {
    "pods": frozenset(
        {
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        }
    ),
    "events": frozenset(
        {
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        }
    ),
    "jobs": frozenset({"status.successful"}),
    "secrets": frozenset({"type"}),
    "namespaces": frozenset({"status.phase"}),
    "nodes": frozenset({"spec.unschedulable"}),
}
_NAMES = frozenset({"metadata.name", "metadata.namespace"})


@dataclass(frozen=True)
class Requirement:
    """One term of a label selector."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "exists":
                return value is not None
            case "absent":
                return value is None
            case "in":
                return value in self.values
            case _:
                return value not in self.values


def parse_labels(text: str) -> list[Requirement]:
    """400 for what is no label selector."""
    found = []
    rest = text.strip()
    while rest:
        requirement, rest = _next_requirement(rest)
        if wrong := wrong_qualified_name(requirement.key) or next(
            (wrong for value in requirement.values if (wrong := wrong_label_value(value))), ""
        ):
            raise bad_request(f'unable to parse requirement: "{requirement.key}": {wrong}')
        found.append(requirement)
    return found


def _next_requirement(text: str) -> tuple[Requirement, str]:
    for pattern, build in ((_SET, _set), (_EQUAL, _equal), (_EXISTS, _exists)):
        if (matched := pattern.match(text)) and text[matched.end() : matched.end() + 1] in ("", ","):
            rest = text[matched.end() + 1 :]
            if text[matched.end() :] == ",":
                break
            return build(matched), rest
    raise bad_request(f"unable to parse requirement: found {text!r}, expected: a label selector")


def _set(matched: re.Match[str]) -> Requirement:
    return Requirement(matched[1], matched[2], frozenset(value.strip() for value in matched[3].split(",")))


def _equal(matched: re.Match[str]) -> Requirement:
    return Requirement(matched[1], "notin" if matched[2] == "!=" else "in", frozenset({matched[3]}))


def _exists(matched: re.Match[str]) -> Requirement:
    return Requirement(matched[2], "absent" if matched[1] else "exists")


def label_selector_matches(selector: Json, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector object chooses these labels; an empty one chooses all."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    return all(
        Requirement(term["key"], operators[term["operator"]], frozenset(term.get("values", ()))).holds(labels)
        for term in selector.get("matchExpressions", ())
    )


def parse_fields(text: str, resource: Resource) -> list[tuple[str, str, bool]]:
    """Field, value, and whether they must be equal; 400 for a field that cannot be asked for."""
    found = []
    for term in filter(None, text.split(",")):
        matched = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", term)
        if matched is None:
            raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
        if matched[1] not in _NAMES | _FIELDS.get(resource.plural, frozenset()):
            raise bad_request(f"field label not supported: {matched[1]}")
        found.append((matched[1], matched[3], matched[2] != "!="))
    return found


def _field(obj: Json, path: str, resource: Resource) -> str:
    if resource.plural == "jobs" and path == "status.successful":
        path = "status.succeeded"
    value: Any = obj
    for step in path.split("."):
        value = value.get(step, "") if isinstance(value, dict) else ""
    if isinstance(value, bool):
        return str(value).lower()
    if path in ("spec.unschedulable", "spec.hostNetwork"):
        return str(value or "false")
    return str(value if value != "" or path != "status.succeeded" else 0)


def selector(resource: Resource, *, namespace: str, labels: str, fields: str) -> Callable[[Json], bool]:
    """Whether an object is among those that a list or a watch asks for."""
    requirements = parse_labels(labels)
    wanted = parse_fields(fields, resource)

    def chosen(obj: Json) -> bool:
        metadata = obj["metadata"]
        if namespace and metadata.get("namespace", "") != namespace:
            return False
        if not all(one.holds(metadata.get("labels", {})) for one in requirements):
            return False
        return all((_field(obj, path, resource) == value) is equal for path, value, equal in wanted)

    return chosen
