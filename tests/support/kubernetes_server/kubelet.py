"""The kubelets of all nodes: they run pods' containers, report on them, and end them with grace."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.kubernetes_server.container import Container
from support.kubernetes_server.container_logs import ContainerLog
from support.kubernetes_server.events import record
from support.kubernetes_server.job_pods import is_terminal
from support.kubernetes_server.objects import Json, clone, is_being_deleted, name_of, seconds_of, uid_of
from support.kubernetes_server.pod_environment import (
    NotThere,
    command_of,
    missing_volume,
    mount_secrets,
    relocated,
    variables_of,
)
from support.kubernetes_server.pod_status import PodStatus, image_name, waiting_status
from support.kubernetes_server.registry import Registry
from support.kubernetes_server.resources import resource_of
from support.kubernetes_server.syntax import parse_quantity

_PODS = resource_of("pods")
_NODES = resource_of("nodes")
_LOOK_AT_MEMORY_S = 0.1
_RETRY_S = 0.2


@dataclass
class RunningPod:
    """What a kubelet knows of a pod that is not in the API: its processes."""

    pod: Json
    folder: Path
    containers: dict[str, Container] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    # Where the files of its volumes are, by their paths in the pod.
    mounts: dict[str, str] = field(default_factory=dict)
    previous: dict[str, Container] = field(default_factory=dict)
    terminated: bool = False
    kill_at: float | None = None
    # Phase and reason that are set from outside: evicted, past its deadline.
    verdict: tuple[str, str] | None = None

    def all_ended(self) -> bool:
        return all(container.end is not None for container in self.containers.values())


class Kubelet:
    """Looks at every pod that has a node whenever something has changed or is due."""

    def __init__(
        self, registry: Registry, images: Mapping[str, list[str]], *, restart_after_s: float
    ) -> None:
        self._registry = registry
        self._storage = registry.storage
        self._images = images
        self._restart_after_s = restart_after_s
        self._running: dict[str, RunningPod] = {}
        # Pods that are gone from the API, whose processes are being ended.
        self._leaving: list[RunningPod] = []
        self._due: list[float] = []

    def sync(self) -> float | None:
        self._due = []
        self._forget_ended()
        nodes = {name_of(node) for node in self._storage.all(_NODES)}
        present = {
            uid_of(pod): pod for pod in self._storage.all(_PODS) if pod["spec"].get("nodeName") in nodes
        }
        for uid in list(self._running):
            if uid not in present:
                self._abandon(uid)
        for pod in present.values():
            self._sync(pod)
        return min(self._due, default=None)

    def stop(self) -> None:
        """Ends every process; whoever calls this does not hold the storage's lock, which their ends need."""
        for uid in list(self._running):
            self._abandon(uid)
        for running in self._leaving:
            for container in running.containers.values():
                container.join()
        self._forget_ended()

    def log(self, pod: Json, container: str, *, previous: bool) -> ContainerLog | None:
        running = self._running.get(uid_of(pod))
        if running is None:
            return None
        kept = running.previous if previous else running.containers
        return kept[container].log if container in kept else None

    def containers(self, pod: Json) -> list[Container]:
        running = self._running.get(uid_of(pod))
        return list(running.containers.values()) if running else []

    def fail(self, pod: Json, reason: str, message: str) -> None:
        """Ends a pod at once and says why, as a kubelet does that runs short of something."""
        with self._storage.changed:
            running = self._running.get(uid_of(pod))
            if running is not None:
                running.verdict = (reason, message)
                for container in running.containers.values():
                    container.kill()

    def _abandon(self, uid: str) -> None:
        """The pod is gone from the API: nothing of it may stay."""
        running = self._running.pop(uid)
        for container in running.containers.values():
            container.kill()
        self._leaving.append(running)

    def _forget_ended(self) -> None:
        for running in [one for one in self._leaving if one.all_ended()]:
            shutil.rmtree(running.folder, ignore_errors=True)
            self._leaving.remove(running)

    def _sync(self, pod: Json) -> None:
        running = self._running.get(uid_of(pod))
        if is_terminal(pod) or (is_being_deleted(pod) and (running is None or not running.containers)):
            if is_being_deleted(pod):
                self._finish_deletion(pod)
            return
        if running is None or not running.containers:
            self._start(pod)
            return
        running.pod = pod
        if is_being_deleted(pod):
            self._terminate(pod, running)
        self._check_memory(pod, running)
        self._check_deadline(pod, running)
        self._restart_ended(pod, running)
        self._report(pod, running)

    def _start(self, pod: Json) -> None:
        uid = uid_of(pod)
        if (image := self._unknown_image(pod)) is not None:
            self._say_image_is_missing(pod, image)
            return
        try:
            if pod["spec"].get("initContainers"):
                raise NotThere("CreateContainerError", "the kubelet of these tests runs no init containers")
            if secret := missing_volume(self._storage, pod):
                said = f'MountVolume.SetUp failed for volume "{secret[0]}" : {secret[1]}'
                record(self._storage, pod, "Warning", "FailedMount", said, component="kubelet")
                raise NotThere("ContainerCreating", "")
            prepared = {
                one["name"]: (
                    command_of(one, self._images, env := variables_of(self._storage, pod, one)),
                    env,
                )
                for one in pod["spec"]["containers"]
            }
        except NotThere as fault:
            self._due.append(self._registry.clock.now() + _RETRY_S)
            self._write_status(pod, waiting_status(pod, fault.reason, str(fault)))
            return
        running = self._running.setdefault(uid, RunningPod(pod, Path(tempfile.mkdtemp(prefix="corral-pod-"))))
        running.mounts = mount_secrets(self._storage, pod, running.folder)
        for name, (command, env) in prepared.items():
            self._run(running, name, command, env)
        self._report(pod, running)

    def _run(self, running: RunningPod, name: str, command: list[str], env: Mapping[str, str]) -> None:
        try:
            running.containers[name] = self._container(running, command, env)
        except OSError as error:
            # As a runtime does that cannot start what it was told to: exit code 128 and its words.
            said = f"exec: {command[0]}: {error.strerror}"
            record(self._storage, running.pod, "Warning", "Failed", f"Error: {said}", component="kubelet")
            shell = ["/bin/sh", "-c", 'echo "$1"; exit 128', "sh", said]
            running.containers[name] = self._container(running, shell, env)
            return
        said = f"Started container {name}"
        record(self._storage, running.pod, "Normal", "Started", said, component="kubelet")

    def _container(self, running: RunningPod, command: list[str], env: Mapping[str, str]) -> Container:
        now = self._registry.clock.now
        placed = relocated(env, running.mounts)
        return Container(command, placed, folder=running.folder, now=now, on_end=self._wake)

    def _wake(self) -> None:
        with self._storage.changed:
            self._storage.changed.notify_all()

    def _unknown_image(self, pod: Json) -> str | None:
        images = (container["image"] for container in pod["spec"]["containers"])
        return next((image for image in images if image not in self._images), None)

    def _say_image_is_missing(self, pod: Json, image: str) -> None:
        statuses = pod["status"].get("containerStatuses", [])
        tried = any(
            one.get("state", {}).get("waiting", {}).get("reason") == "ErrImagePull" for one in statuses
        )
        backing_off = any(
            one.get("state", {}).get("waiting", {}).get("reason") == "ImagePullBackOff" for one in statuses
        )
        if backing_off:
            return
        if tried:
            said = f'Back-off pulling image "{image}"'
            record(self._storage, pod, "Normal", "BackOff", said, component="kubelet")
            self._write_status(pod, waiting_status(pod, "ImagePullBackOff", said))
            return
        said = (
            f'rpc error: code = NotFound desc = failed to pull and unpack image "{image_name(image)}": '
            f'failed to resolve reference "{image_name(image)}": {image_name(image)}: not found'
        )
        record(
            self._storage,
            pod,
            "Warning",
            "Failed",
            f'Failed to pull image "{image}": {said}',
            component="kubelet",
        )
        self._write_status(pod, waiting_status(pod, "ErrImagePull", said))

    def _terminate(self, pod: Json, running: RunningPod) -> None:
        grace_s = pod["metadata"].get("deletionGracePeriodSeconds", 0)
        now = self._registry.clock.now()
        if not running.terminated:
            running.terminated = True
            record(self._storage, pod, "Normal", "Killing", "Stopping container", component="kubelet")
            for container in running.containers.values():
                container.signal(signal.SIGTERM)
        due = seconds_of(pod["metadata"]["deletionTimestamp"])
        # A timestamp has whole seconds: the grace is counted from when the kubelet heard of it.
        if running.kill_at is None or grace_s == 0:
            running.kill_at = now + grace_s
        if now >= min(running.kill_at, due + 1):
            for container in running.containers.values():
                container.kill()
        else:
            self._due.append(min(running.kill_at, due + 1))

    def _check_memory(self, pod: Json, running: RunningPod) -> None:
        for spec in pod["spec"]["containers"]:
            limit = spec.get("resources", {}).get("limits", {}).get("memory")
            container = running.containers[spec["name"]]
            if limit is None or container.end is not None:
                continue
            if container.memory_bytes() > parse_quantity(limit):
                container.kill_for_memory()
            else:
                self._due.append(self._registry.clock.now() + _LOOK_AT_MEMORY_S)

    def _check_deadline(self, pod: Json, running: RunningPod) -> None:
        deadline_s = pod["spec"].get("activeDeadlineSeconds")
        if deadline_s is None or "startTime" not in pod["status"] or running.verdict is not None:
            return
        due = seconds_of(pod["status"]["startTime"]) + deadline_s
        if self._registry.clock.now() >= due:
            self.fail(
                pod, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
            )
        else:
            self._due.append(due)

    def _restart_ended(self, pod: Json, running: RunningPod) -> None:
        policy = pod["spec"]["restartPolicy"]
        if policy == "Never" or running.terminated or running.verdict is not None:
            return
        for spec in pod["spec"]["containers"]:
            name = spec["name"]
            end = running.containers[name].end
            if end is None or (policy == "OnFailure" and end.exit_code == 0):
                continue
            due = end.at + self._restart_after_s
            if self._registry.clock.now() < due:
                self._due.append(due)
                continue
            running.previous[name] = running.containers[name]
            running.restarts[name] = running.restarts.get(name, 0) + 1
            env = variables_of(self._storage, pod, spec)
            self._run(running, name, command_of(spec, self._images, env), env)

    def _report(self, pod: Json, running: RunningPod) -> None:
        status = PodStatus(pod, running.containers, running.previous, running.restarts)
        ending = running.terminated or running.verdict is not None
        self._write_status(pod, status.build(ending=ending, verdict=running.verdict))
        if is_being_deleted(pod) and running.all_ended():
            self._finish_deletion(pod)

    def _write_status(self, pod: Json, status: Json) -> None:
        def change(new: Json) -> None:
            # The conditions of others stay.
            conditions = {one["type"]: one for one in new["status"].get("conditions", ())}
            for one in status.get("conditions", ()):
                old = conditions.get(one["type"])
                if old is None or old["status"] != one["status"]:
                    conditions[one["type"]] = one
            new["status"] = {**new["status"], **clone(status), "conditions": list(conditions.values())}

        self._storage.edit(_PODS, pod, change)

    def _finish_deletion(self, pod: Json) -> None:
        """Nothing runs any more: the object goes as soon as no finalizer holds it."""

        def change(new: Json) -> None:
            new["metadata"]["deletionGracePeriodSeconds"] = 0

        present = self._storage.find(_PODS, pod["metadata"]["namespace"], name_of(pod))
        if present is None:
            return
        if present["metadata"].get("deletionGracePeriodSeconds") != 0:
            self._storage.edit(_PODS, pod, change)
        elif not present["metadata"].get("finalizers"):
            self._storage.remove(_PODS, present)
