"""Brings the output and the checkpoints of a lease to the server, however long the server is away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corral.client.corral import Corral
from corral.client.files.digest import FileChanged
from corral.client.files.tree import Tree, folder_identity, scan
from corral.client.files.upload import upload
from corral.domain.errors import (
    BlobMissing,
    CorralError,
    DigestMismatch,
    OffsetMismatch,
    ProjectFull,
)
from corral.domain.secrets.redact import SecretValues
from corral.wire.artifacts import ArtifactView
from corral.worker.lease import LeaseSession
from corral.worker.report.recorder import Recorder

# The files or the server changed under us: scanning again helps, or nothing does.
_AGAIN = (BlobMissing, DigestMismatch, OffsetMismatch, FileChanged)
TRIES = 3

Commit = Callable[[Corral, Tree], ArtifactView]


class FilesTooLarge(CorralError):
    """However long one waits, the project may not have as much."""

    code = "files_too_large"


@dataclass(frozen=True)
class Uploads:
    """Says in the run's log, events and progress what it waits for."""

    session: LeaseSession
    recorder: Recorder

    def output(self, root: Path, secrets: SecretValues) -> str | None:
        """Upload and commit the result; its artifact's id, or None if the folder is empty."""
        lease = self.session.lease
        return self._send(
            root, secrets, lambda corral, tree: corral.leases.commit_artifact(lease.id, lease.epoch, tree)
        )

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

        return self._send(root, secrets, commit)

    def _send(self, root: Path, secrets: SecretValues, commit: Commit) -> str | None:
        for _ in range(TRIES - 1):
            try:
                return self._send_once(root, secrets, commit)
            except _AGAIN:
                continue
        return self._send_once(root, secrets, commit)

    def _send_once(self, root: Path, secrets: SecretValues, commit: Commit) -> str | None:
        # A link in the folder's place would lead to files that the child itself may not read.
        tree = scan(root, ignore=None, secrets=secrets, identity=folder_identity(root))
        if not tree.files:
            return None
        room = _RoomWait(tree, self.session.lease.project, self.recorder)
        self.session.keep_trying(lambda _: upload(tree, root, self.session.sink()), waits=room.heard)
        return self.session.keep_trying(lambda corral: commit(corral, tree), waits=room.heard).id


@dataclass
class _RoomWait:
    """A project may have as many bytes as its quota allows: others may remove some, so it is waited for."""

    tree: Tree
    project: str
    recorder: Recorder
    said: bool = False

    def heard(self, error: CorralError) -> None:
        """FilesTooLarge if there can never be room."""
        if not isinstance(error, ProjectFull):
            return
        limit = next((int(f.message) for f in error.fields if f.path == "max_bytes"), None)
        if limit is not None and self.tree.total_bytes > limit:
            raise FilesTooLarge(
                f"its files have {self.tree.total_bytes} bytes in all, and project {self.project} may have"
                f" {limit} (max_bytes)",
                hint=f"Leave less, or let an operator raise it with `corral quotas set {self.project}`.",
            )
        if not self.said:
            self.said = True
            text = f"its files wait for room: {error.message}. {error.hint}"
            self.recorder.say(text)
            self.recorder.note(text)
            self.recorder.progress({"waiting": error.message[:300]})
            self.recorder.flush()
