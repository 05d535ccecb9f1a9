"""One look of the Job controller at one Job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.kubernetes_server.deletion import DeleteOptions
from support.kubernetes_server.errors import ApiError
from support.kubernetes_server.events import record
from support.kubernetes_server.garbage_collector import drop_finalizer
from support.kubernetes_server.indexes import compressed, parsed
from support.kubernetes_server.job_pods import (
    TRACKING,
    failures_of,
    finished_at,
    has_failed,
    has_limit_per_index,
    ignored_failures_of,
    index_of,
    is_active,
    is_indexed,
    is_ready,
    is_terminal,
    is_terminating,
    is_tracked,
    new_pod,
    replaces_only_failed,
)
from support.kubernetes_server.job_verdict import (
    FAILURE,
    JobCounts,
    Verdict,
    completion,
    deadline_of,
    early_verdict,
    known_verdict,
)
from support.kubernetes_server.objects import (
    Json,
    clone,
    controller_uid,
    is_true,
    name_of,
    namespace_of,
    set_condition,
    timestamp,
)
from support.kubernetes_server.pod_failure_policy import (
    COUNT,
    FAIL_INDEX,
    FAIL_JOB,
    IGNORE,
    FailureAction,
    action_for,
)
from support.kubernetes_server.registry import Registry
from support.kubernetes_server.resources import resource_of

if TYPE_CHECKING:
    from support.kubernetes_server.job_controller import Backoff

_COMPONENT = "job-controller"
_JOBS = resource_of("jobs", "batch")
_PODS = resource_of("pods")
_LONGEST_BACKOFF_S = 600.0
_RETRY_CREATE_S = 0.5


class JobSync:
    """Counts what has ended, judges, then ends or makes pods; the status is written once."""

    def __init__(
        self, registry: Registry, job: Json, pods: list[Json], backoff: Backoff, backoff_s: float
    ) -> None:
        self._registry = registry
        self._storage = registry.storage
        self._job = clone(job)
        self._spec: Json = self._job["spec"]
        self._status: Json = self._job.setdefault("status", {})
        self._pods = pods
        self._now = registry.clock.now()
        self._backoff = backoff
        self._backoff_s = backoff_s
        completions = self._spec.get("completions", 0)
        self._completed = set(parsed(self._status.get("completedIndexes", ""), below=completions))
        self._failed = set(parsed(self._status.get("failedIndexes", ""), below=completions))
        self._counted: list[Json] = []
        self._delayed: dict[int, Json] = {}
        self._due: list[float] = []

    def run(self) -> float | None:
        suspended = bool(self._spec.get("suspend"))
        if not suspended and "startTime" not in self._status:
            self._status["startTime"] = timestamp(self._now)
        fail_job = self._count_ended()
        verdict = known_verdict(self._job) or self._judge(fail_job)
        if verdict is None:
            if suspended:
                self._discard_all()
            else:
                self._make_pods()
            active = sum(map(is_active, self._owned_by_job()))
            verdict = completion(self._job, self._counts(), active=active)
            if verdict is None:
                self._say_suspended(suspended=suspended)
        if verdict is not None:
            self._finish(verdict)
        if (deadline := deadline_of(self._job)) is not None and verdict is None:
            self._due.append(deadline)
        self._write()
        return min(self._due, default=None)

    def _count_ended(self) -> FailureAction | None:
        """Takes ended pods into the numbers; the action that fails the whole Job, if one did."""
        fail_job = None
        for pod in self._pods:
            if not is_tracked(pod):
                continue
            if pod["status"].get("phase") == "Succeeded":
                self._count_success(pod)
            elif has_failed(pod, self._job):
                action = self._action(pod)
                if action.action == FAIL_JOB and fail_job is None:
                    fail_job = action
                self._count_failure(pod, action.action)
        return fail_job

    def _count_success(self, pod: Json) -> None:
        self._counted.append(pod)
        self._backoff.failures = 0
        if not is_indexed(self._job):
            self._status["succeeded"] = self._status.get("succeeded", 0) + 1
        elif index_of(pod) < self._spec["completions"] and index_of(pod) not in self._failed:
            self._completed.add(index_of(pod))

    def _action(self, pod: Json) -> FailureAction:
        if "podFailurePolicy" not in self._spec or not is_terminal(pod):
            return FailureAction(COUNT)
        return action_for(self._spec["podFailurePolicy"], pod)

    def _count_failure(self, pod: Json, action: str) -> None:
        index = index_of(pod)
        open_index = index not in self._failed | self._completed and index < self._spec.get("completions", 0)
        if has_limit_per_index(self._job) and open_index:
            spent = action == COUNT and failures_of(pod) >= self._spec["backoffLimitPerIndex"]
            if spent or action == FAIL_INDEX:
                self._failed.add(index)
            elif action != FAIL_JOB and known_verdict(self._job) is None:
                # The pod stays until its replacement is there, which takes its count of failures over.
                self._delayed[index] = pod
                return
        self._count_failed_pod(pod, action)

    def _count_failed_pod(self, pod: Json, action: str) -> None:
        self._counted.append(pod)
        if action == IGNORE:
            return
        self._status["failed"] = self._status.get("failed", 0) + 1
        self._backoff.failures += 1
        self._backoff.last_at = finished_at(pod, self._now)

    def _judge(self, fail_job: FailureAction | None) -> Verdict | None:
        if fail_job is not None:
            return Verdict(FAILURE, "PodFailurePolicy", fail_job.message)
        return early_verdict(self._job, self._counts(), self._now)

    def _counts(self) -> JobCounts:
        waiting = [pod for pod in self._delayed.values() if self._action(pod).action != IGNORE]
        failed_pods = int(self._status.get("failed", 0)) + len(waiting)
        return JobCounts(failed_pods, self._completed, self._failed, self._pods)

    def _finish(self, verdict: Verdict) -> None:
        """Ends what still runs; the Job has ended when nothing does."""
        reason, message = verdict.reason, verdict.message
        set_condition(self._job, verdict.target, "True", now=self._now, reason=reason, message=message)
        counted = {pod["metadata"]["uid"] for pod in self._counted}
        for pod in self._owned_by_job():
            if is_active(pod):
                self._registry.delete(_PODS, pod, DeleteOptions())
            if is_tracked(pod) and pod["metadata"]["uid"] not in counted:
                # A Job that fails takes all its pods along; one that succeeded early only lets them go.
                lost = has_failed(pod, self._job) or verdict.target == FAILURE
                self._count_failed_pod(pod, self._action(pod).action if lost else IGNORE)
        if any(is_active(pod) or is_terminating(pod) for pod in self._owned_by_job()):
            return
        kind = "Failed" if verdict.target == FAILURE else "Complete"
        set_condition(self._job, kind, "True", now=self._now, reason=reason, message=message)
        if kind == "Failed":
            self._record("Warning", reason, message)
        else:
            self._status["completionTime"] = timestamp(self._now)
            self._record("Normal", "Completed", "Job completed")

    def _discard_all(self) -> None:
        for pod in filter(is_active, self._pods):
            self._discard(pod)

    def _say_suspended(self, *, suspended: bool) -> None:
        if suspended == is_true(self._job, "Suspended"):
            return
        status, reason, word = (
            ("True", "JobSuspended", "Suspended") if suspended else ("False", "JobResumed", "Resumed")
        )
        message = f"Job {word.lower()}"
        set_condition(self._job, "Suspended", status, now=self._now, reason=reason, message=message)
        self._record("Normal", word, message)
        if not suspended:
            # The deadline is for the time that a Job is active without a break.
            self._status["startTime"] = timestamp(self._now)

    def _discard(self, pod: Json) -> None:
        """Ends a pod that is not wanted any more; it does not count as failed."""
        self._storage.edit(_PODS, pod, lambda new: drop_finalizer(new, TRACKING))
        self._registry.delete(_PODS, pod, DeleteOptions())
        self._record("Normal", "SuccessfulDelete", f"Deleted pod: {name_of(pod)}")

    def _make_pods(self) -> None:
        active = [pod for pod in self._pods if is_active(pod)]
        for pod in self._surplus(active):
            self._discard(pod)
            active.remove(pod)
        held = len(active)
        if replaces_only_failed(self._job):
            held += sum(map(is_terminating, self._pods))
        room = self._wanted() - held
        if room <= 0:
            return
        if is_indexed(self._job):
            self._make_indexed(self._open_indexes(active)[:room])
        elif (due := self._backoff_until()) > self._now:
            self._due.append(due)
        else:
            for _ in range(room):
                self._make_pod(None, None)

    def _wanted(self) -> int:
        parallelism = int(self._spec["parallelism"])
        if is_indexed(self._job):
            return min(parallelism, int(self._spec["completions"]) - len(self._completed | self._failed))
        if "completions" in self._spec:
            return min(parallelism, int(self._spec["completions"]) - int(self._status.get("succeeded", 0)))
        return 0 if self._status.get("succeeded") else parallelism

    def _surplus(self, active: list[Json]) -> list[Json]:
        """Pods beyond the Job's indexes or its parallelism; those that have done least come first."""
        surplus = []
        if is_indexed(self._job):
            surplus = [pod for pod in active if index_of(pod) >= self._spec["completions"]]
        left = [pod for pod in active if pod not in surplus]
        left.sort(key=lambda pod: (is_ready(pod), "nodeName" in pod["spec"], -index_of(pod)))
        excess = max(0, len(left) - self._wanted())
        return surplus + left[:excess]

    def _open_indexes(self, active: list[Json]) -> list[int]:
        taken = {index_of(pod) for pod in active} | self._completed | self._failed
        if replaces_only_failed(self._job):
            taken |= {index_of(pod) for pod in self._pods if is_terminating(pod)}
        return [index for index in range(self._spec["completions"]) if index not in taken]

    def _make_indexed(self, indexes: list[int]) -> None:
        for index in indexes:
            replaced = self._delayed.get(index)
            due = self._backoff_until() if not has_limit_per_index(self._job) else self._backoff_of(replaced)
            if due > self._now:
                self._due.append(due)
            elif self._make_pod(index, replaced) and replaced is not None:
                self._count_failed_pod(replaced, self._action(replaced).action)

    def _backoff_until(self) -> float:
        if self._backoff.failures == 0:
            return 0.0
        return self._backoff.last_at + self._delay(self._backoff.failures)

    def _backoff_of(self, replaced: Json | None) -> float:
        if replaced is None:
            return 0.0
        times = failures_of(replaced) + ignored_failures_of(replaced) + 1
        return finished_at(replaced, self._now) + self._delay(times)

    def _delay(self, times: int) -> float:
        return min(_LONGEST_BACKOFF_S, self._backoff_s * 2.0 ** min(times - 1, 30))

    def _make_pod(self, index: int | None, replaced: Json | None) -> bool:
        ignored = replaced is not None and self._action(replaced).action == IGNORE
        pod = new_pod(self._job, index, replaced, ignored=ignored)
        try:
            made = self._registry.create(_PODS, namespace_of(self._job), pod)
        except ApiError as error:
            self._record("Warning", "FailedCreate", f"Error creating: {error.message}")
            self._due.append(self._now + _RETRY_CREATE_S)
            return False
        self._record("Normal", "SuccessfulCreate", f"Created pod: {name_of(made)}")
        return True

    def _owned_by_job(self) -> list[Json]:
        """The Job's pods as they are now."""
        uid = self._job["metadata"]["uid"]
        return [
            pod for pod in self._storage.all(_PODS, namespace_of(self._job)) if controller_uid(pod) == uid
        ]

    def _write(self) -> None:
        self._set_numbers()
        status = self._status

        def change(new: Json) -> None:
            new["status"] = status

        # The count is written before the pods may go, so that none is counted twice or never.
        self._storage.edit(_JOBS, self._job, change)
        for pod in self._counted:
            self._storage.edit(_PODS, pod, lambda new: drop_finalizer(new, TRACKING))

    def _set_numbers(self) -> None:
        pods = self._owned_by_job()
        numbers = {"active": sum(map(is_active, pods)), "ready": sum(map(is_ready, pods))}
        numbers["terminating"] = sum(map(is_terminating, pods))
        if is_indexed(self._job):
            numbers["succeeded"] = len(self._completed)
            self._status["completedIndexes"] = compressed(self._completed)
            if not self._completed:
                del self._status["completedIndexes"]
        if has_limit_per_index(self._job):
            self._status["failedIndexes"] = compressed(self._failed)
        for name, number in numbers.items():
            self._status[name] = number
            # A zero is not written, but for the two that were added later.
            if not number and name not in ("ready", "terminating"):
                del self._status[name]
        self._status.setdefault("uncountedTerminatedPods", {})

    def _record(self, kind: str, reason: str, message: str) -> None:
        record(self._storage, self._job, kind, reason, message, component=_COMPONENT)
