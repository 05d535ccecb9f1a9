"""What an installation says about its account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from corral.adapters.executors.sagemaker.instances import InstanceShape


@dataclass(frozen=True)
class SageMakerOptions:
    """Credentials are those that the server's own environment, profile or instance has for AWS."""

    # What the jobs act as; the server needs iam:PassRole for it.
    role_arn: str
    # s3://BUCKET/PREFIX: SageMaker asks for a place, and puts the empty output of its jobs there.
    output: str
    image: str | None = None
    region: str | None = None
    profile: str | None = None
    # Only these, the first that fits; without it the smallest one that fits of all that are known.
    instance_types: tuple[str, ...] = ()
    # Types that Corral does not know yet.
    more_instances: tuple[InstanceShape, ...] = ()
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    volume_gb: int = 50
    kms_key: str | None = None
    # Instances that AWS may take back at any time, and how long a job may wait for them.
    spot: bool = False
    spot_wait_s: int = 3600
    # The account's longest run time of a training job; also that of a run without a limit of its own.
    longest_s: int = 432_000
    # Secrets with the workers' tokens are named PREFIX/...: the roles are allowed those.
    secret_prefix: str = "corral"
    # The image's own Python, which has Corral.
    python: str = "python3"
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.subnets) != bool(self.security_groups):
            raise ValueError("subnets and security_groups are given together or not at all")
        if self.volume_gb < 1 or self.spot_wait_s < 0 or self.longest_s < 1:
            raise ValueError("volume_gb, spot_wait_s and longest_s are larger than 0")
        if not self.output.startswith(("s3://", "https://")):
            raise ValueError("output is an address such as s3://BUCKET/corral")
