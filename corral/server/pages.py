"""Pages of lists: how long they are, and the cursors that callers send back for the next one.

A page ends with as many items as were asked for, or where it has so many bytes: items of some lists may be
large, and a thousand of them would fill the server's memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypeVar

from fastapi import Query, Response
from pydantic import BaseModel

from corral.domain.errors import InvalidInput
from corral.domain.ids import is_id, is_name

T = TypeVar("T")
C = TypeVar("C")
Limit = Annotated[int, Query(ge=1, le=1000)]
# Of pages whose items are mostly small.
LongLimit = Annotated[int, Query(ge=1, le=10_000)]
NameCursor = Annotated[str | None, Query(max_length=200)]


# A page that has so many bytes as JSON ends, whatever its limit.
PAGE_BYTES = 4 << 20


class Dated(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> float: ...


def next_page(found: Sequence[T], limit: int, cursor_of: Callable[[T], C]) -> C | None:
    """The cursor of the last item; None if the page is not full, so that nothing can follow."""
    return cursor_of(found[-1]) if len(found) == limit else None


@dataclass(frozen=True)
class FilledPage(Generic[T]):
    """`shown` are the rows that are on it, each as JSON. If it is `full`, more may follow its last row."""

    shown: Sequence[tuple[T, bytes]]
    last: T | None
    full: bool

    def as_json(self, **more: object) -> bytes:
        """An object with the `items`, and what else the answer says."""
        items = b",".join(text for _, text in self.shown)
        return b'{"items":[%s],%s' % (items, json.dumps(more).encode()[1:])

    def with_next(self, cursor_of: Callable[[T], str | int], **more: object) -> bytes:
        """An answer whose `next` is the cursor of the last row; None if nothing can follow."""
        last = self.last if self.full else None
        return self.as_json(next=None if last is None else cursor_of(last), **more)


def filled(
    rows: Iterable[T], limit: int, view: Callable[[T], BaseModel | None], *, most_bytes: int = PAGE_BYTES
) -> FilledPage[T]:
    """Take rows until there are `limit`, or those with a view have `most_bytes`. Not for the event loop."""
    shown: list[tuple[T, bytes]] = []
    last, count, size = None, 0, 0
    for row in rows:
        last, count = row, count + 1
        if (item := view(row)) is not None:
            shown.append((row, item.model_dump_json().encode()))
            size += len(shown[-1][1])
        if count >= limit or size >= most_bytes:
            return FilledPage(shown, last, full=True)
    return FilledPage(shown, last, full=False)


def in_portions(
    read: Callable[[C | None, int], Sequence[T]],
    place_of: Callable[[T], C],
    *,
    after: C | None,
    limit: int,
    portion: int,
) -> Iterator[T]:
    """Up to `limit` rows that may be large, a portion at a time: where a page is full, no more are read."""
    while limit > 0:
        asked = min(portion, limit)
        rows = read(after, asked)
        yield from rows
        if len(rows) < asked:
            return
        limit -= asked
        after = place_of(rows[-1])


def within_bytes(rows: Iterable[T], size_of: Callable[[T], int]) -> Iterator[T]:
    """Rows until they have PAGE_BYTES together."""
    size = 0
    for row in rows:
        yield row
        size += size_of(row)
        if size >= PAGE_BYTES:
            return


def json_answer(text: bytes | str) -> Response:
    """For what was rendered outside the event loop already."""
    return Response(text, media_type="application/json")


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
