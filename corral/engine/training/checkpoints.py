"""Checkpoints: written beside their place, synced, renamed, and only then announced."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.engine.errors import EngineError
from corral.engine.reports.events import EventWriter
from corral.files.atomic import sync_folder

FORMAT = 1
STATE = "state.json"
JOURNAL = "journal"
# The worker links a checkpoint after it is announced; it must not be rotated away before that.
LINGER_S = 10.0
# Settings that may differ between a checkpoint and the run that resumes from it: none of them changes a
# loss, except by the order in which floats are added.
FREE = frozenset({"guards", "save_every", "eval_every", "eval_rows", "micro_tokens", "recompute"})

Config = Mapping[str, Any]


class CheckpointError(EngineError):
    """A run cannot resume from this checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: its folder, the steps that were done, and the state of the run's parts."""

    folder: Path
    step: int
    parts: Mapping[str, Any]

    @property
    def journal(self) -> Path:
        return self.folder / JOURNAL


def digest(config: Config) -> str:
    fixed = {key: value for key, value in config.items() if key not in FREE}
    text = json.dumps(fixed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class CheckpointWriter:
    """Writes the checkpoints of one run into one folder; the newest `keep` stay.

    `config` is everything that decides the losses: settings, seed, and digests of model, data and
    environment. A checkpoint carries it, and `load` refuses one that was made by another.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        events: EventWriter,
        *,
        keep: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._config = dict(config)
        self._events = events
        self._keep = keep
        self._clock = clock
        self._written: list[tuple[Path, float]] = []
        for left in folder.glob(".part-*"):
            shutil.rmtree(left, ignore_errors=True)

    @property
    def config_digest(self) -> str:
        return digest(self._config)

    @property
    def newest(self) -> Path | None:
        return self._written[-1][0] if self._written else None

    def write(
        self,
        step: int,
        fill: Callable[[Path], None],
        parts: Mapping[str, Any],
        *,
        metric: float | None = None,
    ) -> Path:
        """A checkpoint after `step` steps. `fill` writes what is large into the folder that it is given;
        `parts` is what the parts of the run want back, as JSON."""
        part = self._folder / f".part-{step:06d}"
        part.mkdir()
        fill(part)
        state = {
            "format": FORMAT,
            "step": step,
            "digest": digest(self._config),
            "config": self._config,
            "parts": dict(parts),
        }
        (part / STATE).write_text(json.dumps(state, allow_nan=False), encoding="utf-8")
        return self._place(part, f"step-{step:06d}", step=step, metric=metric)

    def add_journal(self, base: Path, files: Iterable[Path], *, step: int) -> Path:
        """The checkpoint `base` of `step` again, with rollouts that were sampled after it. Its files are
        links: only the rollouts cost space and upload."""
        names = sorted(files)
        part = self._folder / f".part-{names[-1].stem}"
        link_tree(base, part, without=JOURNAL)
        (part / JOURNAL).mkdir()
        for file in names:
            link(file, part / JOURNAL / file.name)
        return self._place(part, f"step-{step:06d}+{names[-1].stem}", step=step, metric=None)

    def load(self, folder: Path) -> Checkpoint:
        try:
            state = json.loads((folder / STATE).read_bytes())
            if state["format"] != FORMAT:
                raise ValueError(f"its format is {state['format']}, this engine reads {FORMAT}")
            step, config, parts = int(state["step"]), state["config"], state["parts"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{folder} is not a checkpoint of this engine: {error}",
                "Start without it, or name the folder of a checkpoint (`step-000020`).",
            ) from error
        if digest(config) != digest(self._config):
            raise CheckpointError(
                f"the checkpoint {folder.name} was made by another configuration: "
                f"{'; '.join(_differences(config, self._config))}",
                "Give this run a folder for checkpoints of its own, or set back what was changed.",
            )
        return Checkpoint(folder, step, parts)

    def _place(self, part: Path, name: str, *, step: int, metric: float | None) -> Path:
        sync_tree(part)
        target = self._folder / name
        aside = self._folder / f".part-old-{name}"
        if target.exists():
            target.rename(aside)
        part.rename(target)
        sync_folder(self._folder)
        shutil.rmtree(aside, ignore_errors=True)
        self._events.checkpoint(target, step=step, metric=metric)
        self._written = [(path, at) for path, at in self._written if path != target]
        self._written.append((target, self._clock()))
        self._rotate()
        return target

    def _rotate(self) -> None:
        linger_s = LINGER_S if self._events.watched else 0.0
        while len(self._written) > self._keep and self._clock() - self._written[0][1] >= linger_s:
            shutil.rmtree(self._written.pop(0)[0], ignore_errors=True)

    def adopt(self) -> None:
        """Take over those that an earlier process left here, so that they are rotated too."""
        self._written = [(path, float("-inf")) for path in found(self._folder)]


def found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first by what they hold: step, then rollouts."""
    return sorted(path for path in folder.glob("step-*") if (path / STATE).is_file())


def sync_tree(root: Path) -> None:
    for parent, _, names in os.walk(root):
        for name in names:
            with open(os.path.join(parent, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))


def link_tree(source: Path, target: Path, *, without: str = "") -> None:
    """The same files under another name, copied where the file system has no links."""
    shutil.copytree(source, target, copy_function=link, ignore=shutil.ignore_patterns(without))


def link(source: Path | str, target: Path | str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _differences(old: Config, new: Config) -> list[str]:
    """`learning_rate was 0.0001 and is 0.001`, for each key that counts."""
    said = []
    for path, before, after in _walk(old, new, ""):
        if path.partition(".")[0] not in FREE:
            said.append(f"{path} was {_short(before)} and is {_short(after)}")
    shown = said[:5]
    return [*shown, f"and {len(said) - 5} more"] if len(said) > 5 else shown


def _walk(old: Any, new: Any, path: str) -> Iterable[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _walk(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    elif old != new:
        yield path, old, new


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
