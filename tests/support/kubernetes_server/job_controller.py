"""The Job controller: counts ended pods, decides when a Job has succeeded or failed, and makes pods."""

from __future__ import annotations

from dataclasses import dataclass

from support.kubernetes_server.deletion import DeleteOptions
from support.kubernetes_server.garbage_collector import drop_finalizer
from support.kubernetes_server.job_pods import MANAGER, TRACKING, is_tracked
from support.kubernetes_server.job_sync import JobSync
from support.kubernetes_server.objects import (
    Json,
    condition,
    controller_uid,
    is_being_deleted,
    is_true,
    seconds_of,
    uid_of,
)
from support.kubernetes_server.registry import Registry
from support.kubernetes_server.resources import resource_of

_JOBS = resource_of("jobs", "batch")
_PODS = resource_of("pods")


@dataclass
class Backoff:
    """How often pods of a Job failed since one succeeded, and when the last did."""

    failures: int = 0
    last_at: float = 0.0


class JobController:
    """Looks at every Job whenever something has changed or is due."""

    def __init__(self, registry: Registry, *, backoff_s: float) -> None:
        self._registry = registry
        self._storage = registry.storage
        self._backoff_s = backoff_s
        self._backoffs: dict[str, Backoff] = {}

    def sync(self) -> float | None:
        """When the next Job is due, though nothing changes until then."""
        pods: dict[str, list[Json]] = {}
        for pod in self._storage.all(_PODS):
            pods.setdefault(controller_uid(pod) or "", []).append(pod)
        jobs = self._storage.all(_JOBS)
        due = [self._sync(job, pods.pop(uid_of(job), [])) for job in jobs]
        # What is left has no Job: nobody counts those pods any more.
        for orphans in pods.values():
            self._release(orphans)
        return min((one for one in due if one is not None), default=None)

    def _sync(self, job: Json, pods: list[Json]) -> float | None:
        if job["spec"].get("managedBy", MANAGER) != MANAGER:
            return None
        finished = is_true(job, "Complete") or is_true(job, "Failed")
        if finished or is_being_deleted(job):
            self._release(pods)
            return self._expire(job) if finished else None
        backoff = self._backoffs.setdefault(uid_of(job), Backoff())
        return JobSync(self._registry, job, pods, backoff, self._backoff_s).run()

    def _release(self, pods: list[Json]) -> None:
        for pod in pods:
            if is_tracked(pod):
                self._storage.edit(_PODS, pod, lambda new: drop_finalizer(new, TRACKING))

    def _expire(self, job: Json) -> float | None:
        """Deletes a Job some time after it ended, with its pods."""
        ttl_s = job["spec"].get("ttlSecondsAfterFinished")
        if ttl_s is None or is_being_deleted(job):
            return None
        ended = condition(job, "Complete") or condition(job, "Failed")
        assert ended is not None
        due = seconds_of(ended["lastTransitionTime"]) + float(ttl_s)
        if self._storage.clock.now() < due:
            return due
        self._registry.delete(_JOBS, job, DeleteOptions(propagation="Foreground", uid=uid_of(job)))
        return None
