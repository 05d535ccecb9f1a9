"""Events of runs, and the feed of all of them."""

from __future__ import annotations

import re

from corral.domain.errors import InvalidInput
from corral.domain.ids import RunId
from corral.domain.runs.runs import Event
from corral.store.rows import EVENT
from corral.store.table import Table

_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


class SqlEvents(Table):
    def append(self, event: Event) -> None:
        self._db.put("event_insert", EVENT, event)

    def of_run(self, run_id: RunId, *, after: int, limit: int) -> list[Event]:
        return self._all(EVENT, "event_page", run_id=run_id, after=after, limit=limit)

    def feed(self, after: str, limit: int) -> tuple[list[Event], str]:
        """Events of all runs after a cursor (empty: from the beginning), and the next cursor.

        An event that commits late is never skipped.
        """
        found = self.feed_with_cursors(after, limit)
        return [event for event, _ in found], found[-1][1] if found else after

    def feed_with_cursors(self, after: str, limit: int) -> list[tuple[Event, str]]:
        """Like `feed`, each event with the cursor behind it."""
        xid, seq = _parse_cursor(after) if after else (0, 0)
        rows = self._db.all("event_feed", {"xid": xid, "seq": seq, "limit": limit})
        return [(EVENT.read(row[:-2]), f"{row[-2]}.{row[-1]}") for row in rows]

    def feed_end(self) -> str:
        """A cursor from which `feed` gives what commits from now on."""
        ((xid, seq),) = self._db.all("event_feed_end", {})
        return f"{xid}.{seq}"


def _parse_cursor(text: str) -> tuple[int, int]:
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise InvalidInput(
            f"not a cursor of the event feed: {text[:80]!r}",
            hint="Give the cursor of the last answer as it was, or none to begin anew.",
        )
    return int(match[1]), int(match[2])
