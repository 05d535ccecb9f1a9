"""How a pod ended, and what one that does not run yet waits for, in the cluster's own words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from corral.adapters.executors.kubernetes.pod_template import CONTAINER
from corral.domain.placements.orders import SightCause

Json = dict[str, Any]
_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
# Reasons of a container that the node did not start, or could not.
_REFUSED = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "StartError",
        "ContainerCannotRun",
    }
)
# Who disturbed a pod, by the reason of its condition DisruptionTarget.
_DISRUPTIONS = {
    "PreemptionByScheduler": SightCause.PREEMPTED,
    "DeletionByPodGC": SightCause.NODE_LOST,
    "EvictionByEvictionAPI": SightCause.EVICTED,
    "TerminationByKubelet": SightCause.EVICTED,
    "DeletionByTaintManager": SightCause.EVICTED,
}
# What a kubelet, or the control plane in its place, says of a pod as a whole.
_POD_REASONS = {
    "Evicted": SightCause.EVICTED,
    "Preempting": SightCause.PREEMPTED,
    "NodeLost": SightCause.NODE_LOST,
    "NodeShutdown": SightCause.EVICTED,
    "Terminated": SightCause.EVICTED,
    "DeadlineExceeded": SightCause.DEADLINE,
    "UnexpectedAdmissionError": SightCause.REFUSED,
    "NodeAffinity": SightCause.REFUSED,
    "OutOfcpu": SightCause.REFUSED,
    "OutOfmemory": SightCause.REFUSED,
    "OutOfpods": SightCause.REFUSED,
}
# A container runtime tells the end by a signal as 128 and its number.
_SIGNALS = range(129, 129 + 64)


class PodEnd(NamedTuple):
    cause: SightCause
    detail: str
    exit_code: int | None = None
    signal: int | None = None


class PodWait(NamedTuple):
    cause: SightCause | None
    detail: str


def condition(obj: Json, kind: str) -> Json | None:
    """The condition of this type if it holds."""
    found: Iterable[Json] = obj.get("status", {}).get("conditions") or ()
    return next((one for one in found if one["type"] == kind and one["status"] == "True"), None)


def words(*parts: object) -> str:
    return ": ".join(str(part) for part in parts if part)


def container_status(pod: Json) -> Json:
    found: Iterable[Json] = pod.get("status", {}).get("containerStatuses") or ()
    return next((one for one in found if one["name"] == CONTAINER), {})


def pod_end(pod: Json) -> PodEnd:
    """Of a pod that has failed. What its container says of itself goes before what others say of the pod."""
    status = pod.get("status", {})
    ended = _terminated(pod)
    code: int | None = ended.get("exitCode")
    number = ended.get("signal") or (code - 128 if code is not None and code in _SIGNALS else None)
    reason, message = status.get("reason", ""), status.get("message", "")
    if ended.get("reason") == "OOMKilled":
        return PodEnd(SightCause.OUT_OF_MEMORY, words("OOMKilled", ended.get("message")), code, number)
    if (target := condition(pod, "DisruptionTarget")) is not None:
        cause = _DISRUPTIONS.get(target.get("reason", ""), SightCause.EVICTED)
        said = words(target.get("reason"), message or target.get("message"))
        return PodEnd(cause, said, code, number)
    if reason in _POD_REASONS:
        return PodEnd(_POD_REASONS[reason], words(reason, message), code, number)
    if ended.get("reason") in _REFUSED:
        return PodEnd(SightCause.REFUSED, words(ended["reason"], ended.get("message")), code, None)
    said = words(reason, message) or words(ended.get("reason"), ended.get("message"))
    if code is None:
        return PodEnd(SightCause.UNKNOWN, said)
    return PodEnd(SightCause.EXITED, said, code, number)


def exit_code(pod: Json) -> int | None:
    found = _terminated(pod).get("exitCode")
    return int(found) if found is not None else None


def _terminated(pod: Json) -> Json:
    found: Json = container_status(pod).get("state", {}).get("terminated") or {}
    return found


def pod_wait(pod: Json, warnings: Iterable[Json]) -> PodWait:
    """Of a pod that does not run yet; `warnings` are events about it, the newest last."""
    if not pod["spec"].get("nodeName"):
        return _unscheduled(pod)
    waiting: Json = container_status(pod).get("state", {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _IMAGE:
        # A back-off says that it backs off; the event before it says why.
        pulls = [one["message"] for one in warnings if "pull" in one.get("message", "").lower()]
        return PodWait(SightCause.IMAGE, words(reason, pulls[-1] if pulls else message))
    if reason in _REFUSED:
        return PodWait(SightCause.REFUSED, words(reason, message))
    mounts = [
        words(one["reason"], one.get("message")) for one in warnings if one.get("reason") == "FailedMount"
    ]
    return PodWait(None, mounts[-1] if mounts else words(reason, message))


def _unscheduled(pod: Json) -> PodWait:
    for one in pod.get("status", {}).get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            known = one.get("reason") == "Unschedulable"
            return PodWait(SightCause.UNSCHEDULABLE if known else None, one.get("message", ""))
    return PodWait(None, "")
