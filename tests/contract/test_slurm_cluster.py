"""The Slurm that tests use is a real one: what it grants, refuses and tells of the end of a job."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from support import slurm_cluster
from support.slurm_cluster import NODES, SlurmCluster
from support.waiting import eventually

_CHECKPOINTS = 'trap "echo checkpoint; exit 0" TERM; echo up; sleep 600 & wait'


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    cluster = slurm_cluster.slurm_cluster()
    yield cluster
    cluster.cancel_all()


def test_three_ranks_run_on_three_nodes_with_a_gpu_each(slurm: SlurmCluster) -> None:
    said = 'srun sh -c "echo $SLURM_PROCID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'
    job = slurm.sbatch(said.replace("$", "\\$"), "-N3", "-n3", "--gres=gpu:1")

    slurm.wait_for(job, "COMPLETED")

    # Slurm adds warnings of its own where the machine is busy.
    ranks = sorted(line.split() for line in slurm.output(job).splitlines() if line[:1].isdigit())
    assert [(rank, len(gpus)) for rank, _, *gpus in ranks] == [("0", 1), ("1", 1), ("2", 1)]
    assert {node for _, node, *_ in ranks} == set(NODES)


def test_gpus_that_are_taken_are_not_given_twice(slurm: SlurmCluster) -> None:
    holder = slurm.sbatch("sleep 600", "-N3", "--ntasks-per-node=1", "--gres=gpu:2")
    slurm.wait_for(holder, "RUNNING")

    waiting = slurm.sbatch("true", "--gres=gpu:1")

    shown = eventually(
        lambda: found if (found := slurm.show(waiting))["Reason"] == "Resources" else None,
        "a reason of the scheduler",
    )
    assert shown["JobState"] == "PENDING"
    slurm.run("scancel", holder)
    slurm.wait_for(waiting, "COMPLETED")


def test_more_than_there_is_and_a_closed_partition_are_refused(slurm: SlurmCluster) -> None:
    too_many = slurm.run("sbatch", "--gres=gpu:3", "--wrap", "true", check=False)
    closed = slurm.run("sbatch", "-p", "closed", "--wrap", "true", check=False)
    unknown = slurm.run("sbatch", "-p", "nowhere", "--wrap", "true", check=False)

    assert "Requested node configuration is not available" in too_many
    assert "Required partition not available" in closed
    assert "invalid partition specified: nowhere" in unknown


@pytest.mark.parametrize(
    ("script", "state", "exit_code", "number"),
    [("exit 3", "FAILED", 3, 0), ("kill -SEGV $$", "FAILED", 0, 11), ("true", "COMPLETED", 0, 0)],
)
def test_how_a_job_ended_is_told_and_kept(
    slurm: SlurmCluster, script: str, state: str, exit_code: int, number: int
) -> None:
    job = slurm.sbatch(script)

    shown = slurm.wait_for(job, state)
    kept = slurm.ended(job)

    assert shown["ExitCode"] == f"{exit_code}:{number}"
    assert (kept.state, kept.exit_code, kept.signal) == (state, exit_code, number)


def test_a_job_that_takes_more_memory_than_it_asked_for_is_ended(slurm: SlurmCluster) -> None:
    job = slurm.sbatch(
        'exec python3 -c "import time; x = bytearray(300_000_000); time.sleep(600)"', "--mem=50"
    )

    ended = slurm.wait_for(job, "FAILED")

    # Only with control groups does Slurm call it OUT_OF_MEMORY.
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "0:9")
    assert "exceeded memory limit" in slurm.output(job)


def test_a_job_in_the_spare_partition_gives_way_and_is_queued_again(slurm: SlurmCluster) -> None:
    spare = slurm.sbatch(_CHECKPOINTS, "-p", "spare", "-N3", "--exclusive")
    eventually(lambda: "up" in slurm.output(spare), "the job to run")

    urgent = slurm.sbatch("sleep 600", "-p", "open", "-N3", "--exclusive")

    slurm.wait_for(urgent, "RUNNING")
    assert slurm.wait_for(spare, "PENDING")["Restarts"] == "1"
    assert slurm.ended(spare).state == "PREEMPTED"


def test_a_lost_node_fails_its_job(slurm: SlurmCluster) -> None:
    job = slurm.sbatch("echo up; sleep 600", "-w", "n1", "--no-requeue")
    eventually(lambda: "up" in slurm.output(job), "the job to run")

    slurm.lose_node("n1")

    assert slurm.wait_for(job, "NODE_FAIL")
    slurm.restore_node("n1")


def test_the_controller_can_be_away_for_a_while(slurm: SlurmCluster) -> None:
    job = slurm.sbatch("sleep 600")
    slurm.wait_for(job, "RUNNING")

    slurm.stop_controller()
    assert "Unable to contact slurm controller" in slurm.run("squeue", check=False)
    slurm.start_controller()

    assert slurm.state(job) == "RUNNING"


def test_where_it_is_not_installed_the_reason_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_cluster, "_PATH", "/nowhere")

    assert "apt-get install --no-install-recommends slurmctld slurmd" in slurm_cluster.missing()


def test_nothing_is_left_of_it() -> None:
    if slurm_cluster.missing():
        pytest.skip(slurm_cluster.missing())
    cluster = slurm_cluster.slurm_cluster()
    # Told from those that get the same number later.
    processes = [psutil.Process(daemon.pid) for daemon in cluster._daemons.values()]

    slurm_cluster.stop()

    assert len(processes) == 5
    assert not [process for process in processes if process.is_running()]
    assert not cluster.folder.exists()
