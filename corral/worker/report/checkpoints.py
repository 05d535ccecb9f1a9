"""Keeps the checkpoints that a child announces, and sends them to the server while the run goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from corral.domain.errors import CorralError, LeaseLost, NotFound
from corral.domain.secrets.redact import SecretValues
from corral.files.untrusted import open_folder, open_regular, read_regular
from corral.worker.child.events_file import CheckpointEvent
from corral.worker.prepare.workspace import Workspace, remove_tree
from corral.worker.report.recorder import Recorder
from corral.worker.report.uploads import Uploads
from corral.worker.server_link import WaitAbandoned

_NOTE_MAX_BYTES = 64 << 10
_COPY_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class NotACheckpoint(CorralError):
    code = "not_a_checkpoint"
    hint = "Write checkpoints under CORRAL_CHECKPOINT_DIR and announce them when they are complete."


@dataclass(frozen=True)
class _StagedCheckpoint:
    folder: Path
    step: int | None
    metric: float | None
    stamp: str

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def label(self) -> str:
        return "the checkpoint" if self.step is None else f"the checkpoint of step {self.step}"


@dataclass(eq=False)
class CheckpointUploader:
    """Keeps what a child says is a checkpoint, newest first.

    `announce` links; a thread uploads, one at a time. What waits is replaced by what is newer.
    """

    workspace: Workspace
    uploads: Uploads
    recorder: Recorder
    secrets: SecretValues
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _waiting: _StagedCheckpoint | None = None
    _closed: bool = False
    _count: int = 0
    _thread: threading.Thread | None = None

    def announce(self, done: CheckpointEvent) -> None:
        """Take hold of the files now: the child may rotate them as soon as it has said so."""
        try:
            staged = self._stage(done)
        except (OSError, NotACheckpoint) as error:
            self._note(f"a checkpoint was not kept: {error}")
            return
        self._enqueue(staged)

    def recover(self) -> None:
        """Take up what an earlier worker had linked but not uploaded."""
        for folder in sorted(self.workspace.staging.glob("[0-9]*")):
            try:
                said = json.loads(read_regular(folder / "checkpoint.json", limit=_NOTE_MAX_BYTES))
                self._enqueue(_StagedCheckpoint(folder, said["step"], said["metric"], said["stamp"]))
            except (OSError, ValueError, KeyError):
                remove_tree(folder)

    def drain(self) -> None:
        """Return when nothing is left to upload. Nothing may be announced after this."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _stage(self, done: CheckpointEvent) -> _StagedCheckpoint:
        base, parts = self._locate(done.path)
        self._count += 1
        folder = self.workspace.staging / f"{self._count:06d}"
        files = folder / "files"
        files.mkdir(parents=True)
        try:
            _link_below(base, parts, files)
            staged = _StagedCheckpoint(folder, done.step, done.metric, _stamp(files))
            # Written last: only a whole checkpoint is taken up again after a crash.
            said = json.dumps({"step": staged.step, "metric": staged.metric, "stamp": staged.stamp})
            (folder / "checkpoint.json").write_text(said, encoding="utf-8")
        except OSError:
            remove_tree(folder)
            raise
        return staged

    def _locate(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """The folder of all checkpoints, and the way from there, free of links."""
        # The folder itself is the child's too, and may be a link by now.
        base = Path(os.path.realpath(self.workspace.own)) / self.workspace.checkpoints.name
        shown = self.secrets.redact_text(path)[:200]
        try:
            real = Path(os.path.realpath(base / path, strict=True))
        except (OSError, ValueError) as error:
            raise NotACheckpoint(f"{shown!r} does not exist: {error}") from error
        if real == base or not real.is_relative_to(base):
            raise NotACheckpoint(f"{shown!r} is not inside CORRAL_CHECKPOINT_DIR")
        return base, real.relative_to(base).parts

    def _enqueue(self, staged: _StagedCheckpoint) -> None:
        with self._changed:
            passed_over, self._waiting = self._waiting, staged
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="corral-checkpoints", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if passed_over is not None:
            self.recorder.say(
                f"{passed_over.label} was passed over: a newer one came before its upload began"
            )
            remove_tree(passed_over.folder)

    def _run(self) -> None:
        while (staged := self._next()) is not None:
            try:
                self._upload(staged)
            except WaitAbandoned:
                return
            except (LeaseLost, NotFound) as error:
                self.uploads.session.control.lose(error.message)
                return
            except (CorralError, OSError) as error:
                self._note(f"{staged.label} was not kept: {error}")
            remove_tree(staged.folder)

    def _next(self) -> _StagedCheckpoint | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closed)
            staged, self._waiting = self._waiting, None
            return staged

    def _upload(self, staged: _StagedCheckpoint) -> None:
        def check() -> None:
            # A link shares the file: a child that writes into it in place changes what was announced.
            if _stamp(staged.files) != staged.stamp:
                raise NotACheckpoint("its files were written to after it was announced")

        check()
        kept = self.uploads.checkpoint(
            staged.files, self.secrets, step=staged.step, metric=staged.metric, check=check
        )
        if kept is None:
            raise NotACheckpoint("it holds no files")
        logger.info("%s is kept as %s", staged.label, kept)

    def _note(self, text: str) -> None:
        self.recorder.note(self.secrets.redact_text(text))


def _link_below(base: Path, parts: tuple[str, ...], target: Path) -> None:
    """Link a file, or all files of a folder. The child may exchange any of them for a link meanwhile."""
    if sys.platform == "win32":
        _link_plainly(base.joinpath(*parts), target)
        return
    folder = open_folder(base, parts[:-1])
    try:
        if stat.S_ISDIR(os.lstat(parts[-1], dir_fd=folder).st_mode):
            _link_tree(folder, parts[-1], target)
        else:
            _link(parts[-1], folder, target / parts[-1])
    finally:
        os.close(folder)


def _link_plainly(path: Path, target: Path) -> None:
    """Where no open folder can be gone into: a link that the child puts there meanwhile is followed."""
    if path.is_dir():
        shutil.copytree(path, target, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
    else:
        os.link(path, target / path.name)


def _link_tree(folder: int, name: str, target: Path) -> None:
    if sys.platform == "win32":
        raise NotImplementedError
    for parent, folders, names, opened in os.fwalk(name, dir_fd=folder):
        inside = target / os.path.relpath(parent, name)
        for each in folders:
            if stat.S_ISDIR(os.lstat(each, dir_fd=opened).st_mode):
                (inside / each).mkdir(exist_ok=True)
            else:
                os.symlink(os.readlink(each, dir_fd=opened), inside / each)
        for each in names:
            _link(each, opened, inside / each)


def _link(name: str, folder: int, target: Path) -> None:
    try:
        os.link(name, target, src_dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        # Another device below the folder, or a file system without links.
        _copy(name, folder, target)


def _copy(name: str, folder: int, target: Path) -> None:
    """What is no regular file is not copied: a device would have no end."""
    with open_regular(name, folder=folder) as source, target.open("xb") as copy:
        left = os.fstat(source.fileno()).st_size
        while left and (part := source.read(min(left, _COPY_BYTES))):
            copy.write(part)
            left -= len(part)


def _stamp(root: Path) -> str:
    """Changes when any file below is written to or replaced."""
    found = []
    for parent, _, names in os.walk(root):
        for name in names:
            path = os.path.join(parent, name)
            status = os.lstat(path)
            found.append((path, status.st_ino, status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(sorted(found)).encode("utf-8", "surrogateescape")).hexdigest()
