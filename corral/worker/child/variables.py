"""The environment variables of a child: few of the worker's, all that runs may rely on, only its GPUs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from corral.wire.leases import LeaseView
from corral.worker.child.command import DATA_DIR_VARIABLE, LEASE_VARIABLE
from corral.worker.child.rank_socket import IS_SUPPORTED, SOCKET_VARIABLE
from corral.worker.host.address import LOOPBACK
from corral.worker.prepare.environments import activate_env
from corral.worker.prepare.workspace import Workspace

_KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT"),
        # Without these, programs on Windows do not start.
        *("SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "APPDATA"),
    }
)
_KEPT_BEGINNINGS = ("LC_", "CUDA_", "NVIDIA_", "NCCL_")
# Where models and compiled kernels are kept, and how many threads there are. No token: a model that is
# gated is fetched with a secret of the run's own project.
_KEPT_FOR_ENGINE = frozenset(
    {
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_CACHE"),
        *("XDG_CACHE_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    }
)


def base_environment(own: Mapping[str, str]) -> dict[str, str]:
    """What a child inherits. Tokens and whatever else the worker was given stay with the worker."""
    kept = {
        name: value
        for name, value in own.items()
        if name.upper() in _KEPT or name.startswith(_KEPT_BEGINNINGS)
    }
    kept.setdefault("PATH", os.defpath)
    if shutil.which("python", path=kept["PATH"]) is None:
        # Last on the path: programs of the host come first.
        kept["PATH"] += os.pathsep + os.path.dirname(sys.executable)
    return kept


def engine_environment(own: Mapping[str, str]) -> dict[str, str]:
    """What a training run inherits beside that."""
    return {name: value for name, value in own.items() if name in _KEPT_FOR_ENGINE}


def _visible_gpus(lease: LeaseView) -> list[int]:
    """As torchrun has it, where each rank has one GPU: all of the run's GPUs here, its own at LOCAL_RANK."""
    return lease.gpus if lease.place is None else lease.place.local_gpus or lease.gpus


def rank_environment(lease: LeaseView, *, master_port: int, interface: str | None = None) -> dict[str, str]:
    """What torch.distributed and its like read; of a run of one rank nothing.

    `interface` is that by which other hosts reach this one.
    """
    place = lease.place
    if place is None:
        return {}
    env = {
        "RANK": str(lease.rank),
        "WORLD_SIZE": str(lease.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(master_port),
    }
    if interface is not None and place.master_addr != LOOPBACK:
        # Gloo asks for the host's own name, which on many hosts is that of the loopback.
        env["GLOO_SOCKET_IFNAME"] = interface
    return env


def child_environment(
    lease: LeaseView,
    workspace: Workspace,
    *,
    base: Mapping[str, str],
    python: Path | None,
    secrets: Mapping[str, str],
    data_dir: Path,
    host_has_gpus: bool,
    ranks: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """`ranks` is how it finds the other ranks."""
    env = dict(base) if python is None else activate_env(python, base)
    env["PYTHONUNBUFFERED"] = "1"
    env.pop("CUDA_VISIBLE_DEVICES", None)
    if host_has_gpus:
        # NVML, which numbered them, counts by bus; CUDA would put the fastest first.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, _visible_gpus(lease)))
    env |= ranks
    env |= lease.spec.env
    env |= secrets
    env |= {
        "CORRAL_RUN_ID": lease.run_id,
        "CORRAL_RANK": str(lease.rank),
        "CORRAL_WORLD_SIZE": str(lease.world_size),
        "CORRAL_ATTEMPT": str(lease.attempt),
        "CORRAL_MEMORY_RETRIES": str(lease.memory_retries),
        LEASE_VARIABLE: lease.id,
        DATA_DIR_VARIABLE: str(data_dir),
        "CORRAL_SPEC": str(workspace.spec),
        "CORRAL_INPUT_DIR": str(workspace.inputs),
        "CORRAL_OUTPUT_DIR": str(workspace.output),
        "CORRAL_CHECKPOINT_DIR": str(workspace.checkpoints),
        "CORRAL_EVENTS": str(workspace.events),
    }
    if IS_SUPPORTED and lease.spec.service is None:
        env[SOCKET_VARIABLE] = str(workspace.rank_socket)
    if lease.gpu_bytes is not None:
        env["CORRAL_GPU_MEMORY_BYTES"] = str(lease.gpu_bytes)
    if lease.resume is not None:
        env["CORRAL_RESUME_DIR"] = str(workspace.resume)
    return env
