"""The executor for SageMaker holds the contract of executors, on training jobs that run on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from support.aws_server import AwsServer
from support.aws_server.server import REGION, USER
from support.aws_server.services import IMAGE, ROLE
from support.executor_contract import (
    MIB,
    STAYS,
    ExecutorContract,
    ExecutorHarness,
    ForeignWork,
    has_ended,
    running,
    sighted,
)
from support.waiting import eventually

from corral.adapters.executors.sagemaker.executor import SageMakerExecutor
from corral.adapters.executors.sagemaker.jobs import OWNER, TrainingHandle, mark_of, prefix_of
from corral.adapters.executors.sagemaker.options import SageMakerOptions
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder, SightCause, SightState
from corral.ports.executor import ExecutorUnreachable, LaunchRefused

# Launches one order that comes as JSON, and stays until it is killed.
_LAUNCHER = """
import json, sys
from corral.adapters.executors.sagemaker.executor import SageMakerExecutor
from corral.adapters.executors.sagemaker.options import SageMakerOptions
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder
given = json.load(sys.stdin)
order = LaunchOrder(**{**given["order"], "need": Requirements(**given["need"])})
while True:
    try:
        SageMakerExecutor(SageMakerOptions(**given["options"])).launch(order)
    except Exception:
        pass
"""


class SageMakerHarness(ExecutorHarness):
    lacks: Mapping[str, str] = {
        "out_of_memory": "a rank has an instance of its own, and the smallest has 8 GiB"
    }

    def __init__(self, aws: AwsServer, session: Any) -> None:
        super().__init__()
        self.aws = aws
        self._session = session
        self._made: list[SageMakerExecutor] = []

    def options(self, **changes: Any) -> dict[str, Any]:
        return {"role_arn": ROLE, "output": "s3://bucket/corral", "image": IMAGE, "region": REGION, **changes}

    def executor(self, **changes: Any) -> SageMakerExecutor:
        made = SageMakerExecutor(SageMakerOptions(**self.options(**changes)), session=self._session)
        self._made.append(made)
        return made

    def clean(self) -> None:
        for faults in (self.aws.lost, self.aws.denied, self.aws.throttled):
            faults.clear()
        jobs = self.aws.jobs
        with jobs.changed:
            for job in jobs.jobs.values():
                for container in job.containers:
                    container.kill()
                if job.status == "InProgress":
                    jobs.stop({"TrainingJobName": job.name})
        eventually(lambda: not any(job.lives for job in jobs.jobs.values()), "all jobs to have ended")
        for made in self._made:
            made.close()

    def listing(self, handle: str) -> str:
        jobs = [self.aws.jobs.jobs[name] for name in parsed(handle).names]
        return json.dumps([[job.described(), job.request, list(self.aws.secrets.secrets)] for job in jobs])

    def foreign(self) -> ForeignWork:
        """Under our prefix, and of another owner."""
        name = f"{prefix_of(mark_of(self.installation))}of-others"
        client = self._session.client("sagemaker")
        client.create_training_job(
            TrainingJobName=name,
            AlgorithmSpecification={
                "TrainingImage": IMAGE,
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["sleep", "600"],
            },
            RoleArn=ROLE,
            OutputDataConfig={"S3OutputPath": "s3://bucket/others"},
            ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 10},
            StoppingCondition={"MaxRuntimeInSeconds": 3600},
            Environment={OWNER: "somebody/else"},
        )
        job = self.aws.jobs.jobs[name]
        eventually(lambda: job.containers, "the work of others to run")
        return ForeignWork(
            lambda: job.containers[0].status is None, lambda: client.stop_training_job(TrainingJobName=name)
        )

    def impossible(self, key: str) -> LaunchOrder:
        return self.order(key, 2, STAYS, need=Requirements(min_cores=512, min_ram_bytes=64 * MIB))

    def broken(self) -> tuple[SageMakerExecutor, str]:
        return self.executor(role_arn=ROLE.replace("worker", "nobody")), "corral-nobody"

    @contextmanager
    def away(self) -> Iterator[None]:
        self.aws.stop()
        try:
            yield
        finally:
            self.aws.start()

    @contextmanager
    def losing_a_reply(self) -> Iterator[None]:
        self.aws.lost.add("CreateTrainingJob")
        try:
            yield
        finally:
            self.aws.lost.clear()

    def dies_in_launch(self, order: LaunchOrder) -> None:
        """Between the job and the secret with its tokens, which it never gets to make."""
        self.aws.throttled["CreateSecret"] = 1000
        need = {"min_cores": order.need.min_cores, "min_ram_bytes": order.need.min_ram_bytes}
        given = {"order": order._asdict() | {"need": None}, "need": need, "options": self.options()}
        given["order"] |= {"environ": dict(order.environ)}
        launcher = subprocess.Popen([sys.executable, "-c", _LAUNCHER], stdin=subprocess.PIPE, text=True)
        assert launcher.stdin is not None
        launcher.stdin.write(json.dumps(given))
        launcher.stdin.close()
        eventually(lambda: self.aws.throttled["CreateSecret"] < 1000, "the launcher to have made the job")
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        self.aws.throttled.clear()

    def full(self) -> AbstractContextManager[None]:
        return self.aws.full()

    def requests(self) -> int | None:
        return self.aws.requests.total()


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    made = AwsServer(tmp_path_factory.mktemp("aws"))
    given = {"AWS_ENDPOINT_URL": made.url, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}
    given |= {"AWS_ACCESS_KEY_ID": USER.access_key, "AWS_SECRET_ACCESS_KEY": USER.secret_key}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        yield made
    made.close()


@pytest.fixture(scope="module")
def session(aws: AwsServer) -> Any:
    """One for all: each would read the models of all services anew."""
    return boto3.Session(region_name=REGION)


@pytest.fixture
def cluster(aws: AwsServer, session: Any) -> Iterator[SageMakerHarness]:
    made = SageMakerHarness(aws, session)
    yield made
    made.clean()


class TestSageMakerExecutor(ExecutorContract): ...


def test_an_elastic_launch_has_a_job_for_each_rank(cluster: SageMakerHarness) -> None:
    """DL-C14, DL-D14: an instance of a job cannot fail alone; a job can."""
    executor = cluster.executor()
    handle = running(cluster, executor, cluster.order(cluster.key(), 2, STAYS, min_ranks=1))

    jobs = [cluster.aws.jobs.jobs[name] for name in parsed(handle).names]

    assert [job.instances for job in jobs] == [1, 1]
    assert [job.request["Environment"]["CORRAL_SAGEMAKER_FIRST_RANK"] for job in jobs] == ["0", "1"]


def test_the_tokens_are_in_a_secret_that_goes_with_the_launch(cluster: SageMakerHarness) -> None:
    """DL-D32: the job itself has only the secret's name."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 2, STAYS)
    handle = running(cluster, executor, order)
    job = cluster.aws.jobs.jobs[parsed(handle).names[0]]
    name = job.request["Environment"]["CORRAL_SAGEMAKER_SECRET"]

    assert order.tokens[1] in cluster.aws.secrets.secrets[name]
    assert order.tokens[1] not in json.dumps(job.request)
    executor.cancel(handle)

    assert name not in cluster.aws.secrets.secrets


