"""One lease's folder on this host, and the record in it of how far its job has come."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from corral.domain.ids import is_id
from corral.files.atomic import sync_folder, write_durably, write_whole
from corral.files.private import FOLDER_MODE, private_folder
from corral.files.untrusted import read_regular
from corral.wire.leases import FailRequest, FinishRequest, LeaseView, StoppedRequest

# A spec may be some megabytes, and a child may have put anything in the record's place.
RECORD_MAX_BYTES = 64 << 20

_BODIES: dict[str, type[FinishRequest | FailRequest | StoppedRequest]] = {
    "finish": FinishRequest,
    "fail": FailRequest,
    "stopped": StoppedRequest,
}


class JobPhase(StrEnum):
    """How far a job has come. What has not reached `output` dies with the worker."""

    RUNNING = "running"
    # The child ended with 0 and its output is still to be uploaded.
    OUTPUT = "output"
    OUTCOME = "outcome"


@dataclass(frozen=True)
class JobOutcome:
    """What will be reported. In phase `output` it is a finish that lacks its artifact."""

    body: FinishRequest | FailRequest | StoppedRequest

    @property
    def kind(self) -> str:
        return next(kind for kind, body in _BODIES.items() if isinstance(self.body, body))


@dataclass(frozen=True)
class JobRecord:
    lease: LeaseView
    phase: JobPhase
    outcome: JobOutcome | None = None

    def as_json(self) -> str:
        outcome: dict[str, Any] | None = None
        if self.outcome is not None:
            outcome = {"kind": self.outcome.kind, "body": self.outcome.body.model_dump(mode="json")}
        return json.dumps(
            {"phase": self.phase, "lease": self.lease.model_dump(mode="json"), "outcome": outcome}
        )


class Workspace:
    """The folder `leases/<lease id>` under the worker's home."""

    def __init__(self, worker_home: Path, lease_id: str) -> None:
        self.lease_id = lease_id
        self.root = worker_home / "leases" / lease_id
        self.spool = worker_home / "spool" / lease_id
        # Not the child's business: the record, and what is staged for upload.
        self.staging = self.root / "staging"
        self._record = self.root / "job.json"
        # All that the child may see is one folder, so that it can move files about in it. What an earlier
        # version began lies beside the record.
        self.own = self.root if (self.root / "events.jsonl").exists() else self.root / "run"
        self.work = self.own / "work"
        self.inputs = self.own / "inputs"
        self.output = self.own / "output"
        self.checkpoints = self.own / "checkpoints"
        self.resume = self.own / "resume"
        self.tmp = self.own / "tmp"
        # Of an instance: what it and the worker leave each other, and its volumes.
        self.calls = self.own / "calls"
        self.volumes = self.own / "volumes"
        self.events = self.own / "events.jsonl"
        self.spec = self.own / "spec.json"
        self.rank_socket = self.own / "rank.sock"

    @property
    def given(self) -> tuple[Path, ...]:
        """What the child may only read."""
        return self.inputs, self.spec

    def create(self) -> None:
        private_folder(self.root)
        private_folder(self.own)
        for folder in (self.inputs, self.output, self.checkpoints, self.tmp):
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        self.events.touch()

    def save(self, record: JobRecord) -> None:
        """Replace the record in one step: after a kill it is the old one or the new one."""
        write_whole(self._record, record.as_json())

    def save_durably(self, record: JobRecord) -> None:
        """The same, and after a power cut it is still there."""
        write_durably(self._record, record.as_json())
        sync_folder(self.root.parent)

    def load(self) -> JobRecord | None:
        """None if there is no record, or none that can be read."""
        try:
            said = json.loads(read_regular(self._record, limit=RECORD_MAX_BYTES))
            outcome = said["outcome"]
            body = None if outcome is None else _BODIES[outcome["kind"]].model_validate(outcome["body"])
            return JobRecord(
                lease=LeaseView.model_validate(said["lease"]),
                phase=JobPhase(said["phase"]),
                outcome=None if body is None else JobOutcome(body),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def discard(self) -> None:
        """Remove what the child wrote and nobody will ask for; its record and its log stay.

        At once, since a full disk that the server shares could otherwise not take the outcome.
        """
        for folder in (self.work, self.inputs, self.output, self.checkpoints, self.resume, self.tmp):
            remove_tree(folder)

    def remove(self) -> None:
        shutil.rmtree(self.spool, ignore_errors=True)
        # The record goes last: a job whose outcome is delivered twice is harmless, one without is lost.
        with suppress(OSError):
            for entry in self.root.iterdir():
                if entry != self._record:
                    remove_tree(entry)
        self._record.unlink(missing_ok=True)
        remove_tree(self.root)


def workspaces(worker_home: Path) -> Iterator[Workspace]:
    """What earlier jobs have left."""
    with suppress(FileNotFoundError):
        for folder in sorted((worker_home / "leases").iterdir()):
            if is_id(folder.name, "l"):
                yield Workspace(worker_home, folder.name)


def make_read_only(root: Path) -> None:
    for parent, _, names in os.walk(root):
        for name in names:
            path = os.path.join(parent, name)
            os.chmod(path, 0o500 if os.lstat(path).st_mode & stat.S_IXUSR else 0o400)
        os.chmod(parent, 0o500)


def remove_tree(path: Path) -> None:
    """Remove what the child left there, also where it removed our permission to do so."""
    if path.is_symlink() or not path.is_dir():
        with suppress(OSError):
            path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)
    if not path.exists():
        return
    for parent, folders, names in os.walk(path):
        # Before they are entered: a folder that cannot be listed cannot be emptied.
        for folder in folders:
            _give_permission(os.path.join(parent, folder))
        # Windows removes no file that can only be read.
        for name in names if sys.platform == "win32" else ():
            _give_permission(os.path.join(parent, name))
        with suppress(OSError):
            os.chmod(parent, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def _give_permission(path: str) -> None:
    with suppress(OSError):
        if sys.platform != "win32":
            os.chmod(path, 0o700, follow_symlinks=False)
        elif not os.path.islink(path):
            os.chmod(path, 0o700)
