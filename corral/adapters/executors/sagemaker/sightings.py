"""What SageMaker tells of a job, as what is seen of its ranks. A job has one state for all its instances."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from corral.domain.placements.orders import RankSighting, SightCause, Sighting, SightState

Json = dict[str, Any]
LIVE = ("InProgress", "Stopping")
_WAITING = frozenset({"Starting", "LaunchingMLInstances", "Pending", "Interrupted", "Restarting"})
_STARTING = frozenset({"PreparingTrainingStack", "Downloading", "DownloadingTrainingImage", "Updating"})
# Why a stopped job was stopped, by its secondary status.
_STOPPED = {
    "MaxRuntimeExceeded": SightCause.DEADLINE,
    "MaxWaitTimeExceeded": SightCause.UNSCHEDULABLE,
    "Interrupted": SightCause.PREEMPTED,
    "Stopped": SightCause.CANCELLED,
}
# What FailureReason begins with or has in it. The first that is found holds.
_FAILURES = (
    (re.compile(r"CapacityError|insufficient capacity", re.IGNORECASE), SightCause.UNSCHEDULABLE),
    (
        re.compile(r"instance type with more memory|OutOfMemory|out of memory", re.IGNORECASE),
        SightCause.OUT_OF_MEMORY,
    ),
    (
        re.compile(r"pull.*image|image.*(not found|does not exist)|ECR image|repository", re.IGNORECASE),
        SightCause.IMAGE,
    ),
    (re.compile(r"spot.*interrupt", re.IGNORECASE), SightCause.PREEMPTED),
)
# What `corral.worker.on_sagemaker` leaves as the reason of a failure.
_OWN_WORDS = re.compile(r"corral: rank (\d+) (exited with|was killed by signal) (\d+)")
_EXIT_CODE = re.compile(r"exit code:? (\d+)", re.IGNORECASE)


def sighting(jobs: Sequence[Json | None], instances: int) -> Sighting | None:
    """Of a launch; `jobs` are what is told of each, in order, and None where there is none. None if nobody
    knows any of them."""
    if not any(jobs):
        return None
    ranks: list[RankSighting] = []
    for index, job in enumerate(jobs):
        ranks += _ranks(job, range(index * instances, (index + 1) * instances))
    ended = not any(job is not None and job["TrainingJobStatus"] in LIVE for job in jobs)
    words = [_words(job) for job in jobs if job is not None and job["TrainingJobStatus"] != "InProgress"]
    return Sighting(ended, tuple(ranks), "; ".join(dict.fromkeys(word for word in words if word)))


def _ranks(job: Json | None, ranks: range) -> list[RankSighting]:
    if job is None:
        return [
            RankSighting(rank, SightState.GONE, SightCause.UNKNOWN, "there is no such job") for rank in ranks
        ]
    status, secondary = job["TrainingJobStatus"], job.get("SecondaryStatus", "")
    if status in LIVE:
        return [_live(rank, status, secondary, job, rank - ranks.start) for rank in ranks]
    if status == "Completed":
        # Every instance has exited with 0, or the job would have failed.
        return [RankSighting(rank, SightState.SUCCEEDED, exit_code=0) for rank in ranks]
    if status == "Stopped":
        cause = _STOPPED.get(secondary, SightCause.UNKNOWN)
        return [RankSighting(rank, SightState.FAILED, cause, _words(job)) for rank in ranks]
    if status == "Failed":
        return _failed(job, ranks)
    return [RankSighting(rank, SightState.GONE, SightCause.UNKNOWN, status) for rank in ranks]


def _live(rank: int, status: str, secondary: str, job: Json, instance: int) -> RankSighting:
    words = _message(job) or secondary
    if secondary in _WAITING and status == "InProgress":
        cause = SightCause.PREEMPTED if secondary == "Interrupted" else None
        if re.search(r"insufficient capacity", words, re.IGNORECASE):
            cause = SightCause.UNSCHEDULABLE
        return RankSighting(rank, SightState.WAITING, cause, words)
    if secondary in _STARTING and status == "InProgress":
        return RankSighting(rank, SightState.STARTING, None, words)
    detail = "" if secondary in ("Training", "Uploading") and status == "InProgress" else words
    return RankSighting(rank, SightState.RUNNING, None, detail, node=f"algo-{instance + 1}")


def _failed(job: Json, ranks: range) -> list[RankSighting]:
    """SageMaker ends all instances of a job when one has failed; the reason says which, where our own words
    are in it."""
    reason = job.get("FailureReason", "")
    own = _OWN_WORDS.search(reason)
    if own is None:
        return [_blamed(rank, reason, alone=len(ranks) == 1) for rank in ranks]
    number, killed = int(own[3]), own[2].startswith("was killed")
    return [
        RankSighting(
            rank,
            SightState.FAILED,
            SightCause.EXITED,
            own[0].removeprefix("corral: "),
            exit_code=None if killed else number,
            signal=number if killed else None,
            node=f"algo-{rank - ranks.start + 1}",
        )
        if rank == int(own[1])
        else RankSighting(rank, SightState.FAILED, SightCause.CANCELLED, f"ended since {own[0][8:]}")
        for rank in ranks
    ]


def _blamed(rank: int, reason: str, *, alone: bool) -> RankSighting:
    cause = next((cause for pattern, cause in _FAILURES if pattern.search(reason)), None)
    code = _EXIT_CODE.search(reason) if alone else None
    if cause is None:
        cause = SightCause.EXITED if code else SightCause.UNKNOWN
    return RankSighting(rank, SightState.FAILED, cause, reason, exit_code=int(code[1]) if code else None)


def _words(job: Json) -> str:
    status, secondary = job["TrainingJobStatus"], job.get("SecondaryStatus", "")
    told = [status, secondary if secondary != status else "", job.get("FailureReason") or _message(job)]
    return ": ".join(word for word in told if word)


def _message(job: Json) -> str:
    steps = job.get("SecondaryStatusTransitions") or [{}]
    return str(steps[-1].get("StatusMessage", ""))
