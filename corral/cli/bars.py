"""Progress bars on stderr, on a terminal only; elsewhere nothing moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TransferSpeedColumn,
)

from corral.cli.render import console
from corral.client.prepare import Listener


class Bar(Listener):
    """One bar that begins anew with each step; counts bytes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, visible=False)

    def step(self, text: str) -> None:
        self._progress.update(self._task, description=text, completed=0, total=None, visible=True)

    def uploading(self, done: int, total: int, files: int) -> None:
        self.moved(done, total)

    def moved(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total, visible=True)


@contextmanager
def byte_bar() -> Iterator[Bar]:
    err = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(
        *columns, TransferSpeedColumn(), console=err, transient=True, disable=not err.is_terminal
    ) as progress:
        yield Bar(progress)


@contextmanager
def step_bar() -> Iterator[Bar]:
    """For work whose size is not known: only the step is told."""
    err = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        yield Bar(progress)
