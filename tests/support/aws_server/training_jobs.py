"""Training jobs: their states, and a process for each instance."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.aws_server.schema import AwsError
from support.container_process import ContainerProcess

Json = dict[str, Any]
NO_ROOM = "Insufficient capacity error from EC2 while launching instances, retrying!"
# SageMaker's are two minutes.
GRACE_S = 20.0
# How long the other instances of a job go on when one has failed.
NOTICE_S = 3.0
ARN = "arn:aws:sagemaker:us-east-1:123456789012:training-job/"


class TrainingJob:
    """One job. All its changes happen under the lock of the service."""

    def __init__(self, request: Json, folder: Path) -> None:
        self.request = request
        self.name: str = request["TrainingJobName"]
        self.folder = folder
        self.created_at = time.time()
        self.status = "InProgress"
        self.failure = ""
        self.others_end_at: float | None = None
        self.steps: list[Json] = []
        self.containers: list[ContainerProcess] = []
        self.stop_as: str | None = None
        self.step("Starting", "Starting the training job")

    def step(self, secondary: str, message: str = "") -> None:
        now = time.time()
        if self.steps and (self.steps[-1]["Status"], self.steps[-1]["StatusMessage"]) == (secondary, message):
            return
        if self.steps:
            self.steps[-1]["EndTime"] = now
        self.steps.append({"Status": secondary, "StartTime": now, "StatusMessage": message})

    @property
    def secondary(self) -> str:
        return str(self.steps[-1]["Status"])

    @property
    def instances(self) -> int:
        return int(self.request["ResourceConfig"]["InstanceCount"])

    @property
    def lives(self) -> bool:
        return self.status in ("InProgress", "Stopping")

    def summary(self) -> Json:
        return {
            "TrainingJobName": self.name,
            "TrainingJobArn": f"{ARN}{self.name}",
            "CreationTime": self.created_at,
            "LastModifiedTime": self.steps[-1]["StartTime"],
            "TrainingJobStatus": self.status,
            "SecondaryStatus": self.secondary,
        }

    def described(self) -> Json:
        told = {key: value for key, value in self.request.items() if key != "Tags"}
        more: Json = {"ModelArtifacts": {"S3ModelArtifacts": "s3://none"}}
        more["SecondaryStatusTransitions"] = [dict(step) for step in self.steps]
        if self.failure:
            more["FailureReason"] = self.failure
        return {**told, **self.summary(), **more}


class TrainingJobs:
    """`environ` is what every container has from the service."""

    def __init__(self, folder: Path, environ: Callable[[], Mapping[str, str]], room: int) -> None:
        self.jobs: dict[str, TrainingJob] = {}
        self.room = room
        # How many instances the account may have at once, where that is less than there is room for.
        self.quota: int | None = None
        # Names of images that are there; every one if it is empty.
        self.images: set[str] = set()
        self.changed = threading.Condition()
        self._folder = folder
        self._environ = environ
        self._closed = False
        self._thread = threading.Thread(target=self._tend, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()
            started = [one for job in self.jobs.values() for one in job.containers]
        self._thread.join()
        for container in started:
            container.kill()
            container.join()

    def create(self, request: Json) -> Json:
        name = request["TrainingJobName"]
        if name in self.jobs:
            raise AwsError(
                "ResourceInUse", f"Job name must be unique within an AWS account and region: {name}"
            )
        if "InstanceType" not in request.get("ResourceConfig", {}) or "StoppingCondition" not in request:
            raise AwsError("ValidationException", "a training job needs an instance type and a limit")
        made = TrainingJob(request, self._folder / name)
        used = sum(job.instances for job in self.jobs.values() if job.lives)
        if self.quota is not None and used + made.instances > self.quota:
            raise AwsError(
                "ResourceLimitExceeded", f"The account-level service limit is {self.quota} Instances"
            )
        self.jobs[name] = made
        self.changed.notify_all()
        return {"TrainingJobArn": f"{ARN}{name}"}

    def find(self, name: str) -> TrainingJob:
        if name not in self.jobs:
            raise AwsError("ValidationException", "Requested resource not found.")
        return self.jobs[name]

    def describe(self, request: Json) -> Json:
        return self.find(request["TrainingJobName"]).described()

    def list(self, request: Json) -> Json:
        chosen = [
            job.summary()
            for job in self.jobs.values()
            if request.get("NameContains", "") in job.name
            and request.get("StatusEquals", job.status) == job.status
        ]
        chosen.sort(key=lambda job: job["CreationTime"], reverse=True)
        first, size = int(request.get("NextToken", "0")), request.get("MaxResults", 10)
        answer: Json = {"TrainingJobSummaries": chosen[first : first + size]}
        if len(chosen) > first + size:
            answer["NextToken"] = str(first + size)
        return answer

    def stop(self, request: Json) -> Json:
        job = self.find(request["TrainingJobName"])
        if job.status != "InProgress":
            told = f"The request was rejected because the training job is in status {job.status}."
            raise AwsError("ValidationException", told)
        self._stop(job, "Stopped")
        return {}

    def _stop(self, job: TrainingJob, as_what: str) -> None:
        job.status, job.stop_as = "Stopping", as_what
        job.step("Stopping", "Stopping the training job")
        self._end_containers(job)
        self.changed.notify_all()

    def _end_containers(self, job: TrainingJob) -> None:
        for container in job.containers:
            container.terminate()
            timer = threading.Timer(GRACE_S, container.kill)
            timer.daemon = True
            timer.start()

    def _tend(self) -> None:
        with self.changed:
            while not self._closed:
                waits = [self._look(job) for job in self.jobs.values() if job.lives]
                self.changed.wait(min((wait for wait in waits if wait is not None), default=None))

    def _look(self, job: TrainingJob) -> float | None:
        """How long nothing will happen to it by itself."""
        if job.status == "InProgress" and not job.containers:
            return self._start(job)
        running = [one for one in job.containers if one.status is None]
        failed = [one for one in job.containers if one.exit_code]
        if job.status == "Stopping":
            if not running:
                job.status = "Stopped"
                job.step(job.stop_as or "Stopped", "Training job stopped")
            return None
        if failed and not job.failure:
            job.failure = _failure(job, failed[0])
            job.others_end_at = time.time() + NOTICE_S
        if not running:
            job.status = "Failed" if job.failure else "Completed"
            job.step(job.status, job.failure or "Training job completed")
            return None
        if job.others_end_at is not None:
            if time.time() >= job.others_end_at:
                self._end_containers(job)
                return None
            return NOTICE_S
        left = job.created_at + job.request["StoppingCondition"]["MaxRuntimeInSeconds"] - time.time()
        if left <= 0:
            self._stop(job, "MaxRuntimeExceeded")
            return 0.0
        return max(float(left), 0.01)

    def _start(self, job: TrainingJob) -> float | None:
        used = sum(one.instances for one in self.jobs.values() if one.lives and one.containers)
        if used + job.instances > self.room:
            job.step("LaunchingMLInstances", NO_ROOM)
            return None
        image = job.request["AlgorithmSpecification"]["TrainingImage"]
        if self.images and image not in self.images:
            job.status = "Failed"
            job.failure = f"ClientError: Cannot pull image {image}: repository or image does not exist"
            job.step("Failed", job.failure)
            return None
        for secondary in ("PreparingTrainingStack", "Downloading", "DownloadingTrainingImage"):
            job.step(secondary, secondary)
        job.containers = [self._container(job, index) for index in range(job.instances)]
        job.step("Training", "Training image download completed. Training in progress.")
        return 0.0

    def _container(self, job: TrainingJob, index: int) -> ContainerProcess:
        base = job.folder / f"algo-{index + 1}"
        (base / "input/config").mkdir(parents=True)
        hosts = [f"algo-{number + 1}" for number in range(job.instances)]
        told = {"current_host": hosts[index], "hosts": hosts, "network_interface_name": "eth0"}
        (base / "input/config/resourceconfig.json").write_text(json.dumps(told))
        about = job.request["AlgorithmSpecification"]
        command = [*about.get("ContainerEntrypoint", ()), *about.get("ContainerArguments", ())]
        given = {"SAGEMAKER_BASE_DIR": str(base), "TRAINING_JOB_NAME": job.name}
        environ = {**self._environ(), **given, **job.request.get("Environment", {})}
        return ContainerProcess(command, environ, base / "log", self._notify)

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()


def _failure(job: TrainingJob, container: ContainerProcess) -> str:
    """What the container left as its reason, and its code."""
    left = container.output.parent / "output/failure"
    said = left.read_text()[:1024] if left.exists() else ""
    return f"AlgorithmError: {said}, exit code: {container.exit_code}"
