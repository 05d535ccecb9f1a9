"""What is seen of the ranks of a job: the state that Slurm has for it, and what its srun told of each."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence

from corral.adapters.executors.slurm.models import QueuedJob, SlurmHandle, StepRecord, TaskEnd
from corral.adapters.executors.slurm.scripts import RANKS_WORD
from corral.adapters.executors.slurm.steps import read_step
from corral.domain.placements.orders import RankSighting, SightCause, Sighting, SightState

# States in which a job is not at its end, whatever else Slurm may add to them.
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_STARTING = frozenset({"CONFIGURING", "POWER_UP_NODE"})
_LIVE = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"})
# Why ranks ended of which srun told nothing.
_CAUSES: Mapping[str, SightCause] = {
    "OUT_OF_MEMORY": SightCause.OUT_OF_MEMORY,
    "NODE_FAIL": SightCause.NODE_LOST,
    "BOOT_FAIL": SightCause.NODE_LOST,
    "PREEMPTED": SightCause.PREEMPTED,
    "TIMEOUT": SightCause.DEADLINE,
    "DEADLINE": SightCause.DEADLINE,
    "CANCELLED": SightCause.CANCELLED,
    "REVOKED": SightCause.CANCELLED,
}
_NO_REASON = frozenset({"", "None", "Priority", "BeginTime"})
_OUT_OF_MEMORY = "Out Of Memory"
# Of a rank, or of how many there are: what a job wrote down itself is not believed beyond that.
_LONGEST_NUMBER = 6


def sighting(
    handle: SlurmHandle, jobs: Mapping[int | None, QueuedJob], files: Mapping[str, Sequence[str]]
) -> Sighting | None:
    """None if nothing is known of it. `jobs` has one, or each element of an array by its number."""
    steps = {_index(name): read_step(lines) for name, lines in files.items() if name.startswith("step")}
    steps = {index: step for index, step in steps.items() if step.job_id == handle.job_id}
    if not jobs and not steps:
        return None
    size = _size(files.get("ranks", ()), jobs, steps)
    if any(index is not None for index in [*jobs, *steps]):
        ranks = [_rank(0, jobs.get(rank), steps.get(rank))._replace(rank=rank) for rank in range(size)]
    else:
        ranks = [_rank(rank, jobs.get(None), steps.get(None)) for rank in range(size)]
    words = sorted({_words(job) for job in jobs.values()})
    ended = all(_is_over(job) or _is_requeued(job, steps.get(element)) for element, job in jobs.items())
    return Sighting(ended, tuple(ranks), "; ".join(words))


def _size(told: Sequence[str], jobs: Iterable[int | None], steps: Mapping[int | None, StepRecord]) -> int:
    """How many ranks were ordered; as many as are known of, where the note of it is gone."""
    number = "".join(told).removeprefix(f"{RANKS_WORD} ").strip()
    if number.isdecimal() and len(number) < _LONGEST_NUMBER:
        return int(number)
    tasks = [task for step in steps.values() for task in step.nodes]
    return max([1, *(task + 1 for task in tasks), *(index + 1 for index in [*jobs, *steps] if index)])


def _rank(task: int, job: QueuedJob | None, step: StepRecord | None) -> RankSighting:
    """srun's word about a task is the most exact; then comes the state of the job."""
    node = step.nodes.get(task) if step else None
    end = step.ends.get(task) if step else None
    if step is not None and end is not None:
        return _ended(task, end, job, step)._replace(node=node)
    started = step is not None and task in step.started
    if job is None:
        return RankSighting(
            task, SightState.GONE, SightCause.UNKNOWN, "Slurm has forgotten the job", node=node
        )
    if _is_over(job) or _is_requeued(job, step):
        return _ended_with_its_job(task, job, step)._replace(node=node)
    if job.state in _WAITING:
        cause = None if job.reason in _NO_REASON else SightCause.UNSCHEDULABLE
        return RankSighting(task, SightState.WAITING, cause, job.reason)
    state = SightState.RUNNING if started else SightState.STARTING
    return RankSighting(task, state, None, "" if job.state == "RUNNING" else _words(job), node=node)


def _ended(task: int, end: TaskEnd, job: QueuedJob | None, step: StepRecord) -> RankSighting:
    """A task that ended by itself keeps its own cause, whatever became of the job later."""
    code, number = _code_and_signal(end.status)
    state = SightState.SUCCEEDED if end.status == 0 else SightState.FAILED
    cause = None if end.status == 0 else SightCause.EXITED
    if end.words.startswith(_OUT_OF_MEMORY) or (end.status != 0 and task in step.out_of_memory):
        cause = SightCause.OUT_OF_MEMORY
    elif end.asked and step.past_deadline:
        cause = SightCause.DEADLINE
    elif end.status != 0 and job is not None and job.state == "OUT_OF_MEMORY":
        # The kernel's killer ends one task, and Slurm says it of the job.
        killed = number == signal.SIGKILL
        cause = SightCause.OUT_OF_MEMORY if killed else SightCause.CANCELLED if end.asked else cause
    elif end.status != 0 and job is not None and end.asked:
        cause = _CAUSES.get(job.state, cause)
    return RankSighting(task, state, cause, end.words, exit_code=code, signal=number)


def _ended_with_its_job(task: int, job: QueuedJob, step: StepRecord | None) -> RankSighting:
    if job.state == "COMPLETED":
        # The script's exit code is the highest of all tasks.
        return RankSighting(task, SightState.SUCCEEDED, exit_code=0)
    cause = _CAUSES.get(job.state, SightCause.UNKNOWN)
    if step is not None and step.past_deadline:
        cause = SightCause.DEADLINE
    complaint = f"; {step.complaint}" if step is not None and step.complaint else ""
    return RankSighting(task, SightState.FAILED, cause, _words(job) + complaint)


def _code_and_signal(status: int) -> tuple[int | None, int | None]:
    return (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), None)


def _is_over(job: QueuedJob) -> bool:
    return job.state not in _WAITING | _STARTING | _LIVE


def _is_requeued(job: QueuedJob, step: StepRecord | None) -> bool:
    """It ran and waits again: nothing of it will run, since its script starts ranks only once."""
    return step is not None and job.state in _WAITING


def _words(job: QueuedJob) -> str:
    told = [job.state, job.reason]
    if _is_over(job) and job.status:
        code, number = _code_and_signal(job.status)
        told.append(f"signal {number}" if number else f"exit code {code}")
    return " ".join(word for word in told if word)


def _index(file: str) -> int | None:
    """`step-3` is of the fourth job of an array."""
    _, _, number = file.partition("-")
    return int(number) if number.isdecimal() and len(number) < _LONGEST_NUMBER else None
