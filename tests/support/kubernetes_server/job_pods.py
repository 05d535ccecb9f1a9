"""The pods of a Job: which are active, which failed, which completion index each has, and how one is made."""

from __future__ import annotations

from collections.abc import Iterable

from support.kubernetes_server.objects import (
    Json,
    clone,
    finalizers_of,
    is_being_deleted,
    is_true,
    name_of,
    namespace_of,
    seconds_of,
    uid_of,
)

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"
MANAGER = "kubernetes.io/job-controller"


def is_indexed(job: Json) -> bool:
    return bool(job["spec"]["completionMode"] == "Indexed")


def has_limit_per_index(job: Json) -> bool:
    return "backoffLimitPerIndex" in job["spec"]


def replaces_only_failed(job: Json) -> bool:
    return job["spec"]["podReplacementPolicy"] == "Failed" or "podFailurePolicy" in job["spec"]


def index_of(pod: Json) -> int:
    """-1 for a pod that has none."""
    return int(pod["metadata"].get("annotations", {}).get(INDEX, -1))


def failures_of(pod: Json) -> int:
    """How often its index had failed before this pod."""
    return int(pod["metadata"].get("annotations", {}).get(FAILURES, 0))


def ignored_failures_of(pod: Json) -> int:
    return int(pod["metadata"].get("annotations", {}).get(IGNORED_FAILURES, 0))


def is_tracked(pod: Json) -> bool:
    return TRACKING in finalizers_of(pod)


def is_terminal(pod: Json) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def is_active(pod: Json) -> bool:
    return not is_terminal(pod) and not is_being_deleted(pod)


def is_terminating(pod: Json) -> bool:
    return not is_terminal(pod) and is_being_deleted(pod)


def is_ready(pod: Json) -> bool:
    return is_active(pod) and is_true(pod, "Ready")


def has_failed(pod: Json, job: Json) -> bool:
    if pod["status"].get("phase") == "Failed":
        return True
    return not replaces_only_failed(job) and is_terminating(pod)


def finished_at(pod: Json, otherwise: float) -> float:
    """When the last of its containers ended."""
    ended: Iterable[Json] = (
        one["state"]["terminated"]
        for one in pod["status"].get("containerStatuses", ())
        if "terminated" in one.get("state", {})
    )
    return max((seconds_of(one["finishedAt"]) for one in ended if "finishedAt" in one), default=otherwise)


def new_pod(job: Json, index: int | None, replaced: Json | None, *, ignored: bool) -> Json:
    """A pod from the Job's template; `replaced` is the pod of the same index that failed before."""
    template = clone(job["spec"]["template"])
    metadata = template.setdefault("metadata", {})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name_of(job), "uid": uid_of(job)}
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace_of(job),
            "generateName": f"{name_of(job)}-"[:58],
            "labels": dict(metadata.get("labels", {})),
            "annotations": dict(metadata.get("annotations", {})),
            "finalizers": [TRACKING],
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
        },
        "spec": template["spec"],
    }
    if index is not None:
        _give_index(pod, job, index)
        if has_limit_per_index(job):
            failures, passed_over = (
                (failures_of(replaced), ignored_failures_of(replaced)) if replaced else (0, 0)
            )
            if replaced is not None:
                failures, passed_over = (
                    (failures, passed_over + 1) if ignored else (failures + 1, passed_over)
                )
            pod["metadata"]["annotations"][FAILURES] = str(failures)
            if passed_over:
                pod["metadata"]["annotations"][IGNORED_FAILURES] = str(passed_over)
    return pod


def _give_index(pod: Json, job: Json, index: int) -> None:
    # The name must leave room for the index and the suffix.
    base = name_of(job)[: 63 - len(str(index)) - 7]
    pod["metadata"]["generateName"] = f"{base}-{index}-"
    pod["metadata"]["labels"][INDEX] = str(index)
    pod["metadata"]["annotations"][INDEX] = str(index)
    pod["spec"]["hostname"] = f"{name_of(job)}-{index}"
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    for kind in ("initContainers", "containers"):
        for container in pod["spec"].get(kind, ()):
            variables = container.setdefault("env", [])
            if not any(one["name"] == "JOB_COMPLETION_INDEX" for one in variables):
                variables.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
