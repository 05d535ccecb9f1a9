"""What is checked and filled in from other objects when one is created: namespace, account, priority."""

from __future__ import annotations

from itertools import count

from support.kubernetes_server.errors import ApiError, forbidden, not_found
from support.kubernetes_server.objects import Json, is_being_deleted, name_of, namespace_of
from support.kubernetes_server.resources import Resource, resource_of
from support.kubernetes_server.storage import Storage

_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
# What a pod tolerates for five minutes, unless it says otherwise.
_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_addresses = count(1)


def admit(storage: Storage, resource: Resource, obj: Json) -> None:
    """Completes an object that is to be created, or refuses it with 403 or 404."""
    if resource.namespaced:
        _check_namespace(storage, resource, obj)
    if resource.plural == "pods":
        _admit_pod(storage, resource, obj)
    if resource.plural == "services" and obj["spec"].get("type") != "ExternalName":
        number = next(_addresses)
        address = obj["spec"].setdefault("clusterIP", f"10.96.{number // 250}.{number % 250 + 1}")
        obj["spec"].setdefault("clusterIPs", [address])


def _check_namespace(storage: Storage, resource: Resource, obj: Json) -> None:
    space = namespace_of(obj)
    found = storage.find(resource_of("namespaces"), "", space)
    if found is None:
        raise not_found("namespaces", space)
    if is_being_deleted(found):
        message = f"unable to create new content in namespace {space} because it is being terminated"
        raise forbidden(resource.qualified, obj["metadata"].get("name", ""), message)


def _admit_pod(storage: Storage, resource: Resource, pod: Json) -> None:
    spec, space = pod["spec"], namespace_of(pod)
    shown = pod["metadata"].get("name") or pod["metadata"].get("generateName", "")

    def refuse(message: str) -> ApiError:
        return forbidden(resource.qualified, shown, message)

    account = spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = account
    if storage.find(resource_of("serviceaccounts"), space, account) is None:
        raise refuse(
            f'error looking up service account {space}/{account}: serviceaccount "{account}" not found'
        )
    runtime = spec.get("runtimeClassName")
    if runtime and storage.find(resource_of("runtimeclasses", "node.k8s.io"), "", runtime) is None:
        raise refuse(f'pod rejected: RuntimeClass "{runtime}" not found')
    _set_priority(
        storage,
        spec,
        refuse_with=refuse(f"no PriorityClass with name {spec.get('priorityClassName')} was found"),
    )
    spec.setdefault("enableServiceLinks", True)
    tolerations = spec.setdefault("tolerations", [])
    for key in _LOST_NODE:
        if not any(one.get("key") in (key, None) for one in tolerations):
            lost = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            tolerations.append(lost)
    pod["status"] = {"phase": "Pending", "qosClass": _quality(spec)}


def _set_priority(storage: Storage, spec: Json, *, refuse_with: ApiError) -> None:
    classes = storage.all(resource_of("priorityclasses", "scheduling.k8s.io"))
    name = spec.get("priorityClassName")
    policy = "PreemptLowerPriority"
    if name in _SYSTEM_PRIORITIES:
        value = _SYSTEM_PRIORITIES[name]
    else:
        found = next(
            (one for one in classes if (name_of(one) == name if name else one.get("globalDefault"))), None
        )
        if name and found is None:
            raise refuse_with
        value = found["value"] if found else 0
        policy = found["preemptionPolicy"] if found else policy
        if found:
            spec["priorityClassName"] = name_of(found)
    spec["priority"] = value
    spec["preemptionPolicy"] = policy


def _quality(spec: Json) -> str:
    resources = [container.get("resources", {}) for container in spec["containers"]]
    guaranteed = all(
        {"cpu", "memory"} <= found.get("limits", {}).keys() and found.get("requests") == found.get("limits")
        for found in resources
    )
    if guaranteed:
        return "Guaranteed"
    return (
        "Burstable"
        if any(found.get("limits") or found.get("requests") for found in resources)
        else "BestEffort"
    )
