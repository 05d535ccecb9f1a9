"""Jobs of a real Slurm as its executor makes and sees them, beyond the contract of all executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support import slurm_cluster
from support.executor_contract import (
    SAYS_WHO,
    STAYS,
    has_ended,
    nothing_is_left,
    rank_seen,
    running,
    said,
    sighted,
)
from support.slurm_harness import SlurmHarness, processes_in
from support.waiting import eventually

from corral.adapters.executors.slurm import SlurmExecutor
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import SightCause, Sighting, SightState
from corral.ports.executor import ExecutorUnreachable, LaunchRefused


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SlurmHarness]:
    made = SlurmHarness(slurm_cluster.slurm_cluster(), tmp_path)
    yield made
    made.clean()


def test_each_rank_sees_its_own_gpu(cluster: SlurmHarness) -> None:
    """DL-D25: four ranks with a GPU each on nodes with two."""
    executor = cluster.executor()
    script = SAYS_WHO + 'echo "gpu $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES."'
    handle = executor.launch(cluster.order(cluster.key(), 4, script, need=Requirements(gpus=1)))

    found = sighted(executor, handle, has_ended, "the end")
    texts = [said(executor, handle, rank, ".") for rank in range(4)]

    gpus = [line for text in texts for line in text.splitlines() if line.startswith("gpu ")]
    assert len(gpus) == len(set(gpus)) == 4
    assert all(len(line.split()) == 3 and "," not in line for line in gpus)
    assert {seen.node for seen in found.ranks} == {line.split()[1] for line in gpus}


def test_a_preempted_job_says_so_and_is_not_queued_again(cluster: SlurmHarness) -> None:
    """DL-D18, DL-D27: Slurm would requeue it, which would be a second cohort that nobody launched."""
    executor = SlurmExecutor(replace(cluster.options, partition="spare", flags=("--exclusive", "-N3")))
    order = cluster.order(cluster.key(), 3, STAYS)
    handle = running(cluster, executor, order)

    cluster.slurm.sbatch("sleep 600", "-p", "open", "-N3", "--exclusive")

    found = sighted(executor, handle, has_ended, "the end")
    assert {seen.cause for seen in found.ranks if seen.state is SightState.FAILED} <= {SightCause.PREEMPTED}
    assert "PREEMPTED" in found.detail
    assert "asked to end" in executor.logs(handle, 0, most_bytes=1000)
    assert executor.launched(cluster.installation) == []


def test_a_lost_node_is_told(cluster: SlurmHarness) -> None:
    """DL-D18."""
    executor = SlurmExecutor(replace(cluster.options, flags=("--nodelist=n1",)))
    handle = running(cluster, executor, cluster.order(cluster.key(), 2, STAYS))

    cluster.slurm.lose_node("n1")

    found = sighted(executor, handle, has_ended, "the end")
    cluster.slurm.restore_node("n1")
    assert {(seen.state, seen.cause) for seen in found.ranks} == {(SightState.FAILED, SightCause.NODE_LOST)}


def test_an_administrators_requeue_makes_no_second_cohort(cluster: SlurmHarness) -> None:
    """DL-D27."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 2, STAYS)
    handle = running(cluster, executor, order)
    job = cluster.job_id(handle)

    cluster.slurm.run("scontrol", "update", f"JobId={job}", "Requeue=1")
    cluster.slurm.run("scontrol", "requeue", job)

    nothing_is_left(cluster, order.key)
    assert sighted(executor, handle, has_ended, "the end, though it waits again").ended
    eventually(lambda: cluster.slurm.state(job) == "PENDING", "the queue to have it again")
    cluster.slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    cluster.slurm.wait_for(job, "FAILED")
    assert cluster.processes(order.key) == []
    assert executor.logs(handle, 0, most_bytes=10_000).count("up 0") == 1


