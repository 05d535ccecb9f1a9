"""A whole cluster in one process: what a test starts, asks and disturbs."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from support.clock import JumpingClock
from support.kubernetes_server.access import ADMIN, Access, Rule, User
from support.kubernetes_server.api import Api
from support.kubernetes_server.certificates import write_certificates
from support.kubernetes_server.control_loop import ControlLoop
from support.kubernetes_server.faults import Faults
from support.kubernetes_server.job_pods import index_of
from support.kubernetes_server.kubelet import Kubelet
from support.kubernetes_server.objects import Json, timestamp
from support.kubernetes_server.registry import Registry
from support.kubernetes_server.resources import resource_of
from support.kubernetes_server.server import ApiServer
from support.kubernetes_server.storage import Storage
from support.waiting import eventually

_PODS = resource_of("pods")
_NODES = resource_of("nodes")
_NAMESPACES = resource_of("namespaces")
# An image for tests: it has no command of its own.
IMAGE = "corral/worker:test"


@dataclass(frozen=True)
class NodeShape:
    """A node: what it has, and what keeps pods away from it."""

    name: str
    gpus: int = 0
    cpus: int = 8
    memory: str = "16Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    gpu_resource: str = "nvidia.com/gpu"


class KubernetesCluster:
    """API server, controllers, scheduler and kubelets; pods are processes of this machine.

    `images` are those that can be pulled, with the command that each has of its own. The real back-off
    between pods of a Job is ten seconds and more; here it is `backoff_s`, doubled at each failure.
    """

    def __init__(
        self,
        nodes: Sequence[NodeShape] = (NodeShape("node-0", gpus=8),),
        images: Mapping[str, Sequence[str]] | None = None,
        *,
        backoff_s: float = 0.05,
        bookmark_every_s: float = 60.0,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="corral-kubernetes-"))
        self.clock = JumpingClock()
        self.storage = Storage(self.clock)
        self.registry = Registry(self.storage)
        self.access = Access()
        self.faults = Faults()
        self.ca, certificate = write_certificates(self.folder)
        known = {IMAGE: [], **(images or {})}
        commands = {image: list(command) for image, command in known.items()}
        self.kubelet = Kubelet(self.registry, commands, restart_after_s=backoff_s)
        api = Api(self.registry, self.access, self.kubelet, bookmark_every_s=bookmark_every_s)
        self.server = ApiServer(api.answer, self.faults, certificate, self._wake)
        self._loop = ControlLoop(self.registry, self.kubelet, backoff_s=backoff_s)
        self.admin_token = self.add_user("admin", [ADMIN])
        for name in ("default", "kube-system"):
            self.add_namespace(name)
        for node in nodes:
            self.add_node(node)

    def __enter__(self) -> KubernetesCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self.server.start()
        self._loop.start()

    def stop(self) -> None:
        self.server.stop()
        self._loop.stop()
        self.kubelet.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._loop.check()

    # Who may use it, and how.

    def add_user(self, name: str, rules: Sequence[Rule]) -> str:
        """The token of a new user."""
        token = secrets.token_urlsafe(24)
        self.access.add(token, User(name, rules=list(rules)))
        return token

    def kubeconfig(self, token: str = "", *, namespace: str = "default", context: str = "test") -> Path:
        """A kubeconfig file for this cluster, of the administrator unless a token is given."""
        cluster = {"server": self.server.url, "certificate-authority": str(self.ca)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [{"name": context, "cluster": cluster}],
            "users": [{"name": context, "user": {"token": token or self.admin_token}}],
            "contexts": [
                {"name": context, "context": {"cluster": context, "user": context, "namespace": namespace}}
            ],
        }
        path = self.folder / f"kubeconfig-{secrets.token_hex(4)}.yaml"
        # JSON is YAML.
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")
        return path

    def service_account_folder(self, token: str = "", *, namespace: str = "default") -> Path:
        """What a pod finds in /var/run/secrets/kubernetes.io/serviceaccount."""
        folder = self.folder / f"serviceaccount-{secrets.token_hex(4)}"
        folder.mkdir()
        (folder / "token").write_text(token or self.admin_token, encoding="utf-8")
        (folder / "namespace").write_text(namespace, encoding="utf-8")
        shutil.copy(self.ca, folder / "ca.crt")
        return folder

    # What is there.

    def add_namespace(self, name: str) -> None:
        self.registry.create(_NAMESPACES, "", {"metadata": {"name": name}})
        self._loop.make_accounts()

    def add_node(self, node: NodeShape) -> None:
        now = timestamp(self.clock.now())
        has = {"cpu": str(node.cpus), "memory": node.memory, "pods": "110"}
        has |= {node.gpu_resource: str(node.gpus)} if node.gpus else {}
        labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", **node.labels}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now}
        made = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node.name, "labels": labels},
            "spec": {"taints": [dict(taint) for taint in node.taints]} if node.taints else {},
            "status": {"capacity": has, "allocatable": dict(has), "conditions": [ready]},
        }
        self.storage.create(_NODES, made)

    def pods(self, job: str, namespace: str = "default") -> list[Json]:
        """The pods of a Job, by their index; of one index the oldest first."""
        label = "batch.kubernetes.io/job-name"
        found = [
            pod
            for pod in self.storage.all(_PODS, namespace)
            if pod["metadata"].get("labels", {}).get(label) == job
        ]
        return sorted(found, key=lambda pod: (index_of(pod), int(pod["metadata"]["resourceVersion"])))

    def job(self, name: str, namespace: str = "default") -> Json:
        return self.storage.get(resource_of("jobs", "batch"), namespace, name)

    def events(self, namespace: str = "default") -> list[tuple[str, str]]:
        """The reason and the message of each event."""
        found = self.storage.all(resource_of("events"), namespace)
        return [(event.get("reason", ""), event.get("message", "")) for event in found]

    # What may happen to it.

    def advance(self, seconds: float) -> None:
        """Time passes: deadlines and lifetimes end."""
        self.clock.ahead_s += seconds
        self._wake()

    @contextmanager
    def controllers_paused(self) -> Iterator[None]:
        """The API answers, and nothing else happens."""
        self._loop.pause()
        try:
            yield
        finally:
            self._loop.resume()

    def restart_server(self) -> None:
        """All connections end; the data, the pods and the address stay."""
        self.server.stop()
        self.server.start()

    def evict(self, pod: Json) -> None:
        """As `kubectl drain` does."""
        self.registry.evict(pod, reason="EvictionByEvictionAPI", message="Eviction API: evicting")

    def press_out(self, pod: Json) -> None:
        """The node runs short of memory and its kubelet ends the pod."""
        said = "The node was low on resource: memory."
        self.registry.mark_disrupted(pod, reason="TerminationByKubelet", message=said)
        self.kubelet.fail(pod, "Evicted", said)

    def lose_node(self, name: str) -> None:
        """The node and what ran on it are gone; its pods are collected."""
        self.storage.remove(_NODES, self.storage.get(_NODES, "", name))

    def signal(self, pod: Json, number: signal.Signals) -> None:
        """To the first process of each container of a pod, which must run."""
        running = self.kubelet.containers(pod)
        assert running, f"{pod['metadata']['name']} does not run"
        for container in running:
            container.signal(number)

    def wait_for_pods(self, job: str, count: int, phase: str = "Running") -> list[Json]:
        def look() -> list[Json]:
            found = [pod for pod in self.pods(job) if pod["status"].get("phase") == phase]
            return found if len(found) == count else []

        return eventually(look, lambda: f"{count} pods {phase}; there are {self._shown(job)}")

    def wait_for_condition(self, job: str, kind: str, namespace: str = "default") -> Json:
        """The Job, when it has the condition."""

        def look() -> Json | None:
            found = self.job(job, namespace)
            conditions = found.get("status", {}).get("conditions", ())
            return found if any((c["type"], c["status"]) == (kind, "True") for c in conditions) else None

        return eventually(
            look, lambda: f"{job} to be {kind}: {self.job(job).get('status')} {self._shown(job)}"
        )

    def _shown(self, job: str) -> list[str]:
        return [f"{pod['metadata']['name']} {pod['status']}" for pod in self.pods(job)]

    def _wake(self) -> None:
        with self.storage.changed:
            self.storage.changed.notify_all()
