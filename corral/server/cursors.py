"""Cursors of pages, as callers send them back: each names the last item of the page before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from corral.domain.errors import InvalidInput
from corral.domain.ids import is_id, is_name

T = TypeVar("T")


def _not_a_cursor(text: str) -> InvalidInput:
    return InvalidInput(f"not a cursor: {text[:60]!r}", hint="Use the `next` of an earlier page.")


def id_cursor(text: str | None, kind: str) -> str | None:
    """An id of this kind (its first letter)."""
    if text and not is_id(text, kind):
        raise _not_a_cursor(text)
    return text or None


def name_cursor(text: str | None) -> tuple[str, str] | None:
    """`PROJECT/NAME`."""
    if text is None:
        return None
    project, _, name = text.partition("/")
    if not is_name(project) or not is_name(name):
        raise _not_a_cursor(text)
    return project, name


def time_cursor(at: float, ident: str) -> str:
    """The moment at which something was made, and its id."""
    return f"{at!r}_{ident}"


def parse_time_cursor(text: str | None, kind: str, as_id: Callable[[str], T]) -> tuple[float, T] | None:
    if not text:
        return None
    at, _, ident = text.partition("_")
    try:
        when = float(at)
    except ValueError:
        when = float("nan")
    if not abs(when) < 1e15 or not is_id(ident, kind):
        raise _not_a_cursor(text)
    return when, as_id(ident)
