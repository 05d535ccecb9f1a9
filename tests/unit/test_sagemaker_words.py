"""What SageMaker says of a job, as what is seen of its ranks; instances; and what the container is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from corral.adapters.executors.sagemaker import jobs
from corral.adapters.executors.sagemaker.executor import SageMakerExecutor
from corral.adapters.executors.sagemaker.instances import (
    fitting,
    known_instances,
    shape_refusals,
    usable,
)
from corral.adapters.executors.sagemaker.jobs import TrainingHandle
from corral.adapters.executors.sagemaker.options import SageMakerOptions
from corral.adapters.executors.sagemaker.sightings import sighting
from corral.domain.hosts.capability import GIB, Requirements
from corral.domain.placements import orders
from corral.domain.placements.orders import SightCause, SightState
from corral.worker import on_sagemaker


def job(status: str, secondary: str, message: str = "", **more: Any) -> dict[str, Any]:
    steps = [{"Status": secondary, "StatusMessage": message}]
    told = {"TrainingJobStatus": status, "SecondaryStatus": secondary, "SecondaryStatusTransitions": steps}
    return {**told, **more}


@pytest.mark.parametrize(
    ("told", "state", "cause"),
    [
        (job("InProgress", "Starting"), SightState.WAITING, None),
        (
            job("InProgress", "LaunchingMLInstances", "Insufficient capacity error from EC2, retrying!"),
            SightState.WAITING,
            SightCause.UNSCHEDULABLE,
        ),
        (job("InProgress", "Interrupted"), SightState.WAITING, SightCause.PREEMPTED),
        (job("InProgress", "DownloadingTrainingImage"), SightState.STARTING, None),
        (job("InProgress", "Training"), SightState.RUNNING, None),
        (job("Stopping", "Stopping"), SightState.RUNNING, None),
        (job("Completed", "Completed"), SightState.SUCCEEDED, None),
        (job("Stopped", "Stopped"), SightState.FAILED, SightCause.CANCELLED),
        (job("Stopped", "MaxRuntimeExceeded"), SightState.FAILED, SightCause.DEADLINE),
        (job("Stopped", "MaxWaitTimeExceeded"), SightState.FAILED, SightCause.UNSCHEDULABLE),
        (
            job("Failed", "Failed", FailureReason="CapacityError: Unable to provision requested ML compute"),
            SightState.FAILED,
            SightCause.UNSCHEDULABLE,
        ),
        (
            job(
                "Failed", "Failed", FailureReason="ClientError: Please use an instance type with more memory"
            ),
            SightState.FAILED,
            SightCause.OUT_OF_MEMORY,
        ),
        (
            job("Failed", "Failed", FailureReason="ClientError: Cannot pull ECR image 1.dkr.ecr/x:y"),
            SightState.FAILED,
            SightCause.IMAGE,
        ),
        (
            job("Failed", "Failed", FailureReason="InternalServerError: We encountered an internal error."),
            SightState.FAILED,
            SightCause.UNKNOWN,
        ),
    ],
)
def test_each_state_of_a_job_is_told_as_it_is(
    told: dict[str, Any], state: SightState, cause: SightCause | None
) -> None:
    """DL-D15, DL-D18: and a cause that SageMaker does not tell is unknown."""
    seen = sighting([told], 2)

    assert seen is not None
    assert {(rank.state, rank.cause) for rank in seen.ranks} == {(state, cause)}
    assert [rank.rank for rank in seen.ranks] == [0, 1]
    assert {rank.exit_code for rank in seen.ranks} == ({0} if state is SightState.SUCCEEDED else {None})


def test_a_code_is_blamed_on_a_rank_only_where_that_is_known() -> None:
    """DL-D14, DL-D18: the code of one of several instances could be anybody's."""
    failed = job("Failed", "Failed", FailureReason="AlgorithmError: , exit code: 3")
    one, two = sighting([failed], 1), sighting([failed], 2)
    assert one is not None
    assert two is not None
    assert (one.ranks[0].cause, one.ranks[0].exit_code) == (SightCause.EXITED, 3)
    assert {(rank.cause, rank.exit_code) for rank in two.ranks} == {(SightCause.UNKNOWN, None)}

    own = job("Failed", "Failed", FailureReason="AlgorithmError: corral: rank 1 exited with 3, exit code: 3")
    seen = sighting([own], 2)
    assert seen is not None
    assert [(rank.cause, rank.exit_code) for rank in seen.ranks] == [
        (SightCause.CANCELLED, None),
        (SightCause.EXITED, 3),
    ]


