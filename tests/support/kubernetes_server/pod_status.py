"""What a kubelet reports of a pod: phase, conditions, the states of its containers."""

from __future__ import annotations

from collections.abc import Mapping

from support.kubernetes_server.container import Container, ContainerEnd
from support.kubernetes_server.objects import Json, timestamp

_CRASH = "CrashLoopBackOff"


def image_name(image: str) -> str:
    """With the registry and the tag that are meant where they are not written."""
    first = image.partition("/")[0]
    has_registry = "/" in image and ("." in first or ":" in first or first == "localhost")
    full = image if has_registry else f"docker.io/{image if '/' in image else 'library/' + image}"
    return full if ":" in full.rpartition("/")[2] or "@" in full else f"{full}:latest"


def _base(container: Json, restarts: int) -> Json:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": restarts,
        "lastState": {},
    }


def waiting_status(pod: Json, reason: str, message: str) -> Json:
    """A pod whose containers cannot be made."""
    waiting = {"reason": reason} | ({"message": message} if message else {})
    statuses = [
        _base(container, 0) | {"state": {"waiting": waiting}} for container in pod["spec"]["containers"]
    ]
    return {"phase": "Pending", "containerStatuses": statuses}


def _terminated(container: Container, end: ContainerEnd) -> Json:
    state: Json = {
        "exitCode": end.exit_code,
        "reason": end.reason,
        "startedAt": timestamp(container.started_at),
        "finishedAt": timestamp(end.at),
        "containerID": f"containerd://{container.id}",
    }
    return {"terminated": state}


class PodStatus:
    """The status of a pod from the processes of its containers."""

    def __init__(
        self,
        pod: Json,
        containers: Mapping[str, Container],
        previous: Mapping[str, Container],
        restarts: Mapping[str, int],
    ) -> None:
        self._pod = pod
        self._containers = containers
        self._previous = previous
        self._restarts = restarts

    def build(self, *, ending: bool, verdict: tuple[str, str] | None) -> Json:
        """`ending` pods restart nothing; `verdict` is a reason that comes from the kubelet itself."""
        phase = self._phase(ending=ending, failed=verdict is not None)
        ready = phase == "Running" and all(one.end is None for one in self._containers.values())
        since = min(container.started_at for container in self._containers.values())
        moment = max((one.end.at for one in self._containers.values() if one.end), default=since)
        reason = {"reason": "PodCompleted"} if phase == "Succeeded" else {}
        reason = {"reason": "PodFailed"} if phase == "Failed" else reason
        conditions: list[Json] = [
            {"type": "Initialized", "status": "True", "lastTransitionTime": timestamp(since)},
        ]
        for kind in ("Ready", "ContainersReady"):
            moved = timestamp(since if ready else moment)
            state = {"type": kind, "status": "True" if ready else "False", "lastTransitionTime": moved}
            conditions.append(state | ({} if ready else reason))
        status: Json = {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [self._of(spec, ending=ending) for spec in self._pod["spec"]["containers"]],
            "startTime": self._pod["status"].get("startTime", timestamp(since)),
            "hostIP": "127.0.0.1",
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
        }
        if verdict is not None and phase == "Failed":
            status |= {"reason": verdict[0], "message": verdict[1]}
        return status

    def _phase(self, *, ending: bool, failed: bool) -> str:
        ends = [container.end for container in self._containers.values()]
        policy = self._pod["spec"]["restartPolicy"]
        if any(end is None for end in ends):
            return "Running"
        bad = any(end is not None and end.exit_code for end in ends)
        if not ending and (policy == "Always" or (policy == "OnFailure" and bad)):
            return "Running"
        return "Failed" if bad or failed else "Succeeded"

    def _of(self, spec: Json, *, ending: bool) -> Json:
        name = spec["name"]
        container = self._containers[name]
        status = _base(spec, self._restarts.get(name, 0))
        status |= {
            "imageID": f"{image_name(spec['image'])}@sha256:0",
            "containerID": f"containerd://{container.id}",
        }
        before = self._previous.get(name)
        if before is not None and before.end is not None:
            status["lastState"] = _terminated(before, before.end)
        end = container.end
        if end is None:
            running = {"running": {"startedAt": timestamp(container.started_at)}}
            return status | {"state": running, "ready": True, "started": True}
        policy = self._pod["spec"]["restartPolicy"]
        if not ending and (policy == "Always" or (policy == "OnFailure" and end.exit_code)):
            said = f"back-off restarting failed container={name}"
            waiting = {"waiting": {"reason": _CRASH, "message": said}}
            return status | {"state": waiting, "lastState": _terminated(container, end)}
        return status | {"state": _terminated(container, end)}
