"""What a host has left after what its leases hold."""

from __future__ import annotations

import json
from collections.abc import Iterable

from corral.core.shapes import parse_capability
from corral.domain.capability import Requirements, fitting_gpus
from corral.domain.host import Host
from corral.ports.store import Held


class Free:
    """Its slots, and the GPUs that none of its leases holds."""

    def __init__(self, host: Host, held: Iterable[Held]) -> None:
        holding = [json.loads(item.gpus) for item in held]
        self.slots = host.slots - len(holding)
        self._capability = parse_capability(host)
        taken = {index for gpus in holding for index in gpus}
        self._gpus = [gpu for gpu in (self._capability.gpus or ()) if gpu.index not in taken]

    def holds(self, need: Requirements) -> bool:
        return not need.gpus or len(self._fitting(need)) >= need.gpus

    def take(self, need: Requirements) -> tuple[int, ...]:
        chosen = self._fitting(need)[: need.gpus]
        self.slots -= 1
        self._gpus = [gpu for gpu in self._gpus if gpu.index not in chosen]
        return tuple(chosen)

    def _fitting(self, need: Requirements) -> list[int]:
        free = {gpu.index for gpu in self._gpus}
        return [gpu.index for gpu in fitting_gpus(need, self._capability) if gpu.index in free]
