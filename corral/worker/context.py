"""What all jobs of one worker share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from corral.worker.host.address import LOOPBACK
from corral.worker.host.health import HostHealth
from corral.worker.host.isolation import Isolation
from corral.worker.host.probe import HostSnapshot
from corral.worker.host.system_packages import SystemPackages
from corral.worker.prepare.cache import InputCache
from corral.worker.prepare.rendezvous import MasterPorts
from corral.worker.report.outbox import Outbox
from corral.worker.server_link import ServerLink


@dataclass(frozen=True)
class WorkerContext:
    home: Path
    link: ServerLink
    outbox: Outbox
    cache: InputCache
    base_env: Mapping[str, str]
    has_gpus: bool
    snapshot: Callable[[], HostSnapshot]
    health: HostHealth
    isolation: Isolation
    engine_env: Mapping[str, str] = field(default_factory=dict)
    # What children make their files with; the worker's own files are open to nobody else.
    child_umask: int | None = None
    system: SystemPackages = field(default_factory=SystemPackages)
    # Where other hosts reach this one.
    address: Callable[[], str] = lambda: LOOPBACK
    ports: MasterPorts = field(default_factory=MasterPorts)
