"""The rules for pods that the schema cannot say: closed sets, names, references, limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from support.kubernetes_server.errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    value_not_found,
)
from support.kubernetes_server.objects import Json
from support.kubernetes_server.syntax import (
    parse_quantity,
    wrong_env_name,
    wrong_label,
    wrong_label_value,
    wrong_qualified_name,
    wrong_subdomain,
)

_STANDARD_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})
_FIELD_PATHS = frozenset(
    {
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    }
)
# Closed sets of a pod's spec, by the field.
_POD_ENUMS = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
    "preemptionPolicy": ("PreemptLowerPriority", "Never"),
}
_CONTAINER_ENUMS = {
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")

Errors = Iterator[FieldError]


def pod_spec_errors(spec: Json, at: str) -> Errors:
    """`at` is where the spec is in the object: `spec`, or `spec.template.spec`."""
    if not spec.get("containers"):
        yield required(f"{at}.containers")
    volumes = {str(volume.get("name", "")) for volume in spec.get("volumes", ())}
    yield from _volume_errors(spec.get("volumes", ()), f"{at}.volumes")
    seen: set[str] = set()
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind, ())):
            path = f"{at}.{kind}[{i}]"
            if container["name"] in seen:
                yield duplicate(f"{path}.name", container["name"])
            seen.add(container["name"])
            yield from container_errors(container, path, volumes)
    yield from _enum_errors(spec, _POD_ENUMS, at)
    yield from _number_errors(spec, at)
    yield from _name_errors(spec, at)
    yield from _placing_errors(spec, at)


def _enum_errors(obj: Json, enums: Mapping[str, tuple[str, ...]], at: str) -> Errors:
    for name, supported in enums.items():
        if name in obj and obj[name] not in supported:
            yield not_supported(f"{at}.{name}", obj[name], supported)


def _number_errors(spec: Json, at: str) -> Errors:
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        field = f"{at}.terminationGracePeriodSeconds"
        yield invalid_value(
            field, spec["terminationGracePeriodSeconds"], "must be greater than or equal to 0"
        )
    if not 1 <= spec.get("activeDeadlineSeconds", 1) <= 2**31 - 1:
        field = f"{at}.activeDeadlineSeconds"
        yield invalid_value(
            field, spec["activeDeadlineSeconds"], "must be between 1 and 2147483647, inclusive"
        )


def _name_errors(spec: Json, at: str) -> Errors:
    for name in ("serviceAccountName", "priorityClassName", "runtimeClassName", "nodeName"):
        if spec.get(name) and (wrong := wrong_subdomain(spec[name])):
            yield invalid_value(f"{at}.{name}", spec[name], wrong)
    for name in ("hostname", "subdomain"):
        if spec.get(name) and (wrong := wrong_label(spec[name])):
            yield invalid_value(f"{at}.{name}", spec[name], wrong)
    for i, secret in enumerate(spec.get("imagePullSecrets", ())):
        if not secret.get("name"):
            yield required(f"{at}.imagePullSecrets[{i}].name")


def container_errors(container: Json, at: str, volumes: set[str]) -> Errors:
    if wrong := wrong_label(container["name"]):
        yield invalid_value(f"{at}.name", container["name"], wrong)
    if not container.get("image"):
        yield required(f"{at}.image")
    elif container["image"] != container["image"].strip():
        yield invalid_value(f"{at}.image", container["image"], "must not have leading or trailing whitespace")
    yield from _enum_errors(container, _CONTAINER_ENUMS, at)
    for i, variable in enumerate(container.get("env", ())):
        yield from _variable_errors(variable, f"{at}.env[{i}]")
    yield from _mount_errors(container.get("volumeMounts", ()), f"{at}.volumeMounts", volumes)
    yield from _port_errors(container.get("ports", ()), f"{at}.ports")
    yield from resource_errors(container.get("resources", {}), f"{at}.resources")
    context = container.get("securityContext", {})
    if context.get("privileged") and context.get("allowPrivilegeEscalation") is False:
        detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        yield invalid_value(f"{at}.securityContext", context, detail)


def _variable_errors(variable: Json, at: str) -> Errors:
    if not variable["name"]:
        yield required(f"{at}.name")
    elif wrong := wrong_env_name(variable["name"]):
        yield invalid_value(f"{at}.name", variable["name"], wrong)
    source = variable.get("valueFrom")
    if source is None:
        return
    if variable.get("value"):
        yield invalid_value(f"{at}.valueFrom", "", "may not be specified when `value` is not empty")
    if len(source) != 1:
        detail = (
            "may not have more than one field specified at a time"
            if source
            else ("must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`")
        )
        yield invalid_value(f"{at}.valueFrom", "", detail)
    if path := source.get("fieldRef", {}).get("fieldPath"):
        keyed = path.startswith(("metadata.labels['", "metadata.annotations['")) and path.endswith("']")
        if path not in _FIELD_PATHS and not keyed:
            yield not_supported(f"{at}.valueFrom.fieldRef.fieldPath", path, sorted(_FIELD_PATHS))
    for kind in ("secretKeyRef", "configMapKeyRef"):
        if kind in source and not source[kind].get("name"):
            yield required(f"{at}.valueFrom.{kind}.name")


def _mount_errors(mounts: list[Json], at: str, volumes: set[str]) -> Errors:
    paths: set[str] = set()
    for i, mount in enumerate(mounts):
        if mount["name"] not in volumes:
            yield value_not_found(f"{at}[{i}].name", mount["name"])
        if not mount["mountPath"]:
            yield required(f"{at}[{i}].mountPath")
        if mount["mountPath"] in paths:
            yield invalid_value(f"{at}[{i}].mountPath", mount["mountPath"], "must be unique")
        paths.add(mount["mountPath"])


def _port_errors(ports: list[Json], at: str) -> Errors:
    for i, port in enumerate(ports):
        if not 1 <= port["containerPort"] <= 65535:
            detail = "must be between 1 and 65535, inclusive"
            yield invalid_value(f"{at}[{i}].containerPort", port["containerPort"], detail)
        if port.get("protocol", "TCP") not in ("TCP", "UDP", "SCTP"):
            yield not_supported(f"{at}[{i}].protocol", port["protocol"], ("SCTP", "TCP", "UDP"))
        if "name" in port and (len(port["name"]) > 15 or wrong_label(port["name"])):
            detail = "must be no more than 15 characters and a lower case DNS label"
            yield invalid_value(f"{at}[{i}].name", port["name"], detail)


def _volume_errors(volumes: list[Json], at: str) -> Errors:
    seen: set[str] = set()
    for i, volume in enumerate(volumes):
        name = volume["name"]
        if wrong := wrong_label(name):
            yield invalid_value(f"{at}[{i}].name", name, wrong)
        if name in seen:
            yield duplicate(f"{at}[{i}].name", name)
        seen.add(name)
        sources = [key for key in volume if key != "name"]
        if not sources:
            yield required(f"{at}[{i}]", "must specify a volume type")
        if len(sources) > 1:
            yield forbidden_field(f"{at}[{i}].{sources[1]}", "may not specify more than 1 volume type")
        medium = volume.get("emptyDir", {}).get("medium", "")
        if medium not in ("", "Memory") and not medium.startswith("HugePages"):
            yield not_supported(f"{at}[{i}].emptyDir.medium", medium, ("", "HugePages", "Memory"))
        if "secret" in volume and not volume["secret"].get("secretName"):
            yield required(f"{at}[{i}].secret.secretName")


def is_extended(name: str) -> bool:
    """Resources that device plugins announce, such as nvidia.com/gpu: whole, and never overcommitted."""
    return "/" in name and not name.split("/")[0].endswith("kubernetes.io")


def resource_errors(resources: Json, at: str) -> Errors:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for kind, wanted in (("limits", limits), ("requests", requests)):
        for name, text in wanted.items():
            yield from _resource_errors(name, parse_quantity(text), text, f"{at}.{kind}")
    for name, text in requests.items():
        limit = parse_quantity(limits[name]) if name in limits else None
        field = f"{at}.requests"
        if is_extended(name) and limit is None:
            yield required(f"{at}.limits", "Limit must be set for non overcommitable resources")
        elif is_extended(name) and parse_quantity(text) != limit:
            yield invalid_value(field, text, f"must be equal to {name} limit of {limits[name]}")
        elif limit is not None and parse_quantity(text) > limit:
            yield invalid_value(field, text, f"must be less than or equal to {name} limit of {limits[name]}")


def _resource_errors(name: str, amount: Decimal, text: str, at: str) -> Errors:
    if wrong := wrong_qualified_name(name):
        yield invalid_value(f"{at}[{name}]", name, wrong)
    elif "/" not in name and name not in _STANDARD_RESOURCES and not name.startswith("hugepages-"):
        yield invalid_value(f"{at}[{name}]", name, "must be a standard resource type or fully qualified")
        yield invalid_value(f"{at}[{name}]", name, "must be a standard resource for containers")
    if amount < 0:
        yield invalid_value(f"{at}[{name}]", text, "must be greater than or equal to 0")
    if is_extended(name) and amount != amount.to_integral_value():
        yield invalid_value(f"{at}[{name}]", text, "must be an integer")


def _placing_errors(spec: Json, at: str) -> Errors:
    for key, value in spec.get("nodeSelector", {}).items():
        if wrong := wrong_qualified_name(key) or wrong_label_value(value):
            yield invalid_value(f"{at}.nodeSelector", key if wrong_qualified_name(key) else value, wrong)
    for i, toleration in enumerate(spec.get("tolerations", ())):
        yield from _toleration_errors(toleration, f"{at}.tolerations[{i}]")
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    strict = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if strict is not None:
        where = f"{at}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        if not strict["nodeSelectorTerms"]:
            yield required(where, "must have at least one node selector term")
        for i, term in enumerate(strict["nodeSelectorTerms"]):
            yield from _term_errors(term, f"{where}[{i}]")
    for i, spread in enumerate(spec.get("topologySpreadConstraints", ())):
        where = f"{at}.topologySpreadConstraints[{i}]"
        yield from _enum_errors(spread, {"whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway")}, where)
        if spread["maxSkew"] <= 0:
            yield invalid_value(f"{where}.maxSkew", spread["maxSkew"], "must be greater than zero")


def _toleration_errors(toleration: Json, at: str) -> Errors:
    operator = toleration.get("operator", "Equal")
    if operator not in ("Equal", "Exists"):
        yield not_supported(f"{at}.operator", operator, ("Equal", "Exists"))
    if operator == "Exists" and toleration.get("value"):
        yield invalid_value(f"{at}.operator", toleration, "value must be empty when `operator` is 'Exists'")
    if not toleration.get("key") and operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid_value(f"{at}.operator", operator, detail)
    if toleration.get("key") and (wrong := wrong_qualified_name(toleration["key"])):
        yield invalid_value(f"{at}.key", toleration["key"], wrong)
    if toleration.get("effect", "NoExecute") not in _EFFECTS:
        yield not_supported(f"{at}.effect", toleration["effect"], _EFFECTS)
    if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid_value(f"{at}.effect", toleration.get("effect", ""), detail)


def _term_errors(term: Json, at: str) -> Errors:
    for i, expression in enumerate(term.get("matchExpressions", ())):
        where, operator, values = (
            f"{at}.matchExpressions[{i}]",
            expression["operator"],
            expression.get("values", []),
        )
        if wrong := wrong_qualified_name(expression["key"]):
            yield invalid_value(f"{where}.key", expression["key"], wrong)
        if operator not in _NODE_OPERATORS:
            yield invalid_value(f"{where}.operator", operator, "not a valid selector operator")
        elif operator in ("In", "NotIn") and not values:
            yield required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist") and values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield forbidden_field(f"{where}.values", detail)
        elif operator in ("Gt", "Lt") and len(values) != 1:
            yield required(
                f"{where}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"
            )
