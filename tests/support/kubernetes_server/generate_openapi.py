"""Writes openapi.json: the part of Kubernetes' published OpenAPI schema that the test server enforces.

    python tests/support/kubernetes_server/generate_openapi.py kubernetes_validate-*.whl kubernetes-*.whl

Both wheels come from PyPI (`pip download --no-deps kubernetes-validate==1.37.0 kubernetes==37.0.2`). The
first holds the definitions of each version of Kubernetes, the second is the official client, generated from
the same document, and knows paths, methods and query parameters. Both are under the Apache License 2.0.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KUBERNETES = "v1.36.0"
_DEFINITIONS = f"kubernetes_validate/kubernetes-json-schema/{KUBERNETES}-local-strict/_definitions.json"
_TARGET = Path(__file__).with_name("openapi.json")
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
# API group and version, as the client names its modules, and the resources of it that are served.
_SERVED = {
    "core_v1": (
        "configmaps events limitranges namespaces nodes persistentvolumeclaims pods resourcequotas "
        "secrets serviceaccounts services"
    ),
    "apps_v1": "deployments",
    "authentication_v1": "selfsubjectreviews",
    "authorization_v1": "selfsubjectaccessreviews selfsubjectrulesreviews",
    "batch_v1": "jobs",
    "node_v1": "runtimeclasses",
    "rbac_authorization_v1": "clusterrolebindings clusterroles rolebindings roles",
    "scheduling_v1": "priorityclasses",
}
_SUBRESOURCES = frozenset({"status", "log", "eviction"})
_BODIES = (
    f"{_META}DeleteOptions",
    f"{_META}Status",
    "io.k8s.api.policy.v1.Eviction",
)
_KEPT = ("type", "format", "required", "enum", "$ref", "items", "additionalProperties", "oneOf", "properties")
_TYPES = {"StrictStr": "string", "StrictInt": "integer", "StrictBool": "boolean"}


def main(validate_wheel: str, client_wheel: str) -> None:
    with zipfile.ZipFile(validate_wheel) as wheel:
        published = json.loads(wheel.read(_DEFINITIONS))["$defs"]
    paths, parameters = read_paths(client_wheel)
    kinds = read_kinds(published, paths)
    document = {
        "origin": {
            "kubernetes": KUBERNETES,
            "definitions": f"{Path(validate_wheel).name}: {_DEFINITIONS}",
            "paths": Path(client_wheel).name,
            "license": "Apache-2.0, The Kubernetes Authors",
            "written by": "tests/support/kubernetes_server/generate_openapi.py",
        },
        "parameters": parameters,
        "paths": paths,
        "kinds": kinds,
        "definitions": closure(published, [*kinds.values(), *_BODIES]),
    }
    lines = ",\n".join(f"{json.dumps(key)}:{_by_line(value)}" for key, value in document.items())
    _TARGET.write_text(f"{{{lines}}}\n", encoding="utf-8")


def read_paths(client_wheel: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Query parameters by path and method, and the type of each parameter."""
    paths: dict[str, dict[str, list[str]]] = {}
    types: dict[str, str] = {}
    with zipfile.ZipFile(client_wheel) as wheel:
        for module, resources in _SERVED.items():
            tree = ast.parse(wheel.read(f"kubernetes/client/api/{module}_api.py"))
            for method, path, names, found in _operations(tree):
                if _is_served(path, resources.split()):
                    paths.setdefault(path, {})[method] = sorted(names)
                    types |= found
    return dict(sorted(paths.items())), dict(sorted(types.items()))


def _is_served(path: str, resources: list[str]) -> bool:
    if "/watch/" in path:
        return False
    # /api/v1/... or /apis/GROUP/VERSION/...
    parts = path.strip("/").split("/")[2 if path.startswith("/api/") else 3 :]
    if parts[:2] == ["namespaces", "{namespace}"] and len(parts) > 2:
        parts = parts[2:]
    known = bool(parts) and parts[0] in resources
    return known and (len(parts) < 3 or (len(parts) == 3 and parts[2] in _SUBRESOURCES))