def test_jobs_that_nobody_knows_are_not_seen() -> None:
    """DL-D16."""
    assert sighting([None, None], 1) is None


def test_every_instance_of_the_table_is_one_that_aws_has() -> None:
    """DL-D25: by the published model."""
    model = botocore.session.get_session().get_service_model("sagemaker")
    assert {one.name for one in known_instances()} <= set(model.shape_for("TrainingInstanceType").enum)


@pytest.mark.parametrize(
    ("need", "name"),
    [
        (Requirements(), "ml.m5.large"),
        (Requirements(min_cores=10, min_ram_bytes=20 * GIB), "ml.m5.4xlarge"),
        (Requirements(gpus=1, gpu=("T4",)), "ml.g4dn.xlarge"),
        (Requirements(gpus=1, gpu=("H100",)), "ml.p5.4xlarge"),
        (Requirements(gpus=1, gpu=("L4",), min_vram_bytes=24 * GIB), "ml.g6.xlarge"),
        (Requirements(gpus=4, gpu=("h100",)), "ml.p5.48xlarge"),
        (Requirements(gpus=1, gpu=("A100",), min_vram_bytes=80 * GIB), "ml.p4de.24xlarge"),
        (Requirements(gpus=2, min_compute_capability="8.9"), "ml.g6.12xlarge"),
    ],
)
def test_a_rank_gets_the_smallest_instance_that_fits(need: Requirements, name: str) -> None:
    """DL-C15, DL-D25: several GPUs, and models by their name."""
    assert fitting(need, usable((), ()))[0].name == name


def test_what_no_instance_has_is_refused_by_name() -> None:
    """DL-D25: an unknown model never means any."""
    shapes = usable((), ())
    assert (
        "no instance type has a GPU called A6000"
        in shape_refusals(Requirements(gpus=1, gpu=("A6000",)), shapes)[0]
    )
    assert "16 are needed" in shape_refusals(Requirements(gpus=16, gpu=("H100",)), shapes)[0]
    assert "more_instances" in shape_refusals(Requirements(), usable(("ml.new.large",), ()))[0]


def test_names_of_jobs_are_legal_and_lead_back() -> None:
    """DL-D23, DL-D28."""
    handle = TrainingHandle(jobs.mark_of("i-1"), "k" * 40, 1000, 1)
    assert max(map(len, handle.names)) <= 63
    assert TrainingHandle.parse(str(handle)) == handle
    assert handle.job_of(7) == (handle.names[7], 0)
    assert handle.job_of(1000) is None
    assert list(jobs.keys_in(handle.names, handle.mark)) == [handle.key]
    assert TrainingHandle.parse("a/b") is None


def test_the_container_has_the_same_names_as_the_adapter() -> None:
    assert (on_sagemaker.SECRET, on_sagemaker.FIRST_RANK) == (jobs.SECRET, jobs.FIRST_RANK)
    assert (on_sagemaker.TOKENS, on_sagemaker.RANK) == (orders.TOKENS, orders.RANK)
    assert on_sagemaker.__name__ == jobs.STARTER


def test_an_instance_knows_its_number_by_its_host(tmp_path: Path) -> None:
    """DL-C08: algo-10 is the tenth, not the second."""
    (tmp_path / "input/config").mkdir(parents=True)
    hosts = sorted(f"algo-{number}" for number in range(1, 13))
    told = json.dumps({"current_host": "algo-10", "hosts": hosts})
    (tmp_path / "input/config/resourceconfig.json").write_text(told)

    assert on_sagemaker.own_instance(tmp_path) == 9


def test_without_the_client_of_aws_a_check_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """DL-C02, DL-D47."""
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    executor = SageMakerExecutor(SageMakerOptions(role_arn="arn:aws:iam::1:role/x", output="s3://x"))

    (check,) = executor.preflight()

    assert not check.ok
    assert "pip install 'corral[sagemaker]'" in check.fix
