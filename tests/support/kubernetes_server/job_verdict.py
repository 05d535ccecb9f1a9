"""When a Job has failed or succeeded, and the words for it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from support.kubernetes_server.indexes import parsed
from support.kubernetes_server.job_pods import has_limit_per_index, is_indexed
from support.kubernetes_server.objects import Json, condition, is_true, seconds_of

FAILURE, SUCCESS = "FailureTarget", "SuccessCriteriaMet"


@dataclass(frozen=True)
class Verdict:
    """Why a Job is to end; its terminal condition follows when its last pod has ended."""

    target: str
    reason: str
    message: str


@dataclass(frozen=True)
class JobCounts:
    """What a Job's pods have come to."""

    failed_pods: int
    completed: Set[int]
    failed: Set[int]
    pods: list[Json]


def known_verdict(job: Json) -> Verdict | None:
    for target in (SUCCESS, FAILURE):
        if is_true(job, target):
            found = condition(job, target)
            assert found is not None
            return Verdict(target, found["reason"], found.get("message", ""))
    return None


def deadline_of(job: Json) -> float | None:
    """A Job that is suspended has none: its time begins anew when it is resumed."""
    limit_s = job["spec"].get("activeDeadlineSeconds")
    if limit_s is None or job["spec"].get("suspend") or "startTime" not in job["status"]:
        return None
    return seconds_of(job["status"]["startTime"]) + float(limit_s)


def early_verdict(job: Json, counts: JobCounts, now: float) -> Verdict | None:
    """Before pods are made: the Job has failed, or its success policy is met."""
    if failure := _failure(job, counts, now):
        return Verdict(FAILURE, *failure)
    for i, rule in enumerate(job["spec"].get("successPolicy", {}).get("rules", ())):
        if _is_met(rule, counts.completed, int(job["spec"]["completions"])):
            return Verdict(SUCCESS, "SuccessPolicy", f"Matched rules at index {i}")
    return None


def _failure(job: Json, counts: JobCounts, now: float) -> tuple[str, str] | None:
    spec = job["spec"]
    if counts.failed_pods > spec["backoffLimit"] or _restarted_too_often(spec, counts.pods):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    deadline = deadline_of(job)
    if deadline is not None and now >= deadline:
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    if has_limit_per_index(job):
        most = spec.get("maxFailedIndexes")
        if most is not None and len(counts.failed) > most:
            said = "Job has exceeded the specified maximal number of failed indexes"
            return "MaxFailedIndexesExceeded", said
        if counts.failed and len(counts.failed | counts.completed) >= spec["completions"]:
            return "FailedIndexes", "Job has failed indexes"
    return None


def _restarted_too_often(spec: Json, pods: list[Json]) -> bool:
    """Where containers restart in their pods, their restarts are the failures."""
    if spec["template"]["spec"]["restartPolicy"] != "OnFailure":
        return False
    alive = [pod for pod in pods if pod["status"].get("phase") in ("Running", "Pending")]
    restarts: int = sum(
        one["restartCount"] for pod in alive for one in pod["status"].get("containerStatuses", ())
    )
    return restarts >= max(1, int(spec["backoffLimit"]))


def _is_met(rule: Json, completed: Set[int], completions: int) -> bool:
    wanted = rule.get("succeededIndexes")
    done = completed if wanted is None else completed & parsed(wanted, below=completions)
    if "succeededCount" in rule:
        return len(done) >= int(rule["succeededCount"])
    return wanted is not None and done == parsed(wanted, below=completions)


def completion(job: Json, counts: JobCounts, *, active: int) -> Verdict | None:
    """After pods are made: as many have succeeded as should, and none is active."""
    spec = job["spec"]
    succeeded = len(counts.completed) if is_indexed(job) else int(job["status"].get("succeeded", 0))
    reached = succeeded >= spec["completions"] if "completions" in spec else succeeded > 0
    if not reached or active:
        return None
    return Verdict(SUCCESS, "CompletionsReached", "Reached expected number of succeeded pods")
