"""Events, log segments, small objects, and the marks of loops."""

from __future__ import annotations

import re

from corral.domain.artifacts import NamedObject, Segment
from corral.domain.errors import InvalidInput
from corral.domain.ids import RunId
from corral.domain.runs import Event
from corral.store.connection import Connection
from corral.store.rows import EVENT, OBJECT, SEGMENT

_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
_LAST_CHARACTER = "\U0010ffff"


class SqlRecords:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def append_event(self, event: Event) -> None:
        self._db.put("event_insert", EVENT, event)

    def events(self, run_id: RunId, *, after: int, limit: int) -> list[Event]:
        rows = self._db.all("event_page", {"run_id": run_id, "after": after, "limit": limit})
        return [EVENT.read(row) for row in rows]

    def feed(self, after: str, limit: int) -> tuple[list[Event], str]:
        """Events of all runs after a cursor (empty: from the beginning), and the next cursor.

        An event that commits late is never skipped.
        """
        xid, seq = _parse_cursor(after) if after else (0, 0)
        rows = self._db.all("event_feed", {"xid": xid, "seq": seq, "limit": limit})
        if not rows:
            return [], after
        *_, last_xid, last_seq = rows[-1]
        return [EVENT.read(row[:-2]) for row in rows], f"{last_xid}.{last_seq}"

    def feed_end(self) -> str:
        """A cursor from which `feed` gives what commits from now on."""
        ((xid, seq),) = self._db.all("event_feed_end", {})
        return f"{xid}.{seq}"

    def segment(self, segment: Segment) -> None:
        """Insert or replace."""
        self._db.put("segment_put", SEGMENT, segment)
        self._db.tell("segment_mark_run", {"run_id": segment.run_id, "logged": 1})

    def segments(self, run_id: RunId, stream: str) -> list[Segment]:
        rows = self._db.all("segment_all", {"run_id": run_id, "stream": stream})
        return [SEGMENT.read(row) for row in rows]

    def last_segment(self, run_id: RunId, attempt: int, rank: int, stream: str) -> Segment | None:
        params = {"run_id": run_id, "attempt": attempt, "rank": rank, "stream": stream}
        row = self._db.one("segment_last", params)
        return None if row is None else SEGMENT.read(row)

    def runs_gone(self, limit: int) -> list[RunId]:
        """Runs that were removed and still have segments."""
        return [RunId(row[0]) for row in self._db.all("segment_runs_gone", {"limit": limit})]

    def delete_segments(self, run_id: RunId) -> int:
        self._db.tell("segment_mark_run", {"run_id": run_id, "logged": 0})
        self._db.tell("segment_run_gone_delete", {"run_id": run_id})
        return self._db.run("segment_delete", {"run_id": run_id})

    def put_object(self, item: NamedObject) -> None:
        self._db.put("object_put", OBJECT, item)

    def object(self, run_id: RunId, key: str) -> NamedObject | None:
        row = self._db.one("object_get", {"run_id": run_id, "key": key})
        return None if row is None else OBJECT.read(row)

    def objects(self, run_id: RunId, prefix: str, *, after: str, limit: int) -> list[str]:
        beyond = prefix + _LAST_CHARACTER
        params = {"run_id": run_id, "prefix": prefix, "beyond": beyond, "after": after, "limit": limit}
        return [str(row[0]) for row in self._db.all("object_keys", params)]

    def object_count(self, run_id: RunId) -> int:
        (row,) = self._db.all("object_count", {"run_id": run_id})
        return int(row[0])

    def usage(self) -> list[tuple[str, float, float]]:
        """(project, seconds used, as of when) for fair share."""
        return [(row[0], row[1], row[2]) for row in self._db.all("usage_all", {})]

    def put_usage(self, project: str, used_s: float, at: float) -> None:
        self._db.tell("usage_put", {"project": project, "used_s": used_s, "at": at})

    def tick(self, loop: str, at: float) -> None:
        self._db.tell("loop_tick", {"loop": loop, "at": at})


def _parse_cursor(text: str) -> tuple[int, int]:
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise InvalidInput(
            f"not a cursor of the event feed: {text[:80]!r}",
            hint="Give the cursor of the last answer as it was, or none to begin anew.",
        )
    return int(match[1]), int(match[2])
