"""Stands in for the kubelets of a cluster whose nodes are only objects, for the pods of one namespace.

It says that pods which have a node run, and lets go of those that are being deleted. It runs nothing.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from corral.adapters.executors.kubernetes.api import ApiRefusal, KubernetesApi
from corral.domain.errors import CorralError

Json = dict[str, Any]
_LOOK_EVERY_S = 0.2
_START = "2026-01-01T00:00:00Z"


class StandInKubelets:
    """A thread that looks at all pods of a namespace every now and then."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> StandInKubelets:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            try:
                for pod in self._api.get(self._path)["items"]:
                    self._look_at(pod)
            except CorralError:
                # Another look follows.
                continue

    def _look_at(self, pod: Json) -> None:
        if not pod["spec"].get("nodeName"):
            return
        phase = pod.get("status", {}).get("phase")
        try:
            if "deletionTimestamp" in pod["metadata"]:
                if phase not in ("Succeeded", "Failed"):
                    ended = {"exitCode": 143, "reason": "Error", "startedAt": _START, "finishedAt": _START}
                    self._report(pod, "Failed", {"terminated": ended})
                self._remove(pod)
            elif phase == "Pending":
                self._report(pod, "Running", {"running": {"startedAt": _START}})
        except ApiRefusal as error:
            if error.status not in (404, 409):
                raise

    def _report(self, pod: Json, phase: str, state: Json) -> None:
        status = [
            {
                "name": one["name"],
                "image": one["image"],
                "imageID": "",
                "ready": phase == "Running",
                "restartCount": 0,
                "state": state,
            }
            for one in pod["spec"]["containers"]
        ]
        changed = {"status": {"phase": phase, "startTime": _START, "containerStatuses": status}}
        self._api.patch(f"{self._path}/{pod['metadata']['name']}/status", changed)

    def _remove(self, pod: Json) -> None:
        at_once = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        self._api.delete(f"{self._path}/{pod['metadata']['name']}", at_once)
