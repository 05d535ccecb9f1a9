"""The services beside training jobs: what a launch reads and writes there, and no more."""

from __future__ import annotations

import json
import time
from typing import Any

from support.aws_server.permissions import ACCOUNT, policies
from support.aws_server.schema import AwsError
from support.aws_server.training_jobs import TrainingJobs

Json = dict[str, Any]
ROLE = f"arn:aws:iam::{ACCOUNT}:role/corral-worker"
IMAGE = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/corral:test"
GROUP = "/aws/sagemaker/TrainingJobs"


class SecretBox:
    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}

    def create(self, request: Json) -> Json:
        name = request["Name"]
        if name in self.secrets:
            raise AwsError("ResourceExistsException", f"the secret {name} already exists")
        self.secrets[name] = request["SecretString"]
        return {"Name": name, "ARN": _secret_arn(name)}

    def put(self, request: Json) -> Json:
        name = self._find(request)
        self.secrets[name] = request["SecretString"]
        return {"Name": name, "ARN": _secret_arn(name)}

    def get(self, request: Json) -> Json:
        name = self._find(request)
        return {"Name": name, "ARN": _secret_arn(name), "SecretString": self.secrets[name]}

    def describe(self, request: Json) -> Json:
        name = self._find(request)
        return {"Name": name, "ARN": _secret_arn(name)}

    def delete(self, request: Json) -> Json:
        name = self._find(request)
        del self.secrets[name]
        return {"Name": name, "ARN": _secret_arn(name), "DeletionDate": time.time()}

    def _find(self, request: Json) -> str:
        name: str = request["SecretId"]
        if name not in self.secrets:
            raise AwsError("ResourceNotFoundException", "Secrets Manager can't find the specified secret.")
        return name


def _secret_arn(name: str) -> str:
    return f"arn:aws:secretsmanager:us-east-1:{ACCOUNT}:secret:{name}-AbCdEf"


class CloudWatchLogs:
    """What the containers of the jobs have written."""

    def __init__(self, jobs: TrainingJobs) -> None:
        self._jobs = jobs

    def streams(self, request: Json) -> Json:
        self._check(request)
        prefix = request.get("logStreamNamePrefix", "")
        names = [name for name in self._files() if name.startswith(prefix)]
        return {"logStreams": [{"logStreamName": name} for name in names[: request.get("limit", 50)]]}

    def events(self, request: Json) -> Json:
        self._check(request)
        file = self._files().get(request["logStreamName"])
        if file is None:
            raise AwsError("ResourceNotFoundException", "The specified log stream does not exist.")
        lines = file.output.read_text(errors="replace").splitlines()[-request.get("limit", 10_000) :]
        now = int(time.time() * 1000)
        return {"events": [{"timestamp": now, "message": line, "ingestionTime": now} for line in lines]}

    def _check(self, request: Json) -> None:
        if request["logGroupName"] != GROUP or not self._jobs.jobs:
            raise AwsError("ResourceNotFoundException", "The specified log group does not exist.")

    def _files(self) -> dict[str, Any]:
        return {
            f"{job.name}/algo-{index + 1}-1700000000": container
            for job in self._jobs.jobs.values()
            for index, container in enumerate(job.containers)
        }


def caller(request: Json) -> Json:
    return {"Arn": f"arn:aws:iam::{ACCOUNT}:user/corral", "Account": ACCOUNT, "UserId": "AIDACORRAL"}


def role(request: Json) -> Json:
    name = request["RoleName"]
    if name not in ("corral-worker", "for-others"):
        raise AwsError("NoSuchEntity", f"The role with name {name} cannot be found.", 404)
    trust = json.dumps(policies()[1])
    trust = trust if name == "corral-worker" else trust.replace("sagemaker", "ec2")
    return {
        "Role": {
            "Path": "/",
            "RoleName": name,
            "RoleId": "AROACORRALWORKER1",
            "Arn": ROLE,
            "CreateDate": "2026-01-01T00:00:00Z",
            "AssumeRolePolicyDocument": trust,
        }
    }


def images(request: Json) -> Json:
    if request["repositoryName"] != "corral":
        raise AwsError("RepositoryNotFoundException", f"there is no repository {request['repositoryName']}")
    if request["imageIds"] != [{"imageTag": "test"}]:
        raise AwsError("ImageNotFoundException", f"there is no image {request['imageIds']}")
    return {"imageDetails": [{"repositoryName": "corral", "imageTags": ["test"]}]}


class ServiceQuotas:
    def __init__(self) -> None:
        self.counts = {"ml.m5.large": 20, "ml.g5.xlarge": 2, "ml.p5.48xlarge": 0}

    def list(self, request: Json) -> Json:
        """In pages of two, as there are more of them at AWS than fit into one."""
        first = int(request.get("NextToken", "0"))
        every = [
            {
                "QuotaName": f"{name} for training job usage",
                "QuotaCode": f"L-{index:08X}",
                "Value": float(count),
            }
            for index, (name, count) in enumerate(self.counts.items())
        ]
        more = {"NextToken": str(first + 2)} if first + 2 < len(every) else {}
        return {"Quotas": every[first : first + 2], **more}
