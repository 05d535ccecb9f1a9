"""Groups of runs, and the places that a group gives its runs."""

from __future__ import annotations

import math

from corral.domain.ids import GroupId, RunId
from corral.domain.runs.runs import EndedRun, Group, GroupRun, MeasuredRun
from corral.store.rows import GROUP
from corral.store.table import Table, given

# Groups may share a name; nobody pages through more of them than this.
MAX_FOUND = 100
# Failures that begin alike are the same; the rest of what ten thousand runs said is not read.
DETAIL_CHARS = 2000


class SqlGroups(Table):
    def insert(self, group: Group) -> None:
        self._db.put("group_insert", GROUP, group)

    def get(self, group_id: GroupId) -> Group | None:
        return self._one(GROUP, "group_get", id=group_id)

    def lock(self, group_id: GroupId) -> Group | None:
        """Like `get`, and no other transaction gives places in the group until this one ends."""
        return self._one(GROUP, "group_lock", id=group_id)

    def try_lock(self, group_id: GroupId) -> Group | None:
        """Like `lock`, but None as well if another transaction holds the group."""
        return self._one(GROUP, "group_try_lock", id=group_id)

    def limit(self, group_id: GroupId, max_running: int | None) -> None:
        self._tell("group_limit", id=group_id, max_running=max_running)

    def delete_empty(self, group_id: GroupId) -> None:
        """Delete the group if none of its runs is left."""
        self._tell("group_delete_empty", id=group_id)

    def find(self, text: str, project: str | None) -> list[Group]:
        """Groups with this id or name, the newest first."""
        return self._all(GROUP, "group_find", text=text, limit=MAX_FOUND, **given(project=project))

    def page(
        self, project: str | None, *, after: tuple[float, GroupId] | None, limit: int, text: str | None = None
    ) -> list[Group]:
        """Newest first; `text` is the id or name that they have."""
        at, last = after or (math.inf, "")
        which = given(project=project, text=text)
        return self._all(GROUP, "group_page", after_created_at=at, after_id=last, limit=limit, **which)

    def states(self, group_id: GroupId) -> dict[str, int]:
        """How many of its runs are in each state."""
        return {row[0]: row[1] for row in self._db.all("group_states", {"group_id": group_id})}

    def ended(self, group_id: GroupId, *, after: str, limit: int) -> list[EndedRun]:
        """Its runs that failed or were cancelled, by id, each with the beginning of its detail."""
        params = {"group_id": group_id, "after": after, "limit": limit, "chars": DETAIL_CHARS}
        return [EndedRun(*row) for row in self._db.all("group_ended", params)]

    def runs(self, group_id: GroupId, *, after: tuple[float, RunId] | None, limit: int) -> list[GroupRun]:
        """With what they were given and what they measured, the oldest first."""
        at, last = after or (-math.inf, "")
        params = {"group_id": group_id, "after_created_at": at, "after_id": last, "limit": limit}
        return [GroupRun(*row) for row in self._db.all("group_runs", params)]

    def metrics(
        self, group_id: GroupId, *, after: tuple[float, RunId] | None, limit: int
    ) -> list[MeasuredRun]:
        """Its runs that measured something, the oldest first."""
        at, last = after or (-math.inf, "")
        params = {"group_id": group_id, "after_created_at": at, "after_id": last, "limit": limit}
        return [MeasuredRun(*row) for row in self._db.all("group_metrics", params)]

    def running(self, group_id: GroupId, limit: int) -> int:
        """How many of its runs are with a host, counted up to `limit`."""
        return self._number("group_running", group_id=group_id, limit=limit)

    def queued(self, group_id: GroupId, limit: int) -> list[RunId]:
        """Its queued runs, the youngest first."""
        return self._column("group_queued", group_id=group_id, limit=limit)

    def placed(self, group_id: GroupId, *, but: RunId | None, limit: int) -> int:
        """How many of its runs have a place, counted up to `limit` and without `but`.

        A run has a place if it is queued or further and not final, or waits between two tries.
        """
        return self._number("group_placed", group_id=group_id, but=but or "", limit=limit)

    def waiting(self, group_id: GroupId, hold_reason: str, limit: int) -> list[RunId]:
        """Its runs that are held for this reason, the oldest first."""
        return self._column("group_waiting", group_id=group_id, hold_reason=hold_reason, limit=limit)

    def next_with_held(self, after: str) -> GroupId | None:
        """The next group by id that has a held run."""
        row = self._db.one("group_with_held_after", {"after": after})
        return None if row is None else GroupId(row[0])
