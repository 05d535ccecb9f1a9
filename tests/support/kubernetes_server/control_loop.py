"""Runs the controllers whenever something has changed or is due: kube-controller-manager in one thread."""

from __future__ import annotations

import threading

from support.kubernetes_server.deletion import DeleteOptions
from support.kubernetes_server.garbage_collector import GarbageCollector
from support.kubernetes_server.job_controller import JobController
from support.kubernetes_server.job_pods import is_terminal
from support.kubernetes_server.kubelet import Kubelet
from support.kubernetes_server.objects import Json, is_being_deleted, name_of
from support.kubernetes_server.registry import Registry
from support.kubernetes_server.resources import resource_of
from support.kubernetes_server.scheduler import Scheduler

_PODS = resource_of("pods")
_NODES = resource_of("nodes")
_ACCOUNTS = resource_of("serviceaccounts")
_NAMESPACES = resource_of("namespaces")
_LONGEST_WAIT_S = 5.0


class ControlLoop:
    """Each pass sees the objects under one lock; passes go on until nothing changes any more."""

    def __init__(self, registry: Registry, kubelet: Kubelet, *, backoff_s: float) -> None:
        self._registry = registry
        self._storage = registry.storage
        self._kubelet = kubelet
        self._collector = GarbageCollector(registry)
        self._jobs = JobController(registry, backoff_s=backoff_s)
        self._scheduler = Scheduler(registry)
        self._stopping = False
        self._paused = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kubernetes-controllers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._storage.changed:
            self._stopping = True
            self._storage.changed.notify_all()
        self._thread.join()

    def check(self) -> None:
        """A fault of this test server must not look like one of the product."""
        if self._failure is not None:
            raise AssertionError("the controllers of the test server failed") from self._failure

    def pause(self) -> None:
        with self._storage.changed:
            self._paused = True

    def resume(self) -> None:
        with self._storage.changed:
            self._paused = False
            self._storage.changed.notify_all()

    def make_accounts(self) -> None:
        """Every namespace has an account called `default`."""
        with self._storage.changed:
            for namespace in self._storage.all(_NAMESPACES):
                missing = self._storage.find(_ACCOUNTS, name_of(namespace), "default") is None
                if missing and not is_being_deleted(namespace):
                    self._registry.create(_ACCOUNTS, name_of(namespace), {"metadata": {"name": "default"}})

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._pass()
        except BaseException as failure:
            self._failure = failure
            raise

    def _pass(self) -> None:
        with self._storage.changed:
            if self._paused:
                self._storage.changed.wait()
                return
            before = self._storage.revision
            self.make_accounts()
            self._collector.sync()
            due = [self._jobs.sync()]
            self._scheduler.sync()
            self._collect_pods_of_lost_nodes()
            due.append(self._kubelet.sync())
            if self._storage.revision != before or self._stopping:
                return
            now = self._registry.clock.now()
            next_due = min((one - now for one in due if one is not None), default=_LONGEST_WAIT_S)
            self._storage.changed.wait(min(max(next_due, 0.01), _LONGEST_WAIT_S))

    def _collect_pods_of_lost_nodes(self) -> None:
        nodes = {name_of(node) for node in self._storage.all(_NODES)}
        for pod in self._storage.all(_PODS):
            node = pod["spec"].get("nodeName")
            if node is None or node in nodes:
                continue
            if not is_terminal(pod):
                said = "PodGC: node no longer exists"
                self._registry.mark_disrupted(pod, reason="DeletionByPodGC", message=said)
                self._storage.edit(_PODS, pod, _fail)
            elif not is_being_deleted(pod):
                self._registry.delete(_PODS, pod, DeleteOptions(grace_period_s=0))


def _fail(pod: Json) -> None:
    pod["status"]["phase"] = "Failed"