def test_how_it_ended_is_known_after_slurm_forgot_the_job(cluster: SlurmHarness) -> None:
    """DL-D16: and the number, which Slurm gives to somebody else, is not taken for ours."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 2, SAYS_WHO + '[ "$rank" = 0 ] || exit 5')
    handle = executor.launch(order)
    sighted(executor, handle, has_ended, "the end")

    cluster.slurm.forget_jobs()

    found = executor.observe([handle])[handle]
    assert found.ended
    assert [(seen.state, seen.exit_code) for seen in found.ranks] == [
        (SightState.SUCCEEDED, 0),
        (SightState.FAILED, 5),
    ]
    assert executor.launch(order) == handle
    work = cluster.foreign()
    number = cluster.slurm.run("squeue", "--noheader", "-o", "%A").split()[0]
    taken = f"{number}:{order.key}"
    executor.cancel(taken)
    assert taken not in executor.observe([taken])
    assert work.runs()


def test_each_job_of_an_array_has_its_own_deadline(cluster: SlurmHarness) -> None:
    """DL-D31: each has its own time from its own start, also one that had to wait."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 3, STAYS, min_ranks=1, limit_s=1.0, grace_s=0.5)
    order = order._replace(need=Requirements(gpus=2))
    with cluster.holding("n0"):
        handle = executor.launch(order)
        for rank in range(3):
            assert sighted(executor, handle, partial(_is_past_deadline, rank), f"the deadline of rank {rank}")


def _is_past_deadline(rank: int, found: Sighting) -> bool:
    return rank_seen(found, rank).cause is SightCause.DEADLINE


def test_what_keeps_the_time_ends_with_the_job(cluster: SlurmHarness) -> None:
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 1, SAYS_WHO, limit_s=600.0)
    handle = executor.launch(order)

    sighted(executor, handle, has_ended, "the end")

    folder = Path(cluster.options.folder) / order.key
    eventually(lambda: not processes_in(folder), "nothing to run in its folder")
    assert not (folder / "tokens").exists()


def test_files_are_for_their_owner_and_the_submitters_environment_stays_behind(
    cluster: SlurmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DL-D32."""
    monkeypatch.setenv("CORRAL_MASTER_KEY", "very-secret")
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 1, SAYS_WHO + "env; sleep 600")
    handle = running(cluster, executor, order)

    folder = Path(cluster.options.folder) / order.key
    assert "very-secret" not in said(executor, handle, 0, "CORRAL_PLACED_TOKENS=")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
    assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}
    assert modes["tokens"] == 0o600


@pytest.mark.parametrize(
    ("partition", "words"),
    [("closed", "Required partition not available"), ("nowhere", "invalid partition specified: nowhere")],
)
def test_a_partition_that_is_closed_or_unknown_refuses(
    cluster: SlurmHarness, partition: str, words: str
) -> None:
    """DL-D32."""
    executor = SlurmExecutor(replace(cluster.options, partition=partition))

    with pytest.raises(LaunchRefused, match=words):
        executor.launch(cluster.order(cluster.key(), 1, STAYS))

    wrong = {check.name: check for check in executor.preflight() if not check.ok}
    assert set(wrong) == {"partition", "job"}
    assert partition in wrong["partition"].detail


@pytest.mark.parametrize("prefix", [("false",), ("corral-no-such-program",), ("sleep", "60")])
def test_a_login_node_that_cannot_be_reached_is_no_refusal(
    cluster: SlurmHarness, prefix: tuple[str, ...]
) -> None:
    """DL-D29."""
    executor = SlurmExecutor(replace(cluster.options, command_prefix=prefix, timeout_s=0.2))

    with pytest.raises(ExecutorUnreachable):
        executor.launch(cluster.order(cluster.key(), 1, STAYS))

    assert [(check.name, check.ok) for check in executor.preflight()] == [("reach", False)]


def test_an_image_needs_an_option_of_srun(cluster: SlurmHarness) -> None:
    order = cluster.order(cluster.key(), 1, SAYS_WHO, image="python:3.12")
    with pytest.raises(LaunchRefused, match="without containers"):
        cluster.executor().launch(order)

    executor = SlurmExecutor(replace(cluster.options, image_flag="--comment=image {image}"))
    handle = executor.launch(order)

    assert "--comment=image python:3.12" in cluster.listing(handle)
    assert sighted(executor, handle, has_ended, "the end").ranks[0].state is SightState.SUCCEEDED
