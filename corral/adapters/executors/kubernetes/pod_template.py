"""The pod of a rank: what it runs, where it may run, and what it may not do."""

from __future__ import annotations

import math
from typing import Any

from corral.adapters.executors.kubernetes.names import INDEX, annotations_of, job_name, labels_of
from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import RANK, TOKENS, LaunchOrder

Json = dict[str, Any]
CONTAINER = "worker"
TOKENS_PATH = "/var/run/secrets/corral/tokens"
# What `uname` says, and what Kubernetes calls it.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MIB = 1 << 20
# Owner alone; the kubelet adds the group that the pod's fsGroup names.
_OWNER_READS = 0o400
_DO_NOT_DISRUPT = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}


def pod_template(order: LaunchOrder, options: KubernetesOptions, *, gpu_models: tuple[str, ...]) -> Json:
    annotations = annotations_of(order) | (_DO_NOT_DISRUPT if options.do_not_disrupt else {})
    spec: Json = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(order.grace_s),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(options),
        "containers": [_container(order, options)],
        "volumes": _volumes(order, options),
    }
    spec |= _placing(order.need, options, gpu_models)
    spec |= _named(options)
    if options.spread_over:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": options.spread_over,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels_of(order)},
            }
        ]
    return {"metadata": {"labels": labels_of(order), "annotations": annotations}, "spec": spec}


def _named(options: KubernetesOptions) -> Json:
    """What the pod refers to by name."""
    found: Json = {}
    for field, name in (
        ("serviceAccountName", options.service_account),
        ("priorityClassName", options.priority_class),
        ("runtimeClassName", options.runtime_class),
    ):
        found |= {field: name} if name else {}
    if options.pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    return found


def _pod_security(options: KubernetesOptions) -> Json:
    return {
        "runAsNonRoot": True,
        "runAsUser": options.user,
        "runAsGroup": options.user,
        # Without it the owner of the tokens' files is root, and the worker could not read them.
        "fsGroup": options.user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container(order: LaunchOrder, options: KubernetesOptions) -> Json:
    extra = [
        {"name": one.name, "mountPath": one.mount_path, "readOnly": one.read_only} for one in options.volumes
    ]
    return {
        "name": CONTAINER,
        "image": order.image or options.image or "",
        "command": [_literal(word) for word in order.command],
        "env": _environment(order),
        "resources": resources(order.need, options),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "capabilities": {"drop": ["ALL"]},
        },
        # The last lines of a worker that failed are part of its pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "corral-tokens", "mountPath": TOKENS_PATH, "readOnly": True},
            {"name": "corral-shm", "mountPath": "/dev/shm"},
            *extra,
        ],
    }


def _environment(order: LaunchOrder) -> list[Json]:
    given = [
        {"name": name, "value": _literal(value)}
        for name, value in order.environ.items()
        if name not in (TOKENS, RANK)
    ]
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    return [*given, {"name": TOKENS, "value": TOKENS_PATH}, {"name": RANK, "valueFrom": index}]


def _literal(text: str) -> str:
    """Kubernetes replaces `$(NAME)` in commands and variables, and takes `$$` for a dollar sign."""
    return text.replace("$", "$$")


def resources(need: Requirements, options: KubernetesOptions) -> Json:
    memory = str(memory_bytes(need, options))
    requests = {"cpu": _cores(need.min_cores or options.cpu), "memory": memory}
    limits = {"memory": memory}
    if need.min_disk_bytes:
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = str(need.min_disk_bytes)
    if need.gpus:
        requests[options.gpu_resource] = limits[options.gpu_resource] = str(need.gpus)
    return {"requests": requests, "limits": limits}


def memory_bytes(need: Requirements, options: KubernetesOptions) -> int:
    return (need.min_ram_bytes or options.memory_bytes) + options.worker_memory_bytes


def _cores(count: float) -> str:
    return f"{math.ceil(count * 1000)}m"


def _volumes(order: LaunchOrder, options: KubernetesOptions) -> list[Json]:
    # What is written to it counts as memory of the pod, so no more than that can be used anyway.
    shm = options.shm_bytes or memory_bytes(order.need, options)
    tokens = {"secretName": job_name(order.key), "defaultMode": _OWNER_READS}
    return [
        {"name": "corral-tokens", "secret": tokens},
        {"name": "corral-shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(shm)}},
        *({"name": one.name, **one.source} for one in options.volumes),
    ]


def _placing(need: Requirements, options: KubernetesOptions, gpu_models: tuple[str, ...]) -> Json:
    found: Json = {}
    selector = dict(options.node_selector)
    if need.os:
        selector["kubernetes.io/os"] = need.os
    if need.arch:
        selector["kubernetes.io/arch"] = ARCHITECTURES.get(need.arch, need.arch)
    for label in need.labels:
        selector |= options.labels.get(label, {})
    if selector:
        found["nodeSelector"] = selector
    if terms := gpu_terms(need, options, gpu_models):
        strict = {"nodeSelectorTerms": terms}
        found["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": strict}}
    tolerations: list[Any] = [dict(one) for one in options.tolerations]
    if need.gpus:
        # Nodes with GPUs are usually kept free of everything else by a taint of this name.
        tolerations.append({"key": options.gpu_resource, "operator": "Exists"})
    if tolerations:
        found["tolerations"] = tolerations
    return found


def gpu_terms(need: Requirements, options: KubernetesOptions, gpu_models: tuple[str, ...]) -> list[Json]:
    """Which nodes have a fitting GPU, by the labels that a GPU operator writes; any of the terms will do."""
    if not need.gpus:
        return []
    all_of: list[Json] = []
    if need.gpu:
        all_of.append({"key": options.gpu_label, "operator": "In", "values": sorted(gpu_models)})
    if need.min_vram_bytes is not None:
        least = math.ceil(need.min_vram_bytes / _MIB) - 1
        all_of.append({"key": options.gpu_memory_label, "operator": "Gt", "values": [str(least)]})
    any_of = _compute_terms(need, options) or [[]]
    return [{"matchExpressions": [*all_of, *one]} for one in any_of if all_of or one]


def _compute_terms(need: Requirements, options: KubernetesOptions) -> list[list[Json]]:
    if need.min_compute_capability is None:
        return []
    major, _, minor = need.min_compute_capability.partition(".")
    key = options.gpu_compute_label
    newer = [{"key": f"{key}.major", "operator": "Gt", "values": [major]}]
    same: list[Json] = [{"key": f"{key}.major", "operator": "In", "values": [major]}]
    if int(minor or 0) > 0:
        same.append({"key": f"{key}.minor", "operator": "Gt", "values": [str(int(minor) - 1)]})
    return [newer, same]
