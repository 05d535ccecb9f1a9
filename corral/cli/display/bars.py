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
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TransferSpeedColumn,
)

from corral.cli.display.render import console
from corral.cli.display.visible import visible_line
from corral.client.submit.prepare import ProgressListener

_TEXT = TextColumn("{task.description}", markup=False)


class Bar(ProgressListener):
    """One bar that begins anew with each step; counts bytes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, visible=False)

    def step(self, text: str) -> None:
        shown = visible_line(text)
        self._progress.update(self._task, description=shown, completed=0, total=None, visible=True)

    def moved(self, done: int, total: int, files: int) -> None:
        self._progress.update(self._task, completed=done, total=total, visible=True)


class _DelayedProgress(Progress):
    """Not shown before `show_at`: what is over at once needs no bar."""

    show_at = 0.0

    def get_renderables(self) -> Iterable[RenderableType]:
        return super().get_renderables() if time.monotonic() >= self.show_at else ()


def _progress(*columns: ProgressColumn) -> _DelayedProgress:
    err = console(stderr=True)
    return _DelayedProgress(*columns, console=err, transient=True, disable=not err.is_terminal)


@contextmanager
def byte_bar() -> Iterator[Bar]:
    with _progress(_TEXT, BarColumn(), DownloadColumn(), TransferSpeedColumn()) as progress:
        yield Bar(progress)


@contextmanager
def count_bar(text: str, total: int | None, *, after_s: float = 1.0) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with how many are done. Without a total it counts up."""
    progress = _progress(_TEXT, BarColumn(), MofNCompleteColumn())
    progress.show_at = time.monotonic() + after_s
    with progress:
        task = progress.add_task(visible_line(text), total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def step_bar() -> Iterator[Bar]:
    """For work of unknown size: it shows the step alone."""
    with _progress(SpinnerColumn(), _TEXT) as progress:
        yield Bar(progress)