def test_a_job_that_may_not_have_a_secret_is_stopped(cluster: SageMakerHarness) -> None:
    """DL-D22: nothing waits for what will never come."""
    cluster.aws.denied.add("CreateSecret")
    executor, order = cluster.executor(), cluster.order(cluster.key(), 1, STAYS)

    with pytest.raises(LaunchRefused, match="not authorized to perform: secretsmanager:CreateSecret"):
        executor.launch(order)

    eventually(lambda: not executor.launched(cluster.installation), "the job to be gone")
    assert not cluster.workers(order.key)


def test_a_role_that_may_not_read_the_secret_is_told(cluster: SageMakerHarness, tmp_path: Path) -> None:
    """DL-D18, DL-D26: in AWS's words, where SageMaker takes the reason of a failure from."""
    (tmp_path / "input/config").mkdir(parents=True)
    about = json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]})
    (tmp_path / "input/config/resourceconfig.json").write_text(about)
    environ = {**os.environ, "AWS_REGION": REGION, "SAGEMAKER_BASE_DIR": str(tmp_path)}
    environ |= {"CORRAL_SAGEMAKER_SECRET": "corral/x/y", "CORRAL_SAGEMAKER_FIRST_RANK": "3"}
    cluster.aws.denied.add("GetSecretValue")
    script = "import sys; from corral.worker.on_sagemaker import main; sys.exit(main(wait_s=0))"

    done = subprocess.run([sys.executable, "-c", script], env=environ)

    assert done.returncode == 1
    told = (tmp_path / "output/failure").read_text()
    assert told.startswith("corral: rank 3 cannot read the secret corral/x/y")
    assert "not authorized to perform: secretsmanager:GetSecretValue" in told


