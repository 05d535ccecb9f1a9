"""The rollouts of each step, kept until a checkpoint holds what was learned from them.

A run that is killed after sampling goes on with the same completions instead of paying for others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.files.atomic import replacing_durably

FORMAT = 1

Row = Mapping[str, Any]


class RolloutJournal:
    """One file for each step; written once, whole or not at all, and never changed: checkpoints link it.

    `digest` is that of the run's configuration; what another has sampled is not read.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._digest = digest

    def adopt(self, source: Path) -> None:
        """Take over what a checkpoint brought; its folder may be read-only."""
        if source.is_dir() and source != self._folder:
            for file in sorted(source.glob("*.jsonl")):
                shutil.copyfile(file, self._folder / file.name)

    def write(self, step: int, rows: Sequence[Row]) -> Path:
        """The rollouts of the step that comes after `step` whole ones."""
        target = self._path(step)
        with replacing_durably(target) as file:
            file.write(json.dumps(self._head(step, len(rows))).encode() + b"\n")
            for row in rows:
                file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        return target

    def read(self, step: int) -> list[dict[str, Any]] | None:
        """None if this step was not sampled yet, or by another configuration or version."""
        try:
            with self._path(step).open(encoding="utf-8") as file:
                head, *rows = (json.loads(line) for line in file)
        except FileNotFoundError:
            return None
        return rows if head == self._head(step, len(rows)) else None

    def files(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))

    def forget(self, before: int) -> None:
        """Drop the steps that a checkpoint of `before` whole steps has made needless."""
        for file in self.files():
            if int(file.stem) < before:
                file.unlink()

    def clear(self) -> None:
        """Drop all: they were sampled from weights that nobody has any more."""
        for file in self.files():
            file.unlink()

    def _head(self, step: int, rows: int) -> dict[str, Any]:
        return {"format": FORMAT, "config": self._digest, "step": step, "rows": rows}

    def _path(self, step: int) -> Path:
        return self._folder / f"{step:06d}.jsonl"
