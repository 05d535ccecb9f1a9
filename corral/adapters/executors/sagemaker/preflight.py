"""All that a launch needs at AWS, each with the command that makes it so. Nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from corral.adapters.executors.sagemaker.api import AwsApi, AwsDenied, AwsRefusal
from corral.adapters.executors.sagemaker.instances import InstanceShape
from corral.adapters.executors.sagemaker.logs import GROUP
from corral.adapters.executors.sagemaker.options import SageMakerOptions
from corral.adapters.executors.sagemaker.quotas import InstanceQuotas
from corral.domain.errors import CorralError
from corral.domain.placements.orders import PreflightCheck

_ECR = re.compile(
    r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)(?::([^@]+))?(?:@(.+))?"
)
_SERVICE = "sagemaker.amazonaws.com"
_POLICY = "Attach the policy of docs/howto/sagemaker.md to the server's user or role"


def preflight(
    api: AwsApi, options: SageMakerOptions, quotas: InstanceQuotas, shapes: Sequence[InstanceShape]
) -> list[PreflightCheck]:
    """Without credentials nothing else can be asked."""
    who = _checked("credentials", lambda: _caller(api), fix="")
    if not who.ok:
        return [who]
    checks: list[tuple[str, Callable[[], PreflightCheck], str]] = [
        ("jobs", lambda: _jobs(api), f"{_POLICY}: sagemaker:ListTrainingJobs."),
        (
            "role",
            lambda: _role(api, options),
            f"Set the option `role_arn` to a role that {_SERVICE} may assume.",
        ),
        ("image", lambda: _image(api, options), "Set the option `image` to an image in ECR that has Corral."),
        (
            "secrets",
            lambda: _secrets(api, options),
            f"{_POLICY}: secretsmanager on {options.secret_prefix}/*.",
        ),
        ("logs", lambda: _logs(api), f"{_POLICY}: logs:DescribeLogStreams and logs:GetLogEvents."),
        ("quota", lambda: _quota(quotas, shapes), f"{_POLICY}: servicequotas:ListServiceQuotas."),
    ]
    return [who, *(_checked(name, look, fix) for name, look, fix in checks)]


def _checked(name: str, look: Callable[[], PreflightCheck], fix: str) -> PreflightCheck:
    try:
        return look()
    except CorralError as error:
        return PreflightCheck(name, False, str(error), fix or error.hint)


def _caller(api: AwsApi) -> PreflightCheck:
    found = api.call("sts", "get_caller_identity")
    return PreflightCheck("credentials", True, f"AWS knows us as {found['Arn']}")


def _jobs(api: AwsApi) -> PreflightCheck:
    api.call("sagemaker", "list_training_jobs", MaxResults=1)
    return PreflightCheck("jobs", True, "training jobs can be listed")


def _role(api: AwsApi, options: SageMakerOptions) -> PreflightCheck:
    name = options.role_arn.rpartition("/")[2]
    try:
        found = api.call("iam", "get_role", RoleName=name)["Role"]
    except AwsDenied as error:
        if not error.known:
            raise
        return PreflightCheck("role", True, f"{name}: we may not look at it (iam:GetRole)")
    except AwsRefusal as error:
        if error.name != "NoSuchEntity":
            raise
        fix = f"aws iam create-role --role-name {name} --assume-role-policy-document file://trust.json"
        return PreflightCheck("role", False, f"there is no role {name}", fix)
    if _SERVICE not in str(found.get("AssumeRolePolicyDocument", "")):
        fix = f"aws iam update-assume-role-policy --role-name {name} --policy-document file://trust.json"
        return PreflightCheck("role", False, f"{_SERVICE} may not assume the role {name}", fix)
    return PreflightCheck("role", True, f"jobs act as {name}")


def _image(api: AwsApi, options: SageMakerOptions) -> PreflightCheck:
    if not options.image:
        return PreflightCheck("image", False, "there is no image", "Set the option `image`.")
    match = _ECR.fullmatch(options.image)
    if match is None:
        return PreflightCheck("image", True, f"{options.image}: not in ECR, so only a job will tell")
    account, _, repository, tag, digest = match.groups()
    wanted = {"imageDigest": digest} if digest else {"imageTag": tag or "latest"}
    about: dict[str, Any] = {"registryId": account, "repositoryName": repository, "imageIds": [wanted]}
    try:
        api.call("ecr", "describe_images", **about)
    except AwsDenied as error:
        if not error.known:
            raise
        return PreflightCheck("image", True, f"{options.image}: we may not look (ecr:DescribeImages)")
    except AwsRefusal as error:
        fix = f"docker push {options.image}"
        if error.name == "RepositoryNotFoundException":
            fix = f"aws ecr create-repository --repository-name {repository} && {fix}"
        return PreflightCheck("image", False, f"{options.image}: {error}", fix)
    return PreflightCheck("image", True, f"{options.image} is there")


def _secrets(api: AwsApi, options: SageMakerOptions) -> PreflightCheck:
    """One that nobody has: who may not look at it is told so, and everybody else that it is not there."""
    try:
        api.call("secretsmanager", "describe_secret", SecretId=f"{options.secret_prefix}/preflight")
    except AwsRefusal as error:
        if error.name != "ResourceNotFoundException":
            raise
    return PreflightCheck("secrets", True, f"secrets below {options.secret_prefix}/ can be looked at")


def _logs(api: AwsApi) -> PreflightCheck:
    try:
        api.call("logs", "describe_log_streams", logGroupName=GROUP, limit=1)
    except AwsRefusal as error:
        if error.name != "ResourceNotFoundException":
            raise
        return PreflightCheck("logs", True, f"{GROUP} comes with the first job")
    return PreflightCheck("logs", True, f"{GROUP} can be read")


def _quota(quotas: InstanceQuotas, shapes: Sequence[InstanceShape]) -> PreflightCheck:
    told = quotas.all()
    if told is None:
        return PreflightCheck("quota", True, "not known: we may not look (servicequotas:ListServiceQuotas)")
    names = [one.name for one in shapes]
    found = {one.instance: one for one in told if one.instance in names}
    allowed = [f"{one.most} of {one.instance}" for one in found.values() if one.most > 0]
    if allowed:
        return PreflightCheck("quota", True, f"at once {', '.join(allowed[:5])}")
    wanted = next((found[name] for name in names if name in found), None)
    code = wanted.code if wanted else "CODE"
    fix = (
        "aws service-quotas request-service-quota-increase --service-code sagemaker "
        f"--quota-code {code} --desired-value 1"
    )
    return PreflightCheck("quota", False, "the account may have no instance of any type that is used", fix)
