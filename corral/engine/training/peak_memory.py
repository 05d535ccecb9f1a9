"""The most memory that a run has needed: the one figure that the forecast forecasts."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

if sys.platform != "win32":
    import resource

# A process holds less than this outside the allocator when it begins. More is another process's.
_MOST_CONTEXT = 2 << 30


@dataclass
class PeakMemory:
    """What the device must have free for this process: on a GPU what torch's allocator has reserved at most
    (tensors, what it keeps for reuse, the pools of CUDA graphs), and what the process holds outside of it
    (the CUDA context, loaded kernels, workspaces of libraries, the graphs themselves). The driver tells the
    second for the whole card, so what others held when this began is taken off. On a CPU it is the most
    resident memory of the process. `corral.recipes.memory` forecasts the same."""

    others_bytes: int = 0
    _seen: tuple[int, int] = (-1, 0)

    @classmethod
    def begin(cls) -> PeakMemory:
        """Before anything is put on the device."""
        held = _outside_bytes() if torch.cuda.is_available() else 0
        return cls(others_bytes=held if held > _MOST_CONTEXT else 0)

    def bytes(self) -> int | None:
        """The most so far; None where the system does not tell. The driver is asked again only when the
        allocator has taken more: every step of a run asks for this."""
        if not torch.cuda.is_available():
            return _most_resident_bytes()
        reserved = torch.cuda.max_memory_reserved()
        if reserved != self._seen[0]:
            self._seen = (reserved, self.outside_bytes())
        return sum(self._seen)

    def whole_bytes(self) -> int | None:
        """The same at the end of a run, whatever was loaded since."""
        self._seen = (-1, 0)
        return self.bytes()

    def outside_bytes(self) -> int:
        """What the process holds of a GPU beside the allocator now; that only grows."""
        return max(0, _outside_bytes() - self.others_bytes)

    def parts(self) -> dict[str, int]:
        """Of what the peak on a GPU is made; `allocated` is the part of `reserved` that was in use."""
        if not torch.cuda.is_available():
            return {}
        return {
            "reserved": torch.cuda.max_memory_reserved(),
            "allocated": torch.cuda.max_memory_allocated(),
            "outside": self.outside_bytes(),
        }


def _most_resident_bytes() -> int | None:
    if sys.platform == "win32":
        return None
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _outside_bytes() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()