def test_a_launch_that_was_begun_is_completed_though_it_could_not_begin_now(
    cluster: SageMakerHarness,
) -> None:
    """DL-D27: the launcher died before the secret, and the quota is gone since."""
    order = cluster.order(cluster.key(), 1, STAYS)
    cluster.aws.throttled["CreateSecret"] = 1000
    with pytest.raises(ExecutorUnreachable):
        cluster.executor().launch(order)
    cluster.aws.throttled.clear()

    running(cluster, cluster.executor(instance_types=["ml.p5.48xlarge"]), order)


def test_requests_that_are_throttled_are_repeated(cluster: SageMakerHarness) -> None:
    """DL-D29."""
    executor, order = cluster.executor(), cluster.order(cluster.key(), 1, STAYS)
    cluster.aws.throttled.update({"CreateTrainingJob": 1, "ListTrainingJobs": 1, "CreateSecret": 1})

    running(cluster, executor, order)

    assert not +cluster.aws.throttled


def test_a_quota_that_is_in_use_is_no_refusal(cluster: SageMakerHarness) -> None:
    """DL-D13: a gang holds nothing and is asked for again; of an elastic launch too few are taken away."""
    executor = cluster.executor()
    cluster.aws.jobs.quota = 1
    try:
        with pytest.raises(ExecutorUnreachable, match="no room now: ResourceLimitExceeded"):
            executor.launch(cluster.order(cluster.key(), 2, STAYS))
        half = executor.launch(cluster.order(cluster.key(), 3, STAYS, min_ranks=2))
        found = sighted(executor, half, has_ended, "what there is too little of to be taken away")
    finally:
        cluster.aws.jobs.quota = None

    assert [seen.state for seen in found.ranks] == [SightState.FAILED, SightState.GONE, SightState.GONE]
    assert found.ranks[0].cause is SightCause.CANCELLED


