"""The volumes of an instance: folders beside its code, brought there before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.client.corral import Corral
from corral.client.volumes.folder import VolumeFolder
from corral.client.volumes.volumes import LeaseVolume
from corral.domain.errors import InvalidInput
from corral.domain.secrets.redact import SecretValues
from corral.worker.lease import LeaseSession
from corral.worker.prepare.cache import InputCache

VARIABLE = "CORRAL_VOLUME_DIR"


@dataclass
class VolumeMounts:
    """`folders` by the name of their volume."""

    session: LeaseSession
    root: Path
    # Where the instance cannot exchange what is being written.
    scratch: Path
    cache: InputCache
    folders: dict[str, VolumeFolder] = field(default_factory=dict)
    secrets: SecretValues | None = None

    @property
    def wanted(self) -> dict[str, str]:
        service = self.session.lease.spec.service
        return {} if service is None else service.volumes

    def fill(self, corral: Corral) -> None:
        """Once, before the instance starts. Volumes that an earlier, broken try brought are kept."""
        self.root.mkdir(exist_ok=True)
        self.scratch.mkdir(exist_ok=True)
        for name, volume in self.wanted.items():
            if volume not in self.folders:
                folder = VolumeFolder(self.root / name, self._remote(corral, volume), scratch=self.scratch)
                folder.fill(self.cache.unpack)
                self.folders[volume] = folder

    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.root)} if self.wanted else {}

    def do(self, volume: str, what: str, *, discard: bool) -> dict[str, Any]:
        """What code in the instance asks for."""
        folder = self.folders.get(volume)
        if folder is None:
            raise InvalidInput(
                f"this function does not use the volume {volume!r}",
                hint="Name it in the decorator: volumes={'data': corral.Volume(...)}.",
            )
        if what == "path":
            return {"path": str(folder.root)}

        def work(corral: Corral) -> int:
            folder.remote = self._remote(corral, volume)
            folder.secrets = self.secrets
            return folder.commit() if what == "commit" else folder.reload(discard=discard)

        return {"version": self.session.keep_trying(work)}

    def _remote(self, corral: Corral, volume: str) -> LeaseVolume:
        lease = self.session.lease
        return LeaseVolume.of(corral.transport, lease.id, lease.epoch, volume)
