"""What is seen of a launch, by what Kubernetes may say of its Job and its pods."""

from __future__ import annotations

from typing import Any

import pytest

from corral.adapters.executors.kubernetes.sightings import indexes, needs_events, sighting
from corral.domain.placements.orders import RankSighting, SightCause, SightState

Json = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"


def job(ranks: int = 1, *conditions: tuple[str, str], **status: Any) -> Json:
    held = [{"type": kind, "status": "True", "reason": reason, "message": "m"} for kind, reason in conditions]
    return {
        "metadata": {"name": "j", "uid": "u", "annotations": {"corral.dev/ranks": str(ranks)}},
        "spec": {"completions": ranks},
        "status": {"conditions": held, **status},
    }


def pod(rank: int = 0, phase: str = "Running", *, node: str | None = "n", **status: Any) -> Json:
    metadata = {"uid": f"p{rank}", "annotations": {INDEX: str(rank), "corral.dev/ranks": "1"}}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"nodeName": node} if node else {}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, **status}}


def terminated(code: int, reason: str = "Error", **more: Any) -> list[Json]:
    return [{"name": "worker", "state": {"terminated": {"exitCode": code, "reason": reason, **more}}}]


def waiting(reason: str, message: str = "") -> list[Json]:
    return [{"name": "worker", "state": {"waiting": {"reason": reason, "message": message}}}]


def disrupted(reason: str) -> list[Json]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "in its own words"}]


def seen(found_job: Json | None, *pods: Json, events: tuple[Json, ...] = ()) -> RankSighting:
    found = sighting(found_job, pods, events)
    assert found is not None
    return found.ranks[0]


@pytest.mark.parametrize(
    ("status", "cause", "code", "number"),
    [
        ({"containerStatuses": terminated(137, "OOMKilled")}, SightCause.OUT_OF_MEMORY, 137, 9),
        ({"containerStatuses": terminated(1)}, SightCause.EXITED, 1, None),
        ({"containerStatuses": terminated(143)}, SightCause.EXITED, 143, 15),
        ({"containerStatuses": terminated(139)}, SightCause.EXITED, 139, 11),
        ({"containerStatuses": terminated(255)}, SightCause.EXITED, 255, None),
        ({"containerStatuses": terminated(128, "StartError")}, SightCause.REFUSED, 128, None),
        ({"reason": "Evicted", "message": "low on memory"}, SightCause.EVICTED, None, None),
        ({"reason": "DeadlineExceeded"}, SightCause.DEADLINE, None, None),
        ({"reason": "NodeLost"}, SightCause.NODE_LOST, None, None),
        ({"reason": "OutOfcpu"}, SightCause.REFUSED, None, None),
        ({"conditions": disrupted("PreemptionByScheduler")}, SightCause.PREEMPTED, None, None),
        ({"conditions": disrupted("DeletionByPodGC")}, SightCause.NODE_LOST, None, None),
        ({"conditions": disrupted("EvictionByEvictionAPI")}, SightCause.EVICTED, None, None),
        ({"conditions": disrupted("TerminationByKubelet")}, SightCause.EVICTED, None, None),
        ({}, SightCause.UNKNOWN, None, None),
    ],
)
def test_each_cause_is_told_by_name_with_the_real_code(
    status: Json, cause: SightCause, code: int | None, number: int | None
) -> None:
    """DL-D18: and what nobody says is unknown."""
    found = seen(job(failedIndexes="0"), pod(phase="Failed", **status))

    assert (found.state, found.cause) == (SightState.FAILED, cause)
    assert (found.exit_code, found.signal) == (code, number)


