"""Brings a folder of a lease to the server, however long the server is away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corral.client.corral import Corral
from corral.client.files.digest import FileChanged
from corral.client.files.tree import Tree, scan
from corral.client.files.upload import upload
from corral.domain.errors import BlobMissing, DigestMismatch, OffsetMismatch
from corral.domain.redaction import SecretValues
from corral.wire.artifacts import ArtifactView
from corral.worker.lease import LeaseSession

# The files or the server changed under us: scanning again helps, or nothing does.
_AGAIN = (BlobMissing, DigestMismatch, OffsetMismatch, FileChanged)
TRIES = 3

Commit = Callable[[Corral, Tree], ArtifactView]


@dataclass(frozen=True)
class Uploads:
    session: LeaseSession

    def output(self, root: Path, secrets: SecretValues) -> str | None:
        """Upload and commit the result; its artifact's id, or None if the folder is empty."""
        lease = self.session.lease
        view = self._send(
            root, secrets, lambda corral, tree: corral.leases.commit_artifact(lease.id, lease.epoch, tree)
        )
        return None if view is None else view.id

    def checkpoint(
        self,
        root: Path,
        secrets: SecretValues,
        *,
        step: int | None,
        metric: float | None,
        check: Callable[[], None],
    ) -> str | None:
        """The same for a checkpoint. `check` is called last before the commit, and may raise."""
        lease = self.session.lease

        def commit(corral: Corral, tree: Tree) -> ArtifactView:
            check()
            return corral.leases.commit_checkpoint(lease.id, lease.epoch, tree, step=step, metric=metric)

        view = self._send(root, secrets, commit)
        return None if view is None else view.id

    def _send(self, root: Path, secrets: SecretValues, commit: Commit) -> ArtifactView | None:
        for _ in range(TRIES - 1):
            try:
                return self._send_once(root, secrets, commit)
            except _AGAIN:
                continue
        return self._send_once(root, secrets, commit)

    def _send_once(self, root: Path, secrets: SecretValues, commit: Commit) -> ArtifactView | None:
        tree = scan(root, ignore=None, secrets=secrets)
        if not tree.files:
            return None
        self.session.keep_trying(lambda _: upload(tree, root, self.session.sink()))
        return self.session.keep_trying(lambda corral: commit(corral, tree))
