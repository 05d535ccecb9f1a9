"""What a run requires, kept once for all runs that require the same: its shape."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache

from corral.domain.canonical import canonical, digest_of
from corral.domain.hosts.capability import Requirements
from corral.domain.ids import Digest
from corral.store.transaction import Tx


def put_shape(tx: Tx, requirements: Requirements) -> Digest:
    shape, text = _shape(requirements)
    tx.runs.put_shape(shape, text)
    return shape


_NO_NEED = Requirements()
_FIRST_KEYS = frozenset(
    {
        *("gpus", "gpu", "min_vram_bytes", "min_ram_bytes", "min_cores", "min_disk_bytes"),
        *("min_compute_capability", "os", "arch", "labels", "hosts"),
    }
)


@lru_cache(maxsize=4096)
def _shape(requirements: Requirements) -> tuple[Digest, str]:
    # Shapes of before have no such keys; the same need keeps its digest.
    table = {
        key: value
        for key, value in asdict(requirements).items()
        if key in _FIRST_KEYS or value != getattr(_NO_NEED, key)
    }
    text = canonical(table)
    return digest_of(json.loads(text)), text
