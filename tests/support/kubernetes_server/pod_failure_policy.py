"""Which rule of a Job's podFailurePolicy a failed pod falls under."""

from __future__ import annotations

from dataclasses import dataclass

from support.kubernetes_server.objects import Json, name_of, namespace_of

COUNT, IGNORE, FAIL_INDEX, FAIL_JOB = "Count", "Ignore", "FailIndex", "FailJob"


@dataclass(frozen=True)
class FailureAction:
    """What a failure means for the Job, and why."""

    action: str
    message: str = ""


def action_for(policy: Json, pod: Json) -> FailureAction:
    """The first rule that fits decides; without one the failure counts."""
    for i, rule in enumerate(policy.get("rules", ())):
        if "onExitCodes" in rule:
            said = _matching_container(rule["onExitCodes"], pod)
        else:
            said = _matching_condition(rule.get("onPodConditions", ()), pod)
        if said:
            message = f"{said} matching {rule['action']} rule at index {i}"
            return FailureAction(rule["action"], message)
    return FailureAction(COUNT)


def _matching_container(wanted: Json, pod: Json) -> str:
    status = pod["status"]
    for one in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
        ended = one.get("state", {}).get("terminated")
        if ended is None or ended["exitCode"] == 0:
            continue
        if wanted.get("containerName", one["name"]) != one["name"]:
            continue
        if (ended["exitCode"] in wanted["values"]) is (wanted["operator"] == "In"):
            pod_name = f"{namespace_of(pod)}/{name_of(pod)}"
            return f"Container {one['name']} for pod {pod_name} failed with exit code {ended['exitCode']}"
    return ""


def _matching_condition(patterns: list[Json], pod: Json) -> str:
    for pattern in patterns:
        for condition in pod["status"].get("conditions", ()):
            if (condition["type"], condition["status"]) == (pattern["type"], pattern.get("status", "True")):
                return f"Pod {namespace_of(pod)}/{name_of(pod)} has condition {condition['type']}"
    return ""
