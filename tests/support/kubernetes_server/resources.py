"""Which resources are served, by which paths and methods, with which query parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import unquote

from support.kubernetes_server.errors import bad_request, method_not_allowed, no_such_path
from support.kubernetes_server.schema import document

_CLOSED = {
    "dryRun": ("All",),
    "fieldValidation": ("Ignore", "Warn", "Strict"),
    "propagationPolicy": ("Orphan", "Background", "Foreground"),
    "resourceVersionMatch": ("Exact", "NotOlderThan"),
}


@dataclass(frozen=True)
class Resource:
    """A kind of object and where it is found."""

    group: str
    version: str
    plural: str
    kind: str
    definition: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As errors and rules name it: `jobs.batch`, `pods`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


@dataclass(frozen=True)
class Route:
    """What a method and a path ask for."""

    resource: Resource
    verb: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    parameters: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Query:
    """The query parameters of a request, checked."""

    values: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        return self.values.get(name, "")

    def flag(self, name: str) -> bool:
        return self.values.get(name, "false").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        return int(self.values[name]) if name in self.values else None


@cache
def resources() -> Mapping[str, Resource]:
    """By `group/version/plural`, as paths have it."""
    paths = document()["paths"]
    found = {}
    for key, definition in document()["kinds"].items():
        api_version, _, plural = key.rpartition("/")
        group, _, version = api_version.rpartition("/")
        kind = definition.rpartition(".")[2]
        namespaced = any(f"/{{namespace}}/{plural}" in path and f"/{api_version}/" in path for path in paths)
        found[key] = Resource(group, version, plural, kind, definition, namespaced)
    return found


def resource_of(plural: str, group: str = "") -> Resource:
    return next(one for one in resources().values() if (one.plural, one.group) == (plural, group))


def resource_of_kind(api_version: str, kind: str) -> Resource | None:
    found = (one for one in resources().values() if (one.api_version, one.kind) == (api_version, kind))
    return next(found, None)


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    found = []
    for template in document()["paths"]:
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(template))
        found.append((re.compile(pattern), template))
    return found


def route(method: str, path: str, query: Mapping[str, str]) -> Route:
    """404 for a path that the schema does not have, 405 for a method that the path does not take."""
    for pattern, template in _patterns():
        if matched := pattern.fullmatch(path):
            methods = document()["paths"][template]
            if method not in methods:
                raise method_not_allowed()
            parts = {name: unquote(value) for name, value in matched.groupdict().items()}
            return _route(method, template, parts, query, frozenset(methods[method]))
    raise no_such_path()


def _route(
    method: str, template: str, parts: Mapping[str, str], query: Mapping[str, str], parameters: frozenset[str]
) -> Route:
    words = template.strip("/").split("/")
    api_version = words[1] if words[0] == "api" else f"{words[1]}/{words[2]}"
    rest = words[2 if words[0] == "api" else 3 :]
    if rest[:2] == ["namespaces", "{namespace}"] and len(rest) > 2:
        rest = rest[2:]
    resource = resources()[f"{api_version}/{rest[0]}"]
    name = parts.get("name", "")
    subresource = rest[2] if len(rest) > 2 else ""
    verb = _verb(method, name, watching=Query(query).flag("watch"))
    namespace = parts.get("namespace", name if resource.plural == "namespaces" else "")
    return Route(resource, verb, namespace, name, subresource, parameters)


def _verb(method: str, name: str, *, watching: bool) -> str:
    if method == "GET":
        return "get" if name else "watch" if watching else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}[method]


def check_query(given: Mapping[str, list[str]], allowed: frozenset[str]) -> Query:
    """400 for a parameter that the operation does not have, or that has a wrong value."""
    values = {}
    for name, several in given.items():
        if name not in allowed:
            raise bad_request(f'unknown query parameter "{name}"')
        if len(several) > 1 and len(set(several)) > 1:
            raise bad_request(f'query parameter "{name}" is given more than once')
        _check_parameter(name, several[0])
        values[name] = several[0]
    return Query(values)


def _check_parameter(name: str, value: str) -> None:
    kind = document()["parameters"][name]
    if kind == "integer" and not re.fullmatch(r"-?\d+", value):
        raise bad_request(f'strconv.ParseInt: parsing "{value}": invalid syntax (query parameter {name})')
    if kind == "boolean" and value.lower() not in ("true", "false", "1", "0"):
        raise bad_request(f'query parameter {name} is "{value}", neither true nor false')
    if name in _CLOSED and value and value not in _CLOSED[name]:
        raise bad_request(
            f'query parameter {name} is "{value}", and must be one of {", ".join(_CLOSED[name])}'
        )
