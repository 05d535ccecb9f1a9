"""What is made of an order: an Indexed Job, and the Secret with its tokens. Nothing here asks anybody."""

from __future__ import annotations

import base64
import math
from typing import Any

from corral.adapters.executors.kubernetes.names import (
    PREFIX,
    QUEUE,
    annotations_of,
    job_name,
    label_value,
    labels_of,
)
from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.adapters.executors.kubernetes.pod_template import pod_template
from corral.domain.placements.orders import LaunchOrder

Json = dict[str, Any]
# The API server takes no more for a Secret as a whole.
MOST_SECRET_BYTES = 1 << 20


def job_manifest(order: LaunchOrder, options: KubernetesOptions, *, gpu_models: tuple[str, ...]) -> Json:
    """The Job, suspended: Kueue starts it where there is a queue, and otherwise we do once its tokens are
    there. `gpu_models` are the labels of the nodes that its GPUs may be on."""
    labels = labels_of(order) | ({QUEUE: options.queue} if options.queue else {})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(order.key),
            "labels": labels,
            "annotations": annotations_of(order) | _partial_admission(order, options),
        },
        "spec": _job_spec(order, options, gpu_models),
    }


def _job_spec(order: LaunchOrder, options: KubernetesOptions, gpu_models: tuple[str, ...]) -> Json:
    spec: Json = {
        "completionMode": "Indexed",
        "completions": order.ranks,
        "parallelism": order.ranks,
        "suspend": True,
        # Each rank fails for itself, and is named by status.failedIndexes.
        "backoffLimitPerIndex": options.restarts,
        # In a gang that must be whole the first rank that fails ends all the others. An elastic one goes on
        # with those that are left: Corral brings up others instead, and knows when there are too few.
        "maxFailedIndexes": order.ranks if order.min_ranks < order.ranks else 0,
        # Whoever is preempted, drained or on a node that goes did nothing wrong, and is placed again.
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
            ]
        },
        # No two workers of one rank at once.
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": options.keep_s,
        "template": pod_template(order, options, gpu_models=gpu_models),
    }
    if order.limit_s is not None:
        spec["activeDeadlineSeconds"] = max(1, math.ceil(order.limit_s))
    if options.done_with_min_ranks and order.min_ranks < order.ranks:
        spec["successPolicy"] = {"rules": [{"succeededCount": max(1, order.min_ranks)}]}
    return spec


def _partial_admission(order: LaunchOrder, options: KubernetesOptions) -> dict[str, str]:
    """Kueue may start an elastic Job with fewer ranks."""
    if not options.queue or order.min_ranks >= order.ranks:
        return {}
    return {
        "kueue.x-k8s.io/job-min-parallelism": str(max(1, order.min_ranks)),
        "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
    }


def secret_manifest(order: LaunchOrder, *, owner_uid: str) -> Json:
    """A file per rank. The Job owns it: it goes with the Job, and at once if the Job is gone already."""
    name = job_name(order.key)
    data = {str(rank): base64.b64encode(token.encode()).decode() for rank, token in enumerate(order.tokens)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": name,
            "labels": labels_of(order) | {f"{PREFIX}/kind": label_value("tokens")},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner_uid}],
        },
        "data": data,
    }
