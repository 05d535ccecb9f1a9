"""Remembers what requirements were resolved to, so that the next program that asks the same starts no uv.

For a day: a newer release is taken then, or by a deploy, which always resolves anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from corral.client.environments.lock import Lock
from corral.files.atomic import unique_part, write_whole

GOOD_FOR_S = 86400.0
_OF_THE_INDEX = ("UV_", "PIP_")


@dataclass(frozen=True)
class LockRequest:
    """Everything that the lock depends on, except what is new on the index."""

    requirements: Sequence[str]
    python: str
    wheels: Path | None
    no_index: bool
    env: Mapping[str, str]

    @property
    def can_be_kept(self) -> bool:
        """Lines that name files are not followed here."""
        return not any(line.lstrip().startswith("-") for line in self.requirements)

    @property
    def digest(self) -> str:
        index = sorted((key, value) for key, value in self.env.items() if key.startswith(_OF_THE_INDEX))
        asked = [list(self.requirements), self.python, self.no_index, index, self._listing()]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

    def _listing(self) -> list[list[object]]:
        if self.wheels is None:
            return []
        try:
            found = [(entry.name, entry.stat()) for entry in os.scandir(self.wheels)]
        except OSError:
            return [[str(self.wheels)]]
        return sorted([name, status.st_size, status.st_mtime_ns] for name, status in found)


@dataclass(frozen=True)
class LockCache:
    """Files in one folder, safe to share between processes. What cannot be kept is resolved again."""

    folder: Path
    now: Callable[[], float] = time.time

    def find(self, question: LockRequest) -> Lock | None:
        path = self.folder / f"{question.digest}.json"
        try:
            said = json.loads(path.read_bytes())
            made_at, lock = float(said["at"]), Lock(said["text"], said["python"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return lock if question.can_be_kept and 0 <= self.now() - made_at < GOOD_FOR_S else None

    def keep(self, question: LockRequest, lock: Lock) -> None:
        if not question.can_be_kept:
            return
        path = self.folder / f"{question.digest}.json"
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            said = {"at": self.now(), "text": lock.text, "python": lock.python}
            write_whole(path, json.dumps(said), part=unique_part(path))
