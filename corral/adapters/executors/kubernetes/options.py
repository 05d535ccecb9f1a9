"""What an installation says about its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

MIB = 1 << 20
# Sandboxes that hand no GPU on unless they are set up for it.
_PASSES_GPUS_ON = "nvidia"
_NEVER_NEGATIVE = ("cpu", "memory_bytes", "worker_memory_bytes", "restarts", "keep_s", "user", "shm_bytes")


@dataclass(frozen=True)
class ExtraVolume:
    """A volume of the pods: `source` is written as Kubernetes has it, such as
    `{"persistentVolumeClaim": {"claimName": "data"}}`."""

    name: str
    mount_path: str
    source: Mapping[str, Any]
    read_only: bool = False
    # For whoever reads it from a file: a name that is misspelt is no option that was left out.
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True)
class KubernetesOptions:
    """Names are those of the cluster. Without `context` and `kubeconfig` the service account of the pod that
    we run in is used, if we run in one, and otherwise the kubeconfig's current context."""

    image: str | None = None
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    service_account_folder: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    # Kueue's LocalQueue: the Job is made suspended and Kueue admits it as a whole.
    queue: str | None = None
    priority_class: str | None = None
    service_account: str | None = None
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str | None = None
    # Whether that runtime hands GPUs on; None is judged by its name.
    runtime_class_gpus: bool | None = None
    gpu_resource: str = "nvidia.com/gpu"
    gpu_label: str = "nvidia.com/gpu.product"
    gpu_memory_label: str = "nvidia.com/gpu.memory"
    gpu_compute_label: str = "nvidia.com/gpu.compute"
    # Values of `gpu_label` that nodes will have which an autoscaler has not made yet.
    gpu_models: tuple[str, ...] = ()
    # Nodes come when they are asked for: what there is now is no limit.
    autoscales: bool = False
    node_selector: Mapping[str, str] = field(default_factory=dict)
    # What a label of a run means here: labels of nodes.
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    # A label of nodes, such as kubernetes.io/hostname, over whose values the ranks are spread.
    spread_over: str | None = None
    volumes: tuple[ExtraVolume, ...] = ()
    # Of a rank that does not say what it needs.
    cpu: float = 1.0
    memory_bytes: int = 2048 * MIB
    # For the worker itself, beside what a run has asked for.
    worker_memory_bytes: int = 512 * MIB
    shm_bytes: int | None = None
    # Of the worker's process and its files; never 0, which is root.
    user: int = 10001
    # How often a rank's worker is started again by the cluster before its rank has failed.
    restarts: int = 0
    # How long a Job that has ended stays, so that its outcome can be read.
    keep_s: int = 86_400
    # An elastic Job is done when as many ranks as it needs have ended well, and the others are ended.
    done_with_min_ranks: bool = False
    # Asks autoscalers not to move the pods.
    do_not_disrupt: bool = True

    def __post_init__(self) -> None:
        if self.user == 0:
            raise ValueError("user is 0, which is root; workers never run as root")
        for name in _NEVER_NEGATIVE:
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")

    @property
    def passes_gpus_on(self) -> bool:
        if self.runtime_class is None:
            return True
        if self.runtime_class_gpus is not None:
            return self.runtime_class_gpus
        return self.runtime_class.startswith(_PASSES_GPUS_ON)
