"""What is seen of a launch, from its Job, its pods and the events about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from corral.adapters.executors.kubernetes.names import INDEX, QUEUE, RANKS
from corral.adapters.executors.kubernetes.pod_ends import (
    condition,
    container_status,
    exit_code,
    pod_end,
    pod_wait,
    words,
)
from corral.domain.placements.orders import RankSighting, SightCause, Sighting, SightState

Json = dict[str, Any]
_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"
_WAITS = frozenset({SightState.WAITING, SightState.STARTING})


class JobEnd(NamedTuple):
    """Why a Job ends or has ended as a whole, and so what became of the ranks that it ended."""

    cause: SightCause
    detail: str


def sighting(job: Json | None, pods: Sequence[Json], events: Sequence[Json] = ()) -> Sighting | None:
    """None if there is neither a Job nor a pod. Pods without their Job are still there: they are told."""
    if job is None and not pods:
        return None
    view = _LaunchView(job, pods, events)
    ranks = tuple(view.rank(number) for number in range(view.ranks))
    return Sighting(view.ended, ranks, view.detail(ranks))


def needs_events(found: Sighting) -> bool:
    """Whether events could say more about what is waited for."""
    vague = (SightCause.IMAGE, None)
    return not found.ended and any(one.state in _WAITS and one.cause in vague for one in found.ranks)


def rank_of(pod: Json) -> int:
    """-1 for a pod that has none."""
    metadata = pod["metadata"]
    found = metadata.get("annotations", {}).get(INDEX) or metadata.get("labels", {}).get(INDEX)
    return int(found) if found is not None else -1


def in_order(pods: Iterable[Json]) -> list[Json]:
    """Of one rank, the newest last. Timestamps have whole seconds, so that counts decide within one."""
    return sorted(pods, key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", restarts(pod)))


def restarts(pod: Json) -> int:
    """How many pods of its rank came before it, and how often its own container was started again."""
    noted = pod["metadata"].get("annotations", {})
    again = int(container_status(pod).get("restartCount", 0))
    return int(noted.get(_FAILURES, 0)) + int(noted.get(_IGNORED_FAILURES, 0)) + again


def indexes(text: str) -> frozenset[int]:
    """`1,3-5` is 1, 3, 4 and 5."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def has_finished(job: Json) -> bool:
    """Nothing of it runs and nothing will."""
    status = job.get("status", {})
    over = condition(job, "Complete") or condition(job, "Failed")
    return over is not None and not status.get("active") and not status.get("terminating")


