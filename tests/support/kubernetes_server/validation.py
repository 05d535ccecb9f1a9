"""The rules for all objects: metadata first, then those of their kind."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping

from support.kubernetes_server.errors import (
    FieldError,
    forbidden_field,
    invalid,
    invalid_value,
    not_supported,
    required,
    too_long,
)
from support.kubernetes_server.objects import Json
from support.kubernetes_server.resources import Resource
from support.kubernetes_server.syntax import (
    wrong_config_key,
    wrong_label,
    wrong_label_1035,
    wrong_label_value,
    wrong_path_segment,
    wrong_qualified_name,
    wrong_subdomain,
)
from support.kubernetes_server.validate_jobs import job_errors, job_update_errors
from support.kubernetes_server.validate_pods import pod_spec_errors

_ANNOTATION_BYTES = 256 * 1024
_SECRET_BYTES = 1024 * 1024
_NAMES: Mapping[str, Callable[[str], str]] = {
    "namespaces": wrong_label,
    "services": wrong_label_1035,
    "roles": wrong_path_segment,
    "rolebindings": wrong_path_segment,
    "clusterroles": wrong_path_segment,
    "clusterrolebindings": wrong_path_segment,
}
_PLAIN_FINALIZERS = frozenset({"orphan", "foregroundDeletion", "kubernetes"})
# Of a pod that exists only these may be changed.
_POD_MUTABLE = frozenset(
    {"tolerations", "activeDeadlineSeconds", "schedulingGates", "terminationGracePeriodSeconds"}
)

Errors = Iterator[FieldError]


def validate_new(resource: Resource, obj: Json) -> None:
    """422 with every cause."""
    _refuse(resource, obj, [*_metadata_errors(resource, obj), *_kind_errors(resource, obj)])


def validate_changed(resource: Resource, old: Json, new: Json) -> None:
    errors = [
        *_metadata_errors(resource, new),
        *_kind_errors(resource, new),
        *_change_errors(resource, old, new),
    ]
    _refuse(resource, new, errors)


def _refuse(resource: Resource, obj: Json, errors: list[FieldError]) -> None:
    if errors:
        metadata = obj.get("metadata", {})
        name = metadata.get("name", metadata.get("generateName", ""))
        raise invalid(resource.kind, resource.group, name, errors)


def _metadata_errors(resource: Resource, obj: Json) -> Errors:
    metadata = obj.get("metadata", {})
    wrong_name = _NAMES.get(resource.plural, wrong_subdomain)
    name, prefix = metadata.get("name", ""), metadata.get("generateName", "")
    if not name and not prefix:
        yield required("metadata.name", "name or generateName is required")
    if name and (wrong := wrong_name(name)):
        yield invalid_value("metadata.name", name, wrong)
    # What follows a generated name's prefix is a letter or digit.
    if prefix and (wrong := wrong_name(f"{prefix[:58]}a")):
        yield invalid_value("metadata.generateName", prefix, wrong)
    yield from labels_errors(metadata.get("labels", {}), "metadata.labels")
    yield from annotation_errors(metadata.get("annotations", {}), "metadata.annotations")
    for i, finalizer in enumerate(metadata.get("finalizers", ())):
        if wrong := wrong_qualified_name(finalizer):
            yield invalid_value(f"metadata.finalizers[{i}]", finalizer, wrong)
        elif "/" not in finalizer and finalizer not in _PLAIN_FINALIZERS:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            yield invalid_value(f"metadata.finalizers[{i}]", finalizer, detail)
    yield from _owner_errors(metadata.get("ownerReferences", ()))


def labels_errors(labels: Mapping[str, str], at: str) -> Errors:
    for key, value in labels.items():
        if wrong := wrong_qualified_name(key):
            yield invalid_value(at, key, wrong)
        if wrong := wrong_label_value(value):
            yield invalid_value(at, value, wrong)


def annotation_errors(annotations: Mapping[str, str], at: str) -> Errors:
    for key in annotations:
        if wrong := wrong_qualified_name(key.lower()):
            yield invalid_value(at, key, wrong)
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _ANNOTATION_BYTES:
        yield too_long(at, _ANNOTATION_BYTES)


def _owner_errors(owners: list[Json]) -> Errors:
    managers = []
    for i, owner in enumerate(owners):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                yield invalid_value(f"metadata.ownerReferences[{i}].{name}", "", f"{name} must not be empty")
        if owner.get("controller"):
            managers.append(f"{owner['kind']}/{owner['name']}")
    if len(managers) > 1:
        detail = (
            f'Only one reference can have Controller set to true. Found "true" in references for {managers}'
        )
        yield invalid_value("metadata.ownerReferences", managers, detail)


def _kind_errors(resource: Resource, obj: Json) -> Errors:
    match resource.plural:
        case "pods":
            yield from _pod_errors(obj)
        case "jobs":
            template = obj["spec"]["template"].get("metadata", {})
            yield from labels_errors(template.get("labels", {}), "spec.template.labels")
            yield from annotation_errors(template.get("annotations", {}), "spec.template.annotations")
            yield from job_errors(obj)
        case "deployments":
            yield from pod_spec_errors(obj["spec"]["template"].get("spec", {}), "spec.template.spec")
        case "secrets":
            yield from _secret_errors(obj)
        case "services":
            yield from _service_errors(obj)
        case "priorityclasses":
            yield from _priority_errors(obj)
        case "events":
            if obj["involvedObject"].get("namespace", "default") != obj["metadata"].get("namespace"):
                given = obj["involvedObject"].get("namespace", "")
                yield invalid_value("involvedObject.namespace", given, "does not match event.namespace")


def _pod_errors(pod: Json) -> Errors:
    if "spec" not in pod:
        yield required("spec.containers")
    else:
        yield from pod_spec_errors(pod["spec"], "spec")


def _secret_errors(secret: Json) -> Errors:
    size = 0
    for key, value in secret.get("data", {}).items():
        size += len(base64.b64decode(value))
        if wrong := wrong_config_key(key):
            yield invalid_value(f"data[{key}]", key, wrong)
    if size > _SECRET_BYTES:
        yield too_long("data", _SECRET_BYTES)


def _service_errors(service: Json) -> Errors:
    spec = service.get("spec", {})
    kinds = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if spec.get("type") not in kinds:
        yield not_supported("spec.type", spec.get("type"), kinds)
    headless = spec.get("clusterIP") == "None"
    if not spec.get("ports") and not headless and spec.get("type") != "ExternalName":
        yield required("spec.ports")
    for i, port in enumerate(spec.get("ports", ())):
        if not 1 <= port["port"] <= 65535:
            yield invalid_value(
                f"spec.ports[{i}].port", port["port"], "must be between 1 and 65535, inclusive"
            )
        if len(spec["ports"]) > 1 and not port.get("name"):
            yield required(f"spec.ports[{i}].name")


def _priority_errors(priority: Json) -> Errors:
    name, value = priority.get("metadata", {}).get("name", ""), priority["value"]
    if value > 1_000_000_000 and not name.startswith("system-"):
        yield forbidden_field("value", "maximum allowed value of a user defined priority is 1000000000")
    if priority.get("preemptionPolicy", "Never") not in ("PreemptLowerPriority", "Never"):
        yield not_supported(
            "preemptionPolicy", priority["preemptionPolicy"], ("PreemptLowerPriority", "Never")
        )


def _change_errors(resource: Resource, old: Json, new: Json) -> Errors:
    match resource.plural:
        case "jobs":
            yield from job_update_errors(old, new)
        case "pods":
            yield from _pod_change_errors(old["spec"], new["spec"])
        case "secrets":
            if old.get("type") != new.get("type"):
                yield invalid_value("type", new.get("type"), "field is immutable")
            if old.get("immutable") and (old.get("data"), True) != (new.get("data"), new.get("immutable")):
                yield forbidden_field("data", "field is immutable when `immutable` is set")
        case "services":
            if old["spec"].get("clusterIP") != new["spec"].get("clusterIP"):
                detail = "may not change once set"
                yield invalid_value("spec.clusterIPs[0]", new["spec"].get("clusterIP"), detail)
        case "priorityclasses":
            if old["value"] != new["value"]:
                yield forbidden_field("value", "may not be changed in an update.")


def _pod_change_errors(old: Json, new: Json) -> Errors:
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    if "containers" in changed and _but_images(old["containers"]) == _but_images(new["containers"]):
        changed.discard("containers")
    if changed - _POD_MUTABLE:
        allowed = "`spec.containers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations`"
        yield forbidden_field("spec", f"pod updates may not change fields other than {allowed}")


def _but_images(containers: list[Json]) -> list[Json]:
    return [{key: value for key, value in one.items() if key != "image"} for one in containers]
