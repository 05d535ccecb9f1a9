"""Progress bars on stderr, on a terminal only; elsewhere nothing moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TransferSpeedColumn,
)

from corral.cli.display.render import console
from corral.client.submit.prepare import ProgressListener


class Bar(ProgressListener):
    """One bar that begins anew with each step; counts bytes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, visible=False)

    def step(self, text: str) -> None:
        self._progress.update(self._task, description=text, completed=0, total=None, visible=True)

    def moved(self, done: int, total: int, files: int) -> None:
        self._progress.update(self._task, completed=done, total=total, visible=True)


@contextmanager
def byte_bar() -> Iterator[Bar]:
    err = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(
        *columns, TransferSpeedColumn(), console=err, transient=True, disable=not err.is_terminal
    ) as progress:
        yield Bar(progress)


class _DelayedProgress(Progress):
    """Shown once the work has lasted `after_s`: what is over at once needs no bar."""

    show_at = 0.0

    def get_renderables(self) -> Iterable[RenderableType]:
        return super().get_renderables() if time.monotonic() >= self.show_at else ()


@contextmanager
def count_bar(text: str, total: int | None, *, after_s: float = 1.0) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with how many are done. Without a total it counts up."""
    err = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    progress = _DelayedProgress(*columns, console=err, transient=True, disable=not err.is_terminal)
    progress.show_at = time.monotonic() + after_s
    with progress:
        task = progress.add_task(text, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def step_bar() -> Iterator[Bar]:
    """For work whose size is not known: only the step is told."""
    err = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        yield Bar(progress)
