"""Pages end with their bytes too, and what is behind their end is not read."""

from __future__ import annotations

import json

import pytest

from corral.server.pages import PAGE_BYTES, filled, in_portions, within_bytes
from corral.wire.base import Answer


class Item(Answer):
    n: int
    text: str


class Table:
    """Numbers from 1, as a table gives them; remembers how many of them were read."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.read_so_far = 0
        self.asked: list[int] = []

    def read(self, after: int | None, limit: int) -> list[int]:
        first = (after or 0) + 1
        found = list(range(first, min(first + limit, self._count + 1)))
        self.read_so_far += len(found)
        self.asked.append(limit)
        return found


def large(n: int) -> Item:
    return Item(n=n, text="x" * (PAGE_BYTES // 10))


def test_a_page_of_large_items_ends_early_and_the_next_one_goes_on() -> None:
    """ATK-27, ATK-31."""
    table, seen, after = Table(25), list[int](), None
    while True:
        rows = in_portions(table.read, int, after=after, limit=1000, portion=4)
        page = json.loads(filled(rows, 1000, large).with_next(int))
        seen += [item["n"] for item in page["items"]]
        after = page["next"]
        if after is None:
            break
        assert len(page["items"]) == 10
    assert seen == list(range(1, 26))


def test_what_is_behind_the_end_of_a_page_is_not_read() -> None:
    """ATK-27, ATK-31: a thousand rows of 1 MiB were read for a page, however many of them it then had."""
    table = Table(1000)
    filled(in_portions(table.read, int, after=None, limit=1000, portion=4), 1000, large)
    assert table.read_so_far == 12
    some = within_bytes(in_portions(table.read, int, after=None, limit=1000, portion=4), lambda n: PAGE_BYTES)
    assert list(some) == [1]
    assert table.read_so_far == 16


@pytest.mark.parametrize(("there", "limit", "following"), [(3, 5, None), (5, 5, 5), (9, 5, 5), (0, 5, None)])
def test_a_page_of_small_items_has_as_many_as_were_asked_for(
    there: int, limit: int, following: int | None
) -> None:
    table = Table(there)
    rows = in_portions(table.read, int, after=None, limit=limit, portion=2)
    page = json.loads(filled(rows, limit, lambda n: Item(n=n, text="")).with_next(int))
    assert [item["n"] for item in page["items"]] == list(range(1, min(there, limit) + 1))
    assert page["next"] == following
    assert sum(table.asked) <= max(limit, 2)


def test_rows_that_are_not_shown_count_towards_the_limit_of_a_page() -> None:
    rows = iter(range(1, 100))
    page = filled(rows, 10, lambda n: None if n % 2 else Item(n=n, text=""))
    assert [n for n, _ in page.shown] == [2, 4, 6, 8, 10]
    assert (page.last, page.full) == (10, True)
