"""What the server's user and the jobs' role may do: what the policies of docs/howto/sagemaker.md allow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "sagemaker.md"
ACCOUNT = "123456789012"
# Names of services in policies, where they are others than in requests.
_SERVICES = {"service-quotas": "servicequotas"}
# What a request with tags is asked for beside itself.
_TAGGING = {"CreateTrainingJob": "sagemaker:AddTags", "CreateSecret": "secretsmanager:TagResource"}


@cache
def policies() -> tuple[Any, Any, Any]:
    """Of the server, the trust of the role, and of the role."""
    found = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    server, trust, worker = (json.loads(text.replace("ACCOUNT", ACCOUNT)) for text in found)
    return server, trust, worker


def missing(policy: Any, service: str, operation: str, request: Mapping[str, Any]) -> str | None:
    """The first action that is not allowed; None if all are. Everybody may ask who he is."""
    if service == "sts":
        return None
    wanted = [f"{_SERVICES.get(service, service)}:{operation}"]
    if request.get("Tags"):
        wanted.append(_TAGGING[operation])
    place = resource(service, request)
    asked = [(action, place) for action in wanted]
    if "RoleArn" in request:
        asked.append(("iam:PassRole", request["RoleArn"]))
    return next((action for action, where in asked if not _allows(policy, action, where)), None)


def resource(service: str, request: Mapping[str, Any]) -> str:
    if service == "sagemaker" and "TrainingJobName" in request:
        return f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-job/{request['TrainingJobName']}"
    if service == "secretsmanager":
        name = request.get("Name") or request.get("SecretId")
        return f"arn:aws:secretsmanager:us-east-1:{ACCOUNT}:secret:{name}-AbCdEf"
    if service == "logs":
        return f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:{request['logGroupName']}:*"
    if service == "iam":
        return f"arn:aws:iam::{ACCOUNT}:role/corral-worker"
    if service == "ecr":
        return f"arn:aws:ecr:us-east-1:{ACCOUNT}:repository/corral"
    return "*"


def _allows(policy: Any, action: str, where: str) -> bool:
    for one in policy["Statement"]:
        actions = one["Action"] if isinstance(one["Action"], list) else [one["Action"]]
        if action in actions and fnmatchcase(where, one["Resource"]):
            return True
    return False