class _LaunchView:
    """One launch, looked at once."""

    def __init__(self, job: Json | None, pods: Sequence[Json], events: Sequence[Json]) -> None:
        self._job: Json = job or {}
        self._gone = job is None
        self._pods: dict[int, list[Json]] = {}
        for pod in pods:
            self._pods.setdefault(rank_of(pod), []).append(pod)
        self._events = _by_object(events)
        status = self._job.get("status", {})
        self._completed = indexes(status.get("completedIndexes", ""))
        self._failed = indexes(status.get("failedIndexes", ""))
        self._end = (
            _job_end(self._job) if job is not None else JobEnd(SightCause.CANCELLED, "the Job is gone")
        )

    @property
    def ranks(self) -> int:
        source = self._job or next(pod for pods in self._pods.values() for pod in pods)
        noted = source["metadata"].get("annotations", {}).get(RANKS)
        return int(noted) if noted else int(self._job.get("spec", {}).get("completions", 0))

    @property
    def ended(self) -> bool:
        if self._gone:
            return all(_is_over(pod) for pods in self._pods.values() for pod in pods)
        return has_finished(self._job)

    def detail(self, ranks: Sequence[RankSighting]) -> str:
        """The Job's own words, with the ranks that are to blame."""
        if self._end is None:
            return self._suspended() if self._job.get("spec", {}).get("suspend") else ""
        blamed = [
            f"rank {one.rank}: {words(one.cause, one.detail)}"
            for one in ranks
            if one.state is SightState.FAILED and one.cause not in (SightCause.CANCELLED, self._end.cause)
        ]
        return "; ".join([self._end.detail, *blamed])

    def rank(self, number: int) -> RankSighting:
        pods = in_order(self._pods.get(number, ()))
        newest = pods[-1] if pods else None
        if number in self._completed and not self._was_ended(newest):
            return RankSighting(
                number,
                SightState.SUCCEEDED,
                exit_code=0,
                node=_node(newest),
                restarts=restarts(newest) if newest else 0,
            )
        if newest is None:
            return self._without_pod(number)
        return self._with_pod(number, newest)

    def _was_ended(self, newest: Json | None) -> bool:
        """Whether the Job ended it when it failed itself: who ends by itself leaves its pod behind."""
        if condition(self._job, "Failed") is None and condition(self._job, "FailureTarget") is None:
            return False
        return newest is None or "deletionTimestamp" in newest["metadata"]

    def _without_pod(self, number: int) -> RankSighting:
        if self._end is not None and number not in self._failed:
            state = SightState.GONE if condition(self._job, "Complete") else SightState.FAILED
            return RankSighting(number, state, self._end.cause, self._end.detail)
        if number in self._failed:
            return RankSighting(number, SightState.FAILED, SightCause.UNKNOWN, "its pod is gone")
        spec = self._job["spec"]
        if spec.get("suspend"):
            return RankSighting(number, SightState.WAITING, detail=self._suspended())
        if number >= int(spec.get("completions", number + 1)):
            said = f"the queue let {spec['completions']} ranks start"
            return RankSighting(number, SightState.WAITING, detail=said)
        refused = [
            one["message"]
            for one in self._events.get(("Job", self._job["metadata"]["uid"]), ())
            if one.get("reason") == "FailedCreate"
        ]
        cause = SightCause.REFUSED if refused else None
        return RankSighting(number, SightState.WAITING, cause, refused[-1] if refused else "")

    def _suspended(self) -> str:
        queue = self._job["metadata"].get("labels", {}).get(QUEUE)
        held = condition(self._job, "Suspended")
        said = held.get("message", "") if held else ""
        return words(f"waits in the queue {queue}", said) if queue else words("suspended", said)

    def _with_pod(self, number: int, pod: Json) -> RankSighting:
        base = RankSighting(number, SightState.RUNNING, node=_node(pod), restarts=restarts(pod))
        if self.ended and not _is_over(pod):
            # The Job knows that nothing runs, whatever the pod's own status still says.
            return self._without_pod(number)._replace(node=base.node, restarts=base.restarts)
        phase = pod.get("status", {}).get("phase")
        ending = "deletionTimestamp" in pod["metadata"]
        if self._end is not None and ending:
            # Whatever its code is: it was told to end.
            state = SightState.FAILED if _is_over(pod) else SightState.RUNNING
            said = base._replace(state=state, cause=self._end.cause, detail=self._end.detail)
            return said._replace(exit_code=exit_code(pod))
        if phase == "Succeeded":
            return base._replace(state=SightState.SUCCEEDED, exit_code=exit_code(pod))
        if phase == "Failed":
            return self._failed_pod(number, pod, base)
        if phase == "Running":
            return self._running_pod(pod, base)
        wait = pod_wait(pod, self._events.get(("Pod", pod["metadata"]["uid"]), ()))
        state = SightState.STARTING if base.node else SightState.WAITING
        return base._replace(state=state, cause=wait.cause, detail=wait.detail)

    def _failed_pod(self, number: int, pod: Json, base: RankSighting) -> RankSighting:
        end = pod_end(pod)
        final = number in self._failed or self._end is not None
        return base._replace(
            # Another pod follows where the rank has starts left, or was disturbed by others.
            state=SightState.FAILED if final else SightState.WAITING,
            cause=end.cause,
            detail=end.detail,
            exit_code=end.exit_code,
            signal=end.signal,
        )

    def _running_pod(self, pod: Json, base: RankSighting) -> RankSighting:
        if "deletionTimestamp" not in pod["metadata"]:
            return base
        target = condition(pod, "DisruptionTarget")
        if target is None:
            return base._replace(detail="is being ended")
        end = pod_end(pod)
        return base._replace(cause=end.cause, detail=end.detail)


def _is_over(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _node(pod: Json | None) -> str | None:
    return pod["spec"].get("nodeName") if pod is not None else None


def _job_end(job: Json) -> JobEnd | None:
    """None for a Job that goes on."""
    if "deletionTimestamp" in job["metadata"]:
        return JobEnd(SightCause.CANCELLED, "the Job is being deleted")
    for kind in ("Failed", "FailureTarget"):
        if (found := condition(job, kind)) is not None:
            late = found.get("reason") == "DeadlineExceeded"
            cause = SightCause.DEADLINE if late else SightCause.CANCELLED
            return JobEnd(cause, words(found.get("reason"), found.get("message")))
    if (found := condition(job, "Complete") or condition(job, "SuccessCriteriaMet")) is not None:
        # Ranks that were ended because enough others were done.
        return JobEnd(SightCause.CANCELLED, words(found.get("reason"), found.get("message")))
    return None


def _by_object(events: Sequence[Json]) -> Mapping[tuple[str, str], list[Json]]:
    found: dict[tuple[str, str], list[Json]] = {}
    for event in sorted(events, key=_when):
        involved = event.get("involvedObject", {})
        found.setdefault((involved.get("kind", ""), involved.get("uid", "")), []).append(event)
    return found


def _when(event: Json) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or ""
