"""Names of what an order becomes at AWS, and the requests that make it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from corral.adapters.executors.sagemaker.instances import InstanceShape
from corral.adapters.executors.sagemaker.options import SageMakerOptions
from corral.domain.placements.orders import LaunchOrder

Json = dict[str, Any]
# The same names as in `corral.worker.on_sagemaker`, which reads them in the container.
SECRET = "CORRAL_SAGEMAKER_SECRET"
FIRST_RANK = "CORRAL_SAGEMAKER_FIRST_RANK"
# Whose job it is: nobody else's is taken for ours, and a sweep makes the handle of it.
OWNER = "CORRAL_SAGEMAKER_OWNER"
SHAPE = "CORRAL_SAGEMAKER_SHAPE"
STARTER = "corral.worker.on_sagemaker"
MOST_SECRET_BYTES = 65_536
_NOT_IN_TAGS = re.compile(r"[^\w .:/=+@-]")


class TrainingHandle(NamedTuple):
    """What finds the jobs of a launch again: a mark of the installation, the key, how many jobs there are and
    how many instances each has."""

    mark: str
    key: str
    jobs: int
    instances: int

    def __str__(self) -> str:
        return f"{self.mark}/{self.key}/{self.jobs}x{self.instances}"

    @classmethod
    def parse(cls, handle: str) -> TrainingHandle | None:
        match = re.fullmatch(r"([0-9a-f]+)/([a-z0-9-]+)/([0-9]+)x([0-9]+)", handle)
        return cls(match[1], match[2], int(match[3]), int(match[4])) if match else None

    @property
    def names(self) -> list[str]:
        """Of its jobs. The name of a training job is taken for ever, also when the job has ended."""
        whole = f"{prefix_of(self.mark)}{self.key}"
        return [whole] if self.jobs == 1 else [f"{whole}-r{index}" for index in range(self.jobs)]

    def job_of(self, rank: int) -> tuple[str, int] | None:
        """The name of the job of a rank, and which of its instances it is; None if there is no such rank."""
        index, instance = divmod(rank, self.instances)
        return (self.names[index], instance) if 0 <= index < self.jobs else None


def mark_of(installation: str) -> str:
    return hashlib.sha256(installation.encode()).hexdigest()[:8]


def prefix_of(mark: str) -> str:
    return f"corral-{mark}-"


def handle_of(order: LaunchOrder) -> TrainingHandle:
    """A gang is one job, which SageMaker starts and ends as a whole. Where fewer ranks may start, each has a
    job of its own: an instance of a job cannot come or go alone."""
    mark = mark_of(order.installation)
    if order.min_ranks < order.ranks:
        return TrainingHandle(mark, order.key, order.ranks, 1)
    return TrainingHandle(mark, order.key, 1, order.ranks)


def owner_of(order: LaunchOrder) -> str:
    return f"{order.installation}/{order.key}"


def secret_name(options: SageMakerOptions, handle: TrainingHandle) -> str:
    return f"{options.secret_prefix}/{handle.mark}/{handle.key}"


def secret_text(order: LaunchOrder) -> str:
    """Also what is no secret: a job's own environment and arguments are too short for it."""
    return json.dumps(
        {"command": list(order.command), "environ": dict(order.environ), "tokens": list(order.tokens)}
    )


def job_requests(order: LaunchOrder, options: SageMakerOptions, instance: InstanceShape) -> list[Json]:
    handle = handle_of(order)
    return [
        _job_request(order, options, instance, handle, name, index * handle.instances)
        for index, name in enumerate(handle.names)
    ]


def _job_request(
    order: LaunchOrder,
    options: SageMakerOptions,
    instance: InstanceShape,
    handle: TrainingHandle,
    name: str,
    first_rank: int,
) -> Json:
    limit_s = options.longest_s if order.limit_s is None else min(math.ceil(order.limit_s), options.longest_s)
    stopping = {"MaxRuntimeInSeconds": limit_s}
    if options.spot:
        stopping["MaxWaitTimeInSeconds"] = limit_s + options.spot_wait_s
    request: Json = {
        "TrainingJobName": name,
        "AlgorithmSpecification": {
            "TrainingImage": order.image or options.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [options.python, "-m", STARTER],
        },
        "RoleArn": options.role_arn,
        "OutputDataConfig": {"S3OutputPath": options.output},
        "ResourceConfig": {
            "InstanceType": instance.name,
            "InstanceCount": handle.instances,
            "VolumeSizeInGB": _volume_gb(order, options),
        },
        "StoppingCondition": stopping,
        "EnableManagedSpotTraining": options.spot,
        "Environment": {
            SECRET: secret_name(options, handle),
            FIRST_RANK: str(first_rank),
            OWNER: owner_of(order),
            SHAPE: f"{handle.jobs}x{handle.instances}",
        },
        "Tags": tags_of(order, options),
    }
    if options.subnets:
        places = {"Subnets": list(options.subnets), "SecurityGroupIds": list(options.security_groups)}
        request["VpcConfig"] = places
    if options.kms_key:
        request["OutputDataConfig"]["KmsKeyId"] = options.kms_key
        request["ResourceConfig"]["VolumeKmsKeyId"] = options.kms_key
    return request


def _volume_gb(order: LaunchOrder, options: SageMakerOptions) -> int:
    return max(options.volume_gb, math.ceil((order.need.min_disk_bytes or 0) / 10**9))


def tags_of(order: LaunchOrder, options: SageMakerOptions) -> list[dict[str, str]]:
    """For people, and for the bill."""
    told = {
        **options.tags,
        "corral:installation": order.installation,
        "corral:key": order.key,
        "corral:run": order.run_id,
        "corral:run-name": order.run_name,
        "corral:project": order.project,
    }
    return [{"Key": key, "Value": _NOT_IN_TAGS.sub("", value)[:256]} for key, value in told.items()]


def keys_in(names: Sequence[str], mark: str) -> dict[str, str]:
    """A name of a job of each key."""
    return {re.sub(r"-r[0-9]+$", "", name.removeprefix(prefix_of(mark))): name for name in names}
