"""What the pods of a rank wrote, attempt by attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corral.adapters.executors.kubernetes.api import ApiRefusal, KubernetesApi, pods_path
from corral.adapters.executors.kubernetes.pod_ends import container_status
from corral.adapters.executors.kubernetes.pod_template import CONTAINER

Json = dict[str, Any]
# Of each attempt; the server counts lines from the end, and bytes only from the start.
_MOST_LINES = 2000


def logs_of(api: KubernetesApi, namespace: str, pods: Sequence[Json], *, most_bytes: int) -> str:
    """The newest attempt last, and the end of it all."""
    parts: list[str] = []
    for attempt, pod in enumerate(pods, 1):
        name = pod["metadata"]["name"]
        if container_status(pod).get("restartCount"):
            said = _read(api, namespace, name, previous=True)
            parts.append(f"--- attempt {attempt}, {name}, before its last restart ---\n{said}")
        parts.append(f"--- attempt {attempt}, {name} ---\n{_read(api, namespace, name, previous=False)}")
    kept = "".join(part if part.endswith("\n") else f"{part}\n" for part in parts).encode()
    return kept[-most_bytes:].decode(errors="ignore") if most_bytes > 0 else ""


def _read(api: KubernetesApi, namespace: str, name: str, *, previous: bool) -> str:
    try:
        return api.text(
            f"{pods_path(namespace, name)}/log",
            container=CONTAINER,
            tailLines=_MOST_LINES,
            previous=previous or None,
        )
    except ApiRefusal as error:
        # It has not started, or its node is gone: the server says which.
        return f"{error}\n"
