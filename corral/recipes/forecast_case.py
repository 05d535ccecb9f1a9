"""What a forecast is about: a run, its model, its data and a device; and how the run is cut into pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from corral.recipes import calibration
from corral.recipes.calibration import Calibration
from corral.recipes.gpus import GpuFacts
from corral.recipes.models import ModelFacts
from corral.recipes.train_tables import DataFacts, Train

Recompute = Literal["none", "full"]
Precision = Literal["bf16", "fp32"]
# What a run has compiled for itself on a GPU. `libraries` is what every run there loads: torch, CUDA and the
# compiler, which the first run on a host reads from its disk.
CodePart = Literal["training", "sampling", "libraries"]


@dataclass(frozen=True, slots=True)
class Device:
    """Where a run goes: a GPU, or a machine's own cores and memory. `compiled` are the parts of the run's
    code that an earlier run compiled there; `pace` is how many times as long as usual set-ups take there."""

    gpu: GpuFacts | None
    cores: int = 1
    ram_bytes: int | None = None
    compiled: frozenset[CodePart] = frozenset()
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class ForecastCase:
    train: Train
    facts: ModelFacts
    device: Device
    data: DataFacts = field(default_factory=DataFacts)
    constants: Calibration = field(default_factory=calibration.default)

    @property
    def precision(self) -> Precision:
        if self.train.precision != "auto":
            return self.train.precision
        return "fp32" if self.device.gpu is None else "bf16"

    @property
    def width(self) -> int:
        """Bytes of a weight or an activation."""
        return 2 if self.precision == "bf16" else 4


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How a run is cut into pieces: tokens of a forward pass, whether activations are computed twice, and for
    sampling how many sequences at once and the most tokens of one (0 where nothing is sampled)."""

    micro_tokens: int
    recompute: Recompute
    rows: int = 0
    context: int = 0
