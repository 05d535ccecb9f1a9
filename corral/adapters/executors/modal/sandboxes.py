"""Names and tags of the sandboxes of an order, and what each of them is made with."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from corral.adapters.executors.modal.gpus import gpu_of
from corral.adapters.executors.modal.options import LONGEST_S, ModalOptions
from corral.domain.placements.orders import RANK, TOKENS, LaunchOrder

INSTALLATION = "corral-installation"
KEY = "corral-key"
RANK_TAG = "corral-rank"
RANKS = "corral-ranks"
MIN_RANKS = "corral-min-ranks"
# What the handle has for a rank of which there is no sandbox.
NONE = "-"
_TOKEN = "CORRAL_MODAL_TOKEN"
# Modal hands secrets over as variables: the worker gets a file instead, and its environment has none.
_STARTER = (
    f'umask 077; folder=$(mktemp -d) && printf %s "${_TOKEN}" >"$folder/${RANK}" && unset {_TOKEN} '
    f'&& export {TOKENS}="$folder" && exec "$@"'
)


class SandboxHandle(NamedTuple):
    """The sandboxes of a launch by rank. With it anybody finds them, also when they have ended."""

    mark: str
    key: str
    min_ranks: int
    ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.mark}/{self.key}/{self.min_ranks}/{','.join(self.ids)}"

    @classmethod
    def parse(cls, handle: str) -> SandboxHandle | None:
        match = re.fullmatch(r"([0-9a-f]+)/([a-z0-9-]+)/([0-9]+)/([A-Za-z0-9,-]+)", handle)
        return cls(match[1], match[2], int(match[3]), tuple(match[4].split(","))) if match else None


class SandboxRequest(NamedTuple):
    """What `modal.Sandbox.create` is given for one rank."""

    rank: int
    name: str
    args: tuple[str, ...]
    image: str
    tags: Mapping[str, str]
    environ: Mapping[str, str]
    secret: Mapping[str, str]
    timeout_s: int
    cores: float
    ram_mib: int
    gpu: str | None


def mark_of(installation: str) -> str:
    return hashlib.sha256(installation.encode()).hexdigest()[:8]


def name_of(installation: str, key: str, rank: int) -> str:
    """Modal lets no two sandboxes that run have one name."""
    return f"{mark_of(installation)}-{key}-{rank}"


def tags_of(order: LaunchOrder, rank: int) -> dict[str, str]:
    return {
        INSTALLATION: mark_of(order.installation),
        KEY: order.key,
        RANK_TAG: str(rank),
        RANKS: str(order.ranks),
        MIN_RANKS: str(order.min_ranks),
        "corral-run": order.run_id,
    }


def request_of(order: LaunchOrder, options: ModalOptions, rank: int) -> SandboxRequest:
    need = order.need
    gpu = gpu_of(need) if need.gpus else None
    ram_mib = math.ceil(need.min_ram_bytes / (1 << 20)) if need.min_ram_bytes else options.ram_mib
    return SandboxRequest(
        rank=rank,
        name=name_of(order.installation, order.key, rank),
        args=("sh", "-c", _STARTER, "corral", *order.command),
        image=order.image or options.image or "",
        tags=tags_of(order, rank),
        environ={**order.environ, RANK: str(rank)},
        secret={_TOKEN: order.tokens[rank]},
        timeout_s=LONGEST_S if order.limit_s is None else min(math.ceil(order.limit_s), LONGEST_S),
        cores=float(need.min_cores or options.cores),
        ram_mib=ram_mib,
        gpu=None if gpu is None else gpu.name if need.gpus == 1 else f"{gpu.name}:{need.gpus}",
    )
