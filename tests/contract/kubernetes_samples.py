"""Jobs for the tests of the Kubernetes server, and a client that sends whatever it is told to."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from support.kubernetes_server import KubernetesCluster
from support.waiting import eventually

IMAGE = "corral/worker:test"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/default/secrets"
Json = dict[str, Any]
# Ranks wait for a file, so that a test decides when each ends.
WAITS = 'f="$FOLDER/$JOB_COMPLETION_INDEX"; while [ ! -e "$f" ]; do sleep 0.05; done; exit $(cat "$f")'
# Deaf to SIGTERM until a file is there.
STUBBORN = (
    'trap "while [ ! -e {go} ]; do sleep 0.05; done; exit 1" TERM; echo up; while :; do sleep 0.05; done'
)


def container(script: str = "true", **fields: Any) -> Json:
    return {"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", script], **fields}


def pod_spec(script: str = "true", *, main: Json | None = None, **fields: Any) -> Json:
    return {"restartPolicy": "Never", "containers": [container(script, **(main or {}))], **fields}


def job(
    name: str,
    ranks: int = 1,
    script: str = "true",
    *,
    pod: Json | None = None,
    main: Json | None = None,
    **spec: Any,
) -> Json:
    """An Indexed Job of so many pods; `pod`, `main` and the rest are more fields of it."""
    template = {"spec": pod_spec(script, main=main, **(pod or {}))}
    body = {
        "completionMode": "Indexed",
        "completions": ranks,
        "parallelism": ranks,
        "template": template,
        **spec,
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": body}


def pod(name: str, script: str = "true", *, main: Json | None = None, **fields: Any) -> Json:
    spec = pod_spec(script, main=main, **fields)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def secret(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def waiting_job(name: str, ranks: int, ends: Path, **spec: Any) -> Json:
    return job(name, ranks, WAITS, main={"env": [{"name": "FOLDER", "value": str(ends)}]}, **spec)


def end(ends: Path, rank: int, code: int = 0) -> None:
    part = ends / f".{rank}"
    part.write_text(str(code))
    part.rename(ends / str(rank))


def reasons(found: Json) -> dict[str, str]:
    """The reason of each condition that holds."""
    conditions = found["status"].get("conditions", ())
    return {one["type"]: one["reason"] for one in conditions if one["status"] == "True"}


def status_of(cluster: KubernetesCluster, name: str, **wanted: object) -> Json:
    def look() -> Json | None:
        status: Json = cluster.job(name).get("status", {})
        return status if all(status.get(key) == value for key, value in wanted.items()) else None

    return eventually(look, lambda: f"{wanted}; it is {cluster.job(name).get('status')}")


class RawClient:
    """Requests as they are, without the checks of the official client."""

    def __init__(self, cluster: KubernetesCluster, token: str = "") -> None:
        context = ssl.create_default_context(cafile=str(cluster.ca))
        headers = {"Authorization": f"Bearer {token or cluster.admin_token}"}
        self.http = httpx.Client(base_url=cluster.server.url, verify=context, headers=headers, timeout=30)

    def send(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Json]:
        answer = self.http.request(method, path, params=query, json=body)
        return answer.status_code, answer.json()

    def post(self, path: str, body: Any, **query: Any) -> Json:
        """What was made; a refusal is an AssertionError."""
        code, made = self.send("POST", path, body, **query)
        assert code == 201, made
        return made

    def get(self, path: str, **query: Any) -> Json:
        code, found = self.send("GET", path, **query)
        assert code == 200, found
        return found

    def patch(self, path: str, patch: Any, kind: str = "merge-patch", **query: Any) -> tuple[int, Json]:
        headers = {"Content-Type": f"application/{kind}+json"}
        answer = self.http.patch(path, params=query, content=json.dumps(patch), headers=headers)
        return answer.status_code, answer.json()

    @contextmanager
    def watch(self, path: str, **query: Any) -> Iterator[Iterator[Json]]:
        with self.http.stream("GET", path, params={"watch": "true", **query}) as answer:
            assert answer.status_code == 200
            yield (json.loads(line) for line in answer.iter_lines())

    def close(self) -> None:
        self.http.close()
