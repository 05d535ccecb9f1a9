"""A call inside the instance: its arguments as they came, and its result as it leaves."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corral.functions import serialize as codec
from corral.functions.serialize import Pieces
from corral.instance.web_functions import WEB, answer, arguments, piece

Encoded = tuple[str, bytes | Pieces]


@dataclass(eq=False)
class RunnerCall:
    id: str
    attempt: int
    function: str
    format: str
    args: bytes | memoryview
    is_async: bool
    is_generator: bool
    # Of a web function, as it was written.
    path: str | None = None
    # A form of plain results that the caller knows beside the first.
    reads: str | None = None
    began: float = 0.0
    thread: int | None = None
    task: asyncio.Task[None] | None = None
    cancelled: bool = False
    is_web: bool = False

    @property
    def ran_s(self) -> float:
        return time.monotonic() - self.began if self.began else 0.0

    def arguments(self, fn: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
        """Once: the bytes are let go."""
        data, self.args = self.args, b""
        if self.format == WEB:
            self.is_web = True
            return [], arguments(fn, bytes(data), self.path)
        args, kwargs = codec.decode(self.format, data)
        return args, kwargs

    def result(self, value: Any) -> Encoded:
        return (WEB, answer(value)) if self.is_web else self.encoded(value)

    def chunk(self, value: Any) -> Encoded:
        return piece(value) if self.is_web else self.encoded(value)

    def encoded(self, value: Any) -> Encoded:
        _check_given(value, self.function)
        named = self.reads == codec.NAMED
        return codec.encode_pieces(value, what=f"the result of {self.function}()", named=named)


def _check_given(value: Any, name: str) -> None:
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise TypeError(
            f"{name}() returned a generator; decorate the generator function itself, and use .stream()"
        )
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(f"{name}() returned a coroutine; write it as async def, or await it")