def test_what_a_job_is_asked_for_with(cluster: SageMakerHarness) -> None:
    """DL-C14, DL-D25, DL-D32: the instance by its GPU, the limit, spot, the network, the volume, the keys."""
    executor = cluster.executor(
        spot=True, subnets=["subnet-1"], security_groups=["sg-1"], kms_key="key-1", tags={"team": "lab"}
    )
    need = Requirements(gpus=1, gpu=("a10g",), min_disk_bytes=200 * 10**9)
    order = cluster.order(cluster.key(), 2, STAYS, need=need, limit_s=60.5)

    asked = cluster.aws.jobs.jobs[parsed(executor.launch(order)).names[0]].request

    place = {"InstanceType": "ml.g5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 200}
    assert asked["ResourceConfig"] == {**place, "VolumeKmsKeyId": "key-1"}
    assert asked["StoppingCondition"] == {"MaxRuntimeInSeconds": 61, "MaxWaitTimeInSeconds": 3661}
    assert asked["EnableManagedSpotTraining"] is True
    assert asked["VpcConfig"] == {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
    tags = {tag["Key"]: tag["Value"] for tag in asked["Tags"]}
    assert (tags["team"], tags["corral:key"]) == ("lab", order.key)


def test_a_foreign_job_under_our_name_is_not_taken_for_ours(cluster: SageMakerHarness) -> None:
    """DL-D23, DL-D27."""
    work = cluster.foreign()
    with pytest.raises(LaunchRefused, match="is not this installation's"):
        cluster.executor().launch(cluster.order("of-others", 1, STAYS))
    work.end()


@pytest.mark.parametrize(
    ("changes", "denied", "name", "words", "fix"),
    [
        ({"role_arn": ROLE.replace("corral-worker", "nobody")}, "", "role", "no role nobody", "create-role"),
        (
            {"role_arn": ROLE.replace("corral-worker", "for-others")},
            "",
            "role",
            "may not assume",
            "update-assume-role-policy",
        ),
        ({"image": IMAGE.replace("corral", "other")}, "", "image", "RepositoryNotFound", "create-repository"),
        ({"image": IMAGE.replace("test", "old")}, "", "image", "ImageNotFound", "docker push"),
        ({"image": None}, "", "image", "no image", "Set the option `image`"),
        ({"instance_types": ["ml.p5.48xlarge"]}, "", "quota", "no instance", "--quota-code L-00000002"),
        ({}, "ListTrainingJobs", "jobs", "not authorized", "sagemaker:ListTrainingJobs"),
        ({}, "DescribeSecret", "secrets", "not authorized", "secretsmanager on corral"),
        ({}, "DescribeLogStreams", "logs", "not authorized", "logs:GetLogEvents"),
    ],
)
def test_preflight_has_a_command_for_each_thing_that_is_missing(
    cluster: SageMakerHarness, changes: dict[str, Any], denied: str, name: str, words: str, fix: str
) -> None:
    """DL-C10, DL-D32."""
    cluster.aws.denied |= {denied} - {""}

    (wrong,) = [check for check in cluster.executor(**changes).preflight() if not check.ok]

    assert wrong.name == name
    assert words in wrong.detail
    assert fix in wrong.fix


def test_credentials_that_are_missing_or_wrong_are_said_first(
    cluster: SageMakerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DL-C10, DL-D21: and a launch is not refused for good."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASTRANGER")
    stranger = SageMakerExecutor(SageMakerOptions(**cluster.options()))

    (check,) = stranger.preflight()
    with pytest.raises(ExecutorUnreachable):
        stranger.launch(cluster.order(cluster.key(), 1, STAYS))
    stranger.close()

    assert (check.name, check.ok) == ("credentials", False)
    assert "aws configure" in check.fix
    nobody = SageMakerExecutor(SageMakerOptions(**cluster.options(profile="no-such-profile")))
    assert [check.name for check in nobody.preflight() if not check.ok] == ["credentials"]


def test_what_may_not_be_looked_at_is_not_known(cluster: SageMakerHarness) -> None:
    """DL-D25: the account's quotas; nothing is refused for them."""
    cluster.aws.denied |= {"ListServiceQuotas", "GetRole", "DescribeImages"}
    executor = cluster.executor()

    assert [check for check in executor.preflight() if not check.ok] == []
    assert {kind.machines for kind in executor.capacities()} == {None}
    assert executor.refusals(Requirements(gpus=8, gpu=("H100",)), 2) == []


def test_a_quota_that_is_too_small_is_a_refusal(cluster: SageMakerHarness) -> None:
    """DL-D25."""
    executor = cluster.executor()
    assert executor.refusals(Requirements(gpus=8, gpu=("H100",)), 1) == [
        "needs 1 instances at once; the account's quotas allow 0 of ml.p5.48xlarge"
    ]
    assert executor.refusals(Requirements(gpus=1, gpu=("A10G",)), 2) == []


def parsed(handle: str) -> TrainingHandle:
    found = TrainingHandle.parse(handle)
    assert found is not None
    return found