@pytest.mark.parametrize(
    ("status", "node", "state", "cause", "words"),
    [
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}
                ]
            },
            None,
            SightState.WAITING,
            SightCause.UNSCHEDULABLE,
            "0/3",
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "g"}
                ]
            },
            None,
            SightState.WAITING,
            None,
            "g",
        ),
        (
            {"containerStatuses": waiting("ErrImagePull", "no")},
            "n",
            SightState.STARTING,
            SightCause.IMAGE,
            "no",
        ),
        (
            {"containerStatuses": waiting("ImagePullBackOff", "Back-off")},
            "n",
            SightState.STARTING,
            SightCause.IMAGE,
            "Failed to pull image: denied",
        ),
        (
            {"containerStatuses": waiting("CreateContainerConfigError", "no secret")},
            "n",
            SightState.STARTING,
            SightCause.REFUSED,
            "no secret",
        ),
        (
            {"containerStatuses": waiting("ContainerCreating")},
            "n",
            SightState.STARTING,
            None,
            "ContainerCreating",
        ),
        ({}, None, SightState.WAITING, None, ""),
    ],
)
def test_what_does_not_run_yet_is_not_said_to_run(
    status: Json, node: str | None, state: SightState, cause: SightCause | None, words: str
) -> None:
    """DL-D15, DL-D18: active pods are not running pods."""
    pull = {"involvedObject": {"kind": "Pod", "uid": "p0"}, "message": "Failed to pull image: denied"}
    events = (pull,) if "Back-off" in str(status) else ()

    found = seen(job(active=1), pod(phase="Pending", node=node, **status), events=events)

    assert (found.state, found.cause) == (state, cause)
    assert words in found.detail


def test_a_rank_without_a_pod_has_the_words_of_the_job() -> None:
    """DL-D15: quota and policies speak only there."""
    event = {
        "involvedObject": {"kind": "Job", "uid": "u"},
        "reason": "FailedCreate",
        "message": "exceeded quota",
    }

    assert seen(job(), events=(event,))[1:4] == (SightState.WAITING, SightCause.REFUSED, "exceeded quota")
    assert seen(job())[1:4] == (SightState.WAITING, None, "")
    assert needs_events(sighting(job(), ()) or pytest.fail("nothing"))


def test_the_deadline_of_the_job_is_that_of_its_ranks() -> None:
    """DL-D18: also of one that ended well when it was told to."""
    late = job(1, ("FailureTarget", "DeadlineExceeded"), ("Failed", "DeadlineExceeded"), completedIndexes="0")

    found = sighting(late, ())

    assert found is not None
    assert (found.ended, found.ranks[0].cause) == (True, SightCause.DEADLINE)


def test_a_rank_that_was_done_before_the_job_failed_has_succeeded() -> None:
    """DL-D14: its pod is still there, since nobody had to end it."""
    failed = job(2, ("Failed", "FailedIndexes"), completedIndexes="0", failedIndexes="1")
    ended = pod(1, "Failed", containerStatuses=terminated(3))

    found = sighting(failed, [pod(0, "Succeeded", containerStatuses=terminated(0, "Completed")), ended])

    assert found is not None
    assert [one.state for one in found.ranks] == [SightState.SUCCEEDED, SightState.FAILED]
    assert found.detail == "FailedIndexes: m; rank 1: exited: Error"


def test_a_job_has_not_ended_while_its_pods_do() -> None:
    """DL-D22: conditions of older servers come before the last pod is gone."""
    decided = sighting(job(1, ("Failed", "BackoffLimitExceeded"), terminating=1), ())
    over = sighting(job(1, ("Failed", "BackoffLimitExceeded"), terminating=0), ())

    assert decided is not None
    assert over is not None
    assert (decided.ended, over.ended) == (False, True)


def test_a_rank_that_will_start_again_waits_with_its_last_end() -> None:
    """DL-D30: and the newest pod of a rank speaks for it."""
    old = pod(0, "Failed", containerStatuses=terminated(1))
    new = pod(0, "Running", containerStatuses=[{"name": "worker", "state": {"running": {}}}])
    new["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] = "1"

    assert seen(job(), old)[1:5] == (SightState.WAITING, SightCause.EXITED, "Error", 1)
    assert (seen(job(), new, old).state, seen(job(), new, old).restarts) == (SightState.RUNNING, 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [("", set()), ("3", {3}), ("0-2,5", {0, 1, 2, 5}), ("1,3-4,7-7", {1, 3, 4, 7})],
)
def test_compressed_indexes_are_read(text: str, found: set[int]) -> None:
    """DL-C16."""
    assert indexes(text) == found


def test_nothing_at_all_is_nothing() -> None:
    assert sighting(None, ()) is None
