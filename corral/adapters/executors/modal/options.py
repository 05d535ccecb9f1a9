"""What an installation says about its workspace."""

from __future__ import annotations

from dataclasses import dataclass

# Modal ends every sandbox after that.
LONGEST_S = 86_400


@dataclass(frozen=True)
class ModalOptions:
    """The token is the one that the server's own environment or `~/.modal.toml` has."""

    image: str | None = None
    app: str = "corral"
    environment: str | None = None
    # A Secret of the workspace with the registry's credentials.
    registry_secret: str | None = None
    region: str | None = None
    cloud: str | None = None
    # How many containers and GPUs the workspace may have at once: Modal tells nobody but its dashboard.
    containers: int = 100
    gpus: int = 10
    # What one sandbox may have.
    most_cores: int = 64
    most_ram_gib: int = 336
    # Of a rank that does not say what it needs.
    cores: float = 1.0
    ram_mib: int = 2048
    # How long a launch waits for Modal to take it in.
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if min(self.containers, self.most_cores, self.most_ram_gib, self.cores, self.ram_mib) <= 0:
            raise ValueError("containers, most_cores, most_ram_gib, cores and ram_mib are larger than 0")
        if self.gpus < 0 or self.timeout_s <= 0:
            raise ValueError("gpus is not negative, and timeout_s is larger than 0")
