"""What takes space on the server's disk."""

from __future__ import annotations

from corral.client.api import Api
from corral.wire.disk import CollectAnswer, DiskAnswer


class Disk(Api):
    root = "/v1/disk"

    def get(self, *, runs: int = 10) -> DiskAnswer:
        """With the runs that take most."""
        return self._transport.get(self.root, DiskAnswer, {"runs": runs})

    def collect(self) -> CollectAnswer:
        """Delete what nothing names any more, at once."""
        return self._transport.once("POST", self._path("collect"), CollectAnswer, timeout_s=600)
