"""Slurm's words, as they are read: what srun tells of tasks, sacct of jobs, sinfo of nodes, and errors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from corral.adapters.executors.slurm import fitting
from corral.adapters.executors.slurm.api import SlurmApi, read_files, read_history, read_nodes
from corral.adapters.executors.slurm.errors import refused_or_unreachable
from corral.adapters.executors.slurm.models import (
    QueuedJob,
    SlurmHandle,
    SlurmNode,
    SlurmOptions,
    job_name,
    key_of,
    mark,
    mark_of,
    read_handle,
)
from corral.adapters.executors.slurm.preflight import preflight_script, read_checks
from corral.adapters.executors.slurm.scripts import launch_script, sbatch_flags
from corral.adapters.executors.slurm.sightings import sighting
from corral.adapters.executors.slurm.steps import read_step
from corral.core.placements.told import why_ended
from corral.domain.hosts.capability import GIB, Requirements
from corral.domain.placements.orders import LaunchOrder, SightCause, Sighting, SightState
from corral.ports.executor import ExecutorUnreachable, LaunchRefused

_HANDLE = SlurmHandle("12", "p-1")
_STEP = """\
corral: job 12
srun: launching StepId=12.0 on host n0, 2 tasks: [0-1]
srun: launching StepId=12.0 on host n1, 1 tasks: 2
srun: launch/slurm: _task_start: Node n0, 2 tasks started
srun: launch/slurm: _task_start: Node n1, 1 tasks started
srun: launch/slurm: _task_finish: Received task exit notification for 1 task of StepId=12.0 (status=0x0009).
srun: error: n0: task 1: {words}
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: launch/slurm: _task_finish: Received task exit notification for 2 tasks of StepId=12.0 (status=0x000f).
srun: error: n[0-1]: tasks 0,2: Terminated
"""


def _order(**changes: object) -> LaunchOrder:
    made = LaunchOrder(
        key="p-1",
        installation="home",
        run_id="r-1",
        run_name="name",
        project="default",
        ranks=4,
        min_ranks=4,
        need=Requirements(),
        command=("corral", "worker"),
        environ={},
        tokens=("a", "b", "c", "d"),
    )
    return made._replace(**changes)  # type: ignore[arg-type]


def _job(state: str, *, element: int | None = None, status: int = 0, reason: str = "") -> QueuedJob:
    return QueuedJob("12", element, "corral.home.p-1", state, status, reason, "n0")


def _seen(state: str, words: str = "Killed") -> Sighting:
    files = {"ranks": ["corral: ranks 3"], "step": _STEP.format(words=words).splitlines()}
    found = sighting(_HANDLE, {None: _job(state)}, files)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("state", "words", "causes"),
    [
        ("FAILED", "Killed", ("exited", "exited", "exited")),
        ("CANCELLED", "Killed", ("cancelled", "exited", "cancelled")),
        ("PREEMPTED", "Killed", ("preempted", "exited", "preempted")),
        ("TIMEOUT", "Killed", ("deadline", "exited", "deadline")),
        ("NODE_FAIL", "Killed", ("node_lost", "exited", "node_lost")),
        ("FAILED", "Out Of Memory", ("exited", "out_of_memory", "exited")),
        ("OUT_OF_MEMORY", "Killed", ("cancelled", "out_of_memory", "cancelled")),
    ],
)
def test_a_rank_that_ended_before_the_others_were_asked_to_keeps_its_own_cause(
    state: str, words: str, causes: tuple[str, ...]
) -> None:
    """DL-D14, DL-D18."""
    found = _seen(state, words)

    assert [seen.signal for seen in found.ranks] == [15, 9, 15]
    assert [seen.node for seen in found.ranks] == ["n0", "n0", "n1"]
    assert tuple(seen.cause for seen in found.ranks) == tuple(SightCause(cause) for cause in causes)


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("OUT_OF_MEMORY", SightCause.OUT_OF_MEMORY),
        ("NODE_FAIL", SightCause.NODE_LOST),
        ("PREEMPTED", SightCause.PREEMPTED),
        ("TIMEOUT", SightCause.DEADLINE),
        ("CANCELLED", SightCause.CANCELLED),
        ("FAILED", SightCause.UNKNOWN),
        ("A_STATE_OF_TOMORROW", SightCause.UNKNOWN),
    ],
)
def test_of_a_rank_that_srun_told_nothing_about_the_jobs_state_is_told(state: str, cause: SightCause) -> None:
    """DL-D18: no exit code is invented."""
    files = {"ranks": ["corral: ranks 2"]}
    found = sighting(_HANDLE, {None: _job(state, status=1 << 8, reason="NonZeroExitCode")}, files)

    assert found is not None
    assert found.ended
    assert [(seen.state, seen.cause, seen.exit_code) for seen in found.ranks] == [
        (SightState.FAILED, cause, None)
    ] * 2
    assert found.ranks[0].detail == f"{state} NonZeroExitCode exit code 1"


@pytest.mark.parametrize("state", ["COMPLETING", "SUSPENDED", "RUNNING", "CONFIGURING", "PENDING"])
def test_a_job_that_may_still_do_something_has_not_ended(state: str) -> None:
    """DL-D22."""
    found = sighting(_HANDLE, {None: _job(state)}, {"ranks": ["corral: ranks 2"]})

    assert found is not None
    assert not found.ended


def test_what_another_job_of_the_same_number_wrote_is_not_read() -> None:
    """DL-D03: the folder has the key, and the note in it the number."""
    assert sighting(SlurmHandle("13", "p-1"), {}, {"step": _STEP.splitlines()}) is None


def test_lines_of_sacct() -> None:
    """DL-D16: what it keeps after the queue forgot."""
    found = read_history(
        [
            "12|corral.home.p-1|OUT_OF_MEMORY|0:125|None|n[0-1]",
            "13_2|corral.home.p-2|CANCELLED by 1000|0:15|None|n1",
            "13_[3-5]|corral.home.p-2|PENDING|0:0|Resources|None assigned",
            "14|corral.home.p-3|FAILED|3:0|NonZeroExitCode|n1",
            "Slurm accounting storage is disabled",
        ]
    )

    assert [(job.job_id, job.element, job.state, job.status) for job in found] == [
        ("12", None, "OUT_OF_MEMORY", 125),
        ("13", 2, "CANCELLED", 15),
        ("14", None, "FAILED", 3 << 8),
    ]
    assert found[0].nodes == "n[0-1]"


def test_a_step_of_a_thousand_ranks() -> None:
    text = [
        "corral: job 12",
        *(f"srun: launching StepId=12.0 on host n{n}, 8 tasks: [{8 * n}-{8 * n + 7}]" for n in range(125)),
        *(f"srun: launch/slurm: _task_start: Node n{n}, 8 tasks started" for n in range(125)),
    ]

    found = read_step(read_files([f"p-1/step:{line}" for line in text])["p-1"]["step"])

    assert found.started == frozenset(range(1000))
    assert found.nodes[999] == "n124"


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "",
    ],
)
def test_what_is_no_answer_is_no_refusal(words: str) -> None:
    """DL-D29."""
    assert isinstance(refused_or_unreachable(words), ExecutorUnreachable)


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "sbatch: error: invalid partition specified: nowhere",
        "sbatch: error: Batch job submission failed: Invalid account or account/partition",
        "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification",
    ],
)
def test_a_refusal_has_slurms_own_words(words: str) -> None:
    """DL-D32."""
    error = refused_or_unreachable(words)

    assert isinstance(error, LaunchRefused)
    assert str(error) == f"Slurm refused the job: {words.removeprefix('sbatch: error: ')}"
    assert error.hint


def test_gpus_are_asked_for_in_slurms_words() -> None:
    """DL-D25: by generic resource, by features where any of several will do; never silently any GPU."""
    by_type = SlurmOptions(folder="/s", gres={"H100": "gpu:h100", "A100": "gpu:a100"})
    by_feature = SlurmOptions(folder="/s", features={"H100": "h100", "A100": "a100"}, labels={"nvme": "ssd"})

    assert fitting.gpu_flags(Requirements(gpus=2), by_type) == ["--gpus-per-task=2"]
    assert fitting.gpu_flags(Requirements(gpus=2, gpu=("H100",)), by_type) == ["--gpus-per-task=h100:2"]
    assert fitting.gpu_flags(Requirements(gpus=1, gpu=("H100", "A100"), labels=("nvme",)), by_feature) == [
        "--constraint=ssd&[a100|h100]",
        "--gpus-per-task=1",
    ]
    assert fitting.unnamed(Requirements(gpus=1, gpu=("B200",), labels=("fast",)), by_type) == [
        "asks for B200; the GPU models named for this executor are: A100, H100",
        "lacks the label fast",
    ]


def test_why_it_could_never_run_counts_each_node() -> None:
    """DL-D25, DL-D32."""
    nodes = read_nodes(
        [
            "n0|64|512000|gpu:h100:8(S:0-1)|ssd,h100",
            "n0|64|512000|gpu:h100:8(S:0-1)|ssd,h100",
            "n1|64+|512000+|gpu:a100:4|(null)",
            "n2|8|16000|(null)|(null)",
        ]
    )
    options = SlurmOptions(folder="/s", partition="big", gres={"H100": "gpu:h100"})

    assert nodes[0] == SlurmNode("n0", 64, 512000 << 20, "gpu:h100:8(S:0-1)", ("ssd", "h100"))
    assert [(kind.gpu, kind.gpus, kind.machines) for kind in fitting.capacities(nodes, options)] == [
        (None, 0, 1),
        ("a100", 4, 1),
        ("H100", 8, 1),
    ]
    assert fitting.refusals(Requirements(gpus=4, gpu=("H100",)), 2, nodes, options) == []
    assert fitting.refusals(Requirements(gpus=4, gpu=("H100",)), 3, nodes, options) == [
        "partition big has room for 2 ranks with 1 cores, 4 GPUs (H100); 3 are asked for"
    ]
    assert fitting.refusals(Requirements(min_ram_bytes=600 * GIB), 1, nodes, options) == [
        "no node of partition big has 1 cores, 600 GiB RAM for a rank;"
        " the most are 64 cores, 500 GiB RAM, 8 GPUs"
    ]


def test_a_job_is_asked_for_with_its_limits() -> None:
    """DL-C08, DL-D32."""
    options = SlurmOptions(folder="/s", partition="big", account="lab", qos="high", flags=("--nice=5",))
    need = Requirements(min_cores=4, min_ram_bytes=8 * GIB, min_disk_bytes=GIB)

    flags = sbatch_flags(options, _order(need=need, limit_s=90.0), [])
    elastic = sbatch_flags(options, _order(min_ranks=2), [])

    wanted = {"--ntasks=4", "--cpus-per-task=4", "--mem-per-cpu=2048M", "--tmp=1024M", "--time=2"}
    assert wanted | {"--partition=big", "--account=lab", "--qos=high", "--no-requeue"} <= set(flags)
    assert flags[-1] == "--nice=5"
    assert {"--ntasks=1", "--array=0-3", "--signal=TERM@30"} <= set(elastic)


def test_a_program_that_arrives_in_part_does_nothing(tmp_path: Path) -> None:
    """DL-D27: the connection to the login node may break anywhere."""
    options = SlurmOptions(folder=str(tmp_path / "shared"))
    lines = launch_script(options, _order(), ["--ntasks=4"]).splitlines(keepends=True)

    for count in range(len(lines)):
        subprocess.run(["sh"], input="".join(lines[:count]), text=True, capture_output=True, check=False)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("installation", ["home", "a b,c", "x.y", "é" * 100])
def test_a_jobs_name_gives_its_key_and_its_installation(installation: str) -> None:
    """DL-D23."""
    name = job_name(_order(installation=installation))

    assert key_of(name) == "p-1"
    assert mark_of(name) == mark(installation)
    assert name.replace(".", "").replace("-", "").isalnum()
    assert name.isascii()
    assert key_of("wrap") is None
    assert key_of("corral.something") is None


def test_a_handle_is_a_number_and_a_key() -> None:
    assert read_handle(str(_HANDLE)) == _HANDLE
    assert [read_handle(text) for text in ("12", "12:", "12; rm -rf /:p", "x:p-1", "12:P 1")] == [None] * 5


@pytest.mark.parametrize(
    "tasks", ["0-99999999999", "1--2", "9" * 5000, "0-999999", ",".join(["0-99999"] * 99)]
)
def test_what_a_job_wrote_down_costs_little_whatever_it_says(tasks: str) -> None:
    """ATK5-06: a run that is not isolated can write there, and the server reads it for all runs."""
    sent = f"srun: launching StepId=1.0 on host n1, 1 tasks: {tasks}"
    ended = [
        "srun: _task_finish: Received task exit notification for 1 tasks of StepId=1.0 "
        f"(status=0x{'f' * 5000}).",
        f"srun: error: n1: tasks {tasks}: Exited with exit code 1",
        f"{'9' * 5000}: slurmstepd: exceeded memory limit",
    ]
    files = {"ranks": [f"corral: ranks {tasks}"], "step": [f"corral: job {_HANDLE.job_id}", sent, *ended]}

    seen = sighting(_HANDLE, {}, {**files, f"step-{'9' * 5000}": [f"corral: job {_HANDLE.job_id}"]})

    assert seen is not None
    assert len(seen.ranks) <= 100_000


def test_links_and_pipes_in_the_folder_of_a_job_are_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    """ATK5-06: a run that is not isolated can lay them there, and the control plane may read more than it."""
    secret, commands = tmp_path / "secret", tmp_path / "bin"
    secret.write_text("corral: operator's own\n")
    commands.mkdir()
    (commands / "squeue").write_text("#!/bin/sh\n")
    (commands / "squeue").chmod(0o700)
    folder = tmp_path / "shared" / _HANDLE.key
    folder.mkdir(parents=True)
    (folder / "rank-0.out").symlink_to(secret)
    (folder / "step-8").symlink_to(secret)
    os.mkfifo(folder / "step-9")
    (folder / "step").write_text("corral: job 1\n")
    prefix = ("env", f"PATH={commands}:{os.defpath}")
    api = SlurmApi(SlurmOptions(folder=str(folder.parent), command_prefix=prefix, timeout_s=120.0))

    assert api.observe([_HANDLE]).files == {_HANDLE.key: {"step": ["corral: job 1"]}}
    assert api.logs(_HANDLE, 0, most_bytes=1000) == "corral: job 1\n"
    assert api.logs(_HANDLE, 9, most_bytes=1000) == "corral: job 1\n"


def test_a_check_of_a_folder_that_is_not_there_makes_none(tmp_path: Path) -> None:
    """HOUR6-01: `executors check` made the folder of a mistyped option, and called it good."""

    def checked(folder: Path) -> tuple[bool, str]:
        options = SlurmOptions(folder=str(folder))
        told = subprocess.run(["sh", "-c", preflight_script(options, ())], capture_output=True, text=True)
        return next((c.ok, c.detail) for c in read_checks(told.stdout, options) if c.name == "folder")

    ok, words = checked(tmp_path / "mistyped" / "below")
    assert ok
    assert "is not there yet" in words
    assert list(tmp_path.iterdir()) == []

    ok, words = checked(tmp_path)
    assert ok
    assert "can be written to" in words
    (tmp_path / "file").touch()
    assert not checked(tmp_path / "file" / "below")[0]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_rank_that_was_killed_for_memory_says_so() -> None:
    """HOUR6-02: it said `rank 0: Killed`, and nothing of memory."""
    no_memory = (
        "0: slurmstepd-n0: error: StepId=12.0 exceeded memory limit (351338496 > 209715200), being killed\n"
    )
    record = {"step": (no_memory + _STEP.format(words="Killed")).splitlines(), "ranks": ["corral: ranks 3"]}

    seen = sighting(_HANDLE, {}, record)

    assert seen is not None
    assert "rank 1: out of memory (Killed)" in why_ended(seen)
    assert "rank 2: out of memory" not in why_ended(seen)
