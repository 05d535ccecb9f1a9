"""What stands for objects of classes that are not loaded here, where a value is only to be shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_allowed: ContextVar[bool] = ContextVar("stand_ins", default=False)


class StandIn:
    """The name of a class and what an object of it held: plain data, which prints as the object might."""

    def __init__(self, name: str, form: str, parts: Any) -> None:
        self.name = name
        self.form = form
        self.parts = parts.get("__dict__", parts) if form == "model" else parts

    def __repr__(self) -> str:
        match self.form:
            case "enum":
                return f"{self.name}.{self.parts}" if isinstance(self.parts, str) else self._of(self.parts)
            case "tuple_of":
                return self._of(self.parts)
            case "error":
                return self._of(self.parts[0])
        return f"{self.name}({', '.join(f'{key}={part!r}' for key, part in self.parts.items())})"

    def _of(self, parts: list[Any]) -> str:
        return f"{self.name}({', '.join(map(repr, parts))})"


def are_allowed() -> bool:
    return _allowed.get()


@contextmanager
def stand_ins() -> Iterator[None]:
    """Within it, values of classes that are not loaded here can be read as well."""
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)
