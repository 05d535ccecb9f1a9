"""What an installation says about its cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from corral.domain.errors import FieldError, InvalidInput

MIB = 1 << 20
# Sandboxes that hand no GPU on unless they are set up for it.
_PASSES_GPUS_ON = "nvidia"


@dataclass(frozen=True)
class ExtraVolume:
    """A volume of the pods: `source` is written as Kubernetes has it, such as
    `{"persistentVolumeClaim": {"claimName": "data"}}`."""

    name: str
    mount_path: str
    source: Mapping[str, Any]
    read_only: bool = False


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

    @property
    def passes_gpus_on(self) -> bool:
        if self.runtime_class is None:
            return True
        if self.runtime_class_gpus is not None:
            return self.runtime_class_gpus
        return self.runtime_class.startswith(_PASSES_GPUS_ON)


def options_from(given: Mapping[str, object]) -> KubernetesOptions:
    """What was written in a file or on a command line; InvalidInput names each field that is wrong."""
    known = {one.name: str(one.type) for one in fields(KubernetesOptions)}
    faults: list[FieldError] = []
    read: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            faults.append(FieldError(name, f"is not an option; there are {', '.join(known)}"))
            continue
        if value is None:
            continue
        try:
            read[name] = _READERS[known[name].removesuffix(" | None")](value)
        except (TypeError, ValueError, KeyError) as error:
            faults.append(FieldError(name, f"is {value!r}; {_words(error)}"))
    faults += _bounds(read)
    if faults:
        said = "; ".join(map(str, faults))
        hint = "docs/howto/kubernetes.md has all options with an example."
        raise InvalidInput(
            f"the options of the Kubernetes executor are wrong: {said}", hint=hint, fields=faults
        )
    return KubernetesOptions(**read)


def _words(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _bounds(read: Mapping[str, Any]) -> list[FieldError]:
    found = []
    if read.get("user", 1) == 0:
        found.append(FieldError("user", "is 0, which is root; workers never run as root"))
    for name in ("cpu", "memory_bytes", "worker_memory_bytes", "restarts", "keep_s", "user", "shm_bytes"):
        if read.get(name, 0) < 0:
            found.append(FieldError(name, f"is {read[name]}; it must not be negative"))
    return found


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("a text is expected")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false is expected")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("a whole number is expected")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a number is expected")
    return float(value)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(one) for one in _list(value))


def _list(value: object) -> list[object]:
    if not isinstance(value, list | tuple):
        raise TypeError("a list is expected")
    return list(value)


def _table(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError("a table is expected")
    return dict(value)


def _strings(value: object) -> dict[str, str]:
    return {key: _text(one) for key, one in _table(value).items()}


def _volume(value: object) -> ExtraVolume:
    given = _table(value)
    unknown = sorted(set(given) - {"name", "mount_path", "source", "read_only"})
    if unknown:
        raise ValueError(f"a volume has no {', '.join(unknown)}")
    return ExtraVolume(
        _text(given["name"]),
        _text(given["mount_path"]),
        _table(given["source"]),
        _flag(given.get("read_only", False)),
    )


_READERS: Mapping[str, Callable[[object], Any]] = {
    "str": _text,
    "bool": _flag,
    "int": _whole,
    "float": _number,
    "tuple[str, ...]": _texts,
    "Mapping[str, str]": _strings,
    "Mapping[str, Mapping[str, str]]": lambda value: {
        key: _strings(one) for key, one in _table(value).items()
    },
    "tuple[Mapping[str, Any], ...]": lambda value: tuple(_table(one) for one in _list(value)),
    "tuple[ExtraVolume, ...]": lambda value: tuple(_volume(one) for one in _list(value)),
}