def _operations(tree: ast.Module) -> Iterator[tuple[str, str, list[str], dict[str, str]]]:
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for name, node in functions.items():
        if not name.endswith("_serialize"):
            continue
        text = ast.unparse(node)
        method = re.search(r"method='(\w+)'", text)
        path = re.search(r"resource_path='([^']+)'", text)
        names = dict(re.findall(r"_query_params\.append\(\('(\w+)', (\w+)\)\)", text))
        assert method is not None, name
        assert path is not None, name
        public = functions[name.removeprefix("_").removesuffix("_serialize")]
        types = {wire: _type(public, local) for wire, local in names.items()}
        yield method[1], path[1], list(names), types


def _type(function: ast.FunctionDef, argument: str) -> str:
    annotation = next(
        ast.unparse(a.annotation) for a in function.args.args if a.arg == argument and a.annotation
    )
    return next(name for strict, name in _TYPES.items() if strict in annotation)


def read_kinds(published: dict[str, Any], paths: dict[str, Any]) -> dict[str, str]:
    """The definition of each resource, by `group/version/resource` as in its path."""
    by_lower = {
        (_api_version(definition), kind.lower()): name
        for name, definition in published.items()
        for kind in definition.get("properties", {}).get("kind", {}).get("enum", ())
        if name.startswith("io.k8s.api.")
    }
    kinds = {}
    for path in paths:
        parts = path.strip("/").split("/")
        if path.startswith("/api/"):
            parts = ["", *parts]
        group, version, rest = parts[1], parts[2], parts[3:]
        resource = rest[2] if rest[:2] == ["namespaces", "{namespace}"] and len(rest) > 2 else rest[0]
        api_version = f"{group}/{version}" if path.startswith("/apis/") else version
        name = by_lower[api_version, _singular(resource)]
        kinds[f"{api_version}/{resource}"] = name
    return kinds


def _api_version(definition: dict[str, Any]) -> str:
    found: list[str] = definition.get("properties", {}).get("apiVersion", {}).get("enum", [""])
    return found[0]


def _singular(resource: str) -> str:
    return resource[:-2] if resource.endswith("sses") else resource.removesuffix("s")


def closure(published: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The named definitions and all that they refer to, without prose."""
    found: dict[str, Any] = {}
    queue = list(names)
    while queue:
        name = queue.pop()
        if name not in found:
            found[name] = _pruned(published[name])
            queue += re.findall(r'"\$ref": "([^"]+)"', json.dumps(found[name]))
    return dict(sorted(found.items()))


def _pruned(node: Any) -> Any:
    kept = {key: node[key] for key in _KEPT if key in node}
    if "properties" in kept:
        kept["properties"] = {name: _pruned(child) for name, child in kept["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = _pruned(kept[key])
    if "oneOf" in kept:
        kept["oneOf"] = [_pruned(one) for one in kept["oneOf"]]
    if "$ref" in kept:
        kept["$ref"] = kept["$ref"].rpartition("/")[2]
    if isinstance(kept.get("type"), list):
        kept["type"] = kept["type"][0]
    if "x-kubernetes-patch-merge-key" in node and "merge" in node.get("x-kubernetes-patch-strategy", ""):
        kept["mergeKey"] = node["x-kubernetes-patch-merge-key"]
    return kept


def _by_line(value: Any) -> str:
    """JSON with a line for each entry, so that a change can be read."""
    if not isinstance(value, dict):
        return json.dumps(value)
    lines = ",\n".join(
        f"{json.dumps(key)}:{json.dumps(item, separators=(',', ':'))}" for key, item in value.items()
    )
    return f"{{\n{lines}\n}}"


if __name__ == "__main__":
    main(*sys.argv[1:])
