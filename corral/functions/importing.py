"""Calls that a file makes while it is imported: refused, because an instance imports the file too."""

from __future__ import annotations

import ast
import linecache
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from corral.errors import FunctionError
from corral.functions.backend import (
    Backend,
    CallStatus,
    EndpointTarget,
    OutgoingCall,
    Payload,
    backend,
    set_backend,
)
from corral.functions.member import Member


class CallWhileImporting(FunctionError):
    """A file calls a function at its top level: whoever imports the file would make the call again."""

    hint = 'Put what the program does under `if __name__ == "__main__":`.'

    def __init__(self, file: str, line: int) -> None:
        text = linecache.getline(file, line).strip()
        super().__init__(
            f"{Path(file).name}, line {line}, makes a call while the file is imported: `{text}`. An instance "
            f'imports the file too, and would call itself. Put it under `if __name__ == "__main__":`'
        )


def refuse_unguarded(member: Member) -> None:
    """CallWhileImporting if the line that calls it here is one that importing its module runs as well."""
    home = member.home()
    module = sys.modules.get(member.module)
    if home is None or module is None:
        return
    frame = next((one for one in _module_frames() if one.f_globals is vars(module)), None)
    if frame is not None and _always_runs(home.file, frame.f_lineno):
        raise CallWhileImporting(str(home.file), frame.f_lineno)


@contextmanager
def importing() -> Iterator[None]:
    """Within it, no call reaches a server; what is deployed may be looked up, and volumes are there."""
    before = set_backend(None)
    set_backend(_ImportingBackend(before))
    try:
        yield
    finally:
        set_backend(before)


class _ImportingBackend:
    """Stands for a backend while a file is imported."""

    def __init__(self, real: Backend | None) -> None:
        self._real = real

    def find(self, member: Member) -> EndpointTarget:
        _refuse()

    def look_up(self, project: str | None, name: str) -> tuple[EndpointTarget, dict[str, Any], str]:
        return self._behind().look_up(project, name)

    def forget(self, target: EndpointTarget) -> None:
        _refuse()

    def make(self, target: EndpointTarget, asks: Sequence[OutgoingCall], wait_s: float) -> list[CallStatus]:
        _refuse()

    def collect(self, call_ids: Sequence[str], wait_s: float) -> list[CallStatus]:
        _refuse()

    def get(self, call_id: str, wait_s: float, within_s: float | None = None) -> CallStatus:
        _refuse()

    def chunks(
        self, call_id: str, after: int, wait_s: float
    ) -> tuple[dict[int, Payload], bool, dict[str, Any] | None]:
        _refuse()

    def cancel(self, call_id: str) -> None:
        _refuse()

    def logs(self, call_id: str) -> Iterator[str]:
        _refuse()

    def volume(self, name: str, project: str | None, what: str, given: dict[str, Any]) -> dict[str, Any]:
        return self._behind().volume(name, project, what, given)

    def _behind(self) -> Backend:
        if self._real is None:
            set_backend(None)
            self._real = backend()
            set_backend(self)
        return self._real


def _refuse() -> NoReturn:
    frame = next(_module_frames(), None)
    if frame is None:
        raise CallWhileImporting("the file", 0)
    raise CallWhileImporting(frame.f_code.co_filename, frame.f_lineno)


def _module_frames() -> Iterator[FrameType]:
    """Top levels of files that are under way, the innermost first: in this thread, then in the main one."""
    frames = sys._current_frames()
    for thread in dict.fromkeys((threading.get_ident(), threading.main_thread().ident)):
        frame = frames.get(thread or 0)
        while frame is not None:
            if frame.f_code.co_name == "<module>":
                yield frame
            frame = frame.f_back


def _always_runs(file: Path, line: int) -> bool:
    """Whether importing the file runs the line: it stands at the top level, under no condition."""
    body: Sequence[ast.stmt] = ast.parse(file.read_bytes()).body
    while True:
        found = next((one for one in body if one.lineno <= line <= (one.end_lineno or one.lineno)), None)
        if isinstance(found, ast.For | ast.With | ast.AsyncFor | ast.AsyncWith | ast.Try):
            body = found.body
            continue
        if found is None or isinstance(found, ast.If | ast.While | ast.Match):
            return False
        return not any(isinstance(part, ast.BoolOp | ast.IfExp) for part in ast.walk(found))
