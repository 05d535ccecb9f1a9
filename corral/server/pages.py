"""Pages of lists: how long they are, and the cursors that callers send back for the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Protocol, TypeVar

from fastapi import Query

from corral.domain.errors import InvalidInput
from corral.domain.ids import is_id, is_name

T = TypeVar("T")
C = TypeVar("C")
Limit = Annotated[int, Query(ge=1, le=1000)]
# Of pages whose items are small.
LongLimit = Annotated[int, Query(ge=1, le=10_000)]
NameCursor = Annotated[str | None, Query(max_length=200)]


class Dated(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> float: ...


def next_page(found: Sequence[T], limit: int, cursor_of: Callable[[T], C]) -> C | None:
    """The cursor of the last item; None if the page is not full, so that nothing can follow."""
    return cursor_of(found[-1]) if len(found) == limit else None


def by_time(item: Dated) -> str:
    """The moment at which something was made, and its id."""
    return f"{item.created_at!r}_{item.id}"


def parse_time_cursor(text: str | None, kind: str, as_id: Callable[[str], T]) -> tuple[float, T] | None:
    if not text:
        return None
    at, _, ident = text.partition("_")
    try:
        when = float(at)
    except ValueError:
        when = float("nan")
    if not abs(when) < 1e15 or not is_id(ident, kind):
        raise not_a_cursor(text)
    return when, as_id(ident)


def parse_id_cursor(text: str | None, kind: str, as_id: Callable[[str], T]) -> T | None:
    """An id of this kind (its first letter)."""
    if text and not is_id(text, kind):
        raise not_a_cursor(text)
    return as_id(text) if text else None


def parse_name_cursor(text: str | None) -> tuple[str, str] | None:
    """`PROJECT/NAME`."""
    if text is None:
        return None
    project, _, name = text.partition("/")
    if not is_name(project) or not is_name(name):
        raise not_a_cursor(text)
    return project, name


def not_a_cursor(text: str) -> InvalidInput:
    return InvalidInput(f"not a cursor: {text[:60]!r}", hint="Use the `next` of an earlier page.")
