"""What a job's script and its srun wrote down, read into a record of its tasks.

srun tells each end in two lines, the first of which has the status as wait(2) gives it:

    srun: _task_finish: Received task exit notification for 2 tasks of StepId=1.0 (status=0x8f00).
    srun: error: n0: tasks 0-1: Exited with exit code 143
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from corral.adapters.executors.slurm import scripts
from corral.adapters.executors.slurm.models import StepRecord, TaskEnd

# A job writes these lines where its run may write too: whatever stands there, the reading of it is bounded.
_NUMBERS = r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*"
_MOST_TASKS = 100_000
_SENT = re.compile(rf"launching StepId=\S+ on host (\S+), \d+ tasks: \[?({_NUMBERS})\]?(?![\d-])")
_STARTED = re.compile(r"_task_start: Node (\S+), \d+ tasks started")
_STATUS = re.compile(r"exit notification for \d+ tasks? .*\(status=0x([0-9a-fA-F]{1,6})\)")
_ENDED = re.compile(rf"^srun: .*?\S+: tasks? \[?({_NUMBERS})\]?: (.+)$")
_ASKED = re.compile(r"Job step aborted|forcing job termination|[Ff]orce [Tt]erminated job")
_COMPLAINT = re.compile(r"^srun: error: (.+)$")
# In front of what slurmstepd says stands the number of the first task of its node.
_NO_MEMORY = re.compile(r"^ *(\d{1,6}): slurmstepd.*exceeded memory limit", re.MULTILINE)


def read_step(lines: Sequence[str]) -> StepRecord:
    """Of tasks, by their number in the step."""
    nodes: dict[int, str] = {}
    started: set[str] = set()
    ends: dict[int, TaskEnd] = {}
    status, asked, complaint = 0, False, ""
    for line in lines:
        if match := _SENT.search(line):
            nodes |= dict.fromkeys(numbers(match[2]), match[1])
        elif match := _STARTED.search(line):
            started.add(match[1])
        elif match := _STATUS.search(line):
            status = int(match[1], 16)
        elif match := _ENDED.match(line):
            ends |= dict.fromkeys(numbers(match[1]), TaskEnd(status, match[2], asked))
        elif match := _COMPLAINT.match(line):
            complaint = match[1]
        asked = asked or line == scripts.DEADLINE_WORD or bool(_ASKED.search(line))
    text = "\n".join(lines)
    return StepRecord(
        job_id=_after(scripts.JOB_WORD, text),
        nodes=nodes,
        started=frozenset(task for task, node in nodes.items() if node in started),
        ends=ends,
        past_deadline=scripts.DEADLINE_WORD in text,
        finished=scripts.FINISHED_WORD in text,
        out_of_memory=_out_of_memory(text, nodes),
        complaint=complaint,
    )


def _out_of_memory(text: str, nodes: Mapping[int, str]) -> frozenset[int]:
    """The limit is that of all tasks of a node together: Slurm does not tell which of them broke it."""
    places = {nodes.get(int(number)) for number in _NO_MEMORY.findall(text)}
    return frozenset(task for task, node in nodes.items() if node in places)


def numbers(text: str) -> list[int]:
    """`0-2,5` as four numbers."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)[: _MOST_TASKS - len(found)]
    return found


def _after(word: str, text: str) -> str | None:
    match = re.search(rf"^{re.escape(word)} (\S+)$", text, re.MULTILINE)
    return match[1] if match else None
