"""Runs and what they are submitted with."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter

from corral.domain.errors import NotFound
from corral.domain.ids import Digest, GroupId, LeaseId, RunId, is_id
from corral.domain.manifests import ManifestRun
from corral.domain.queue import Lane, QueuedRun, ReadyRun, WaitingRun
from corral.domain.runs import Group, GroupEnd, Parent, Run, RunFilter, Submission
from corral.store.connection import Connection
from corral.store.rows import GROUP, KNOWN, PARENT, RUN, SUBMISSION

# Groups may share a name; nobody pages through more of them than this.
_MAX_GROUPS = 100
_TABLES_OF_A_RUN = (
    *("run_specs", "attempts", "ranks", "leases", "events", "objects", "run_inputs", "parents"),
    # Its segments stay until their files are deleted.
    *("unsettled", "logs", "runs"),
)


class SqlRuns:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def insert(self, run: Run, spec: str) -> None:
        self._db.put("run_insert", RUN, run)
        self._db.tell("spec_insert", {"run_id": run.id, "spec": spec})

    def get(self, run_id: RunId) -> Run | None:
        row = self._db.one("run_get", {"id": run_id})
        return None if row is None else RUN.read(row)

    def lock(self, run_id: RunId) -> Run | None:
        """Like `get`, and no other transaction changes the run until this one ends."""
        row = self._db.one("run_lock", {"id": run_id})
        return None if row is None else RUN.read(row)

    def lock_all(self, ids: Iterable[RunId]) -> None:
        """Hold them against change, in the one order in which whoever locks several must."""
        self._db.one("run_lock_all", {"ids": json.dumps([*ids])})

    def try_lock(self, run_id: RunId) -> tuple[Run, str] | None:
        """Like `lock`, with the spec, but None as well if another transaction holds the run: nobody waits
        in a circle."""
        row = self._db.one("run_try_lock", {"id": run_id})
        return None if row is None else (RUN.read(row[:-1]), str(row[-1]))

    def save(self, run: Run) -> None:
        """Write every column that may change after insert."""
        self._db.put("run_save", RUN, run)

    def save_policy(self, run: Run, spec: str) -> None:
        """Write what `save` does not: the columns that are not part of a run's identity, and its spec."""
        self._db.put("run_save_policy", RUN, run)
        self.put_spec(run.id, spec)

    def of_manifest(self, project: str, manifest: str) -> dict[Digest, ManifestRun]:
        """By identity, the newest generation of every run that the manifest ever declared."""
        rows = self._db.all("run_of_manifest", {"project": project, "manifest": manifest})
        # In the order of generations, so that the newest is the one that stays.
        return {row[1]: KNOWN.read(row) for row in rows}

    def spec(self, run_id: RunId) -> str:
        row = self._db.one("spec_get", {"run_id": run_id})
        if row is None:
            raise NotFound(f"there is no run {run_id}")
        return str(row[0])

    def put_spec(self, run_id: RunId, spec: str) -> None:
        self._db.tell("spec_save", {"run_id": run_id, "spec": spec})

    def delete(self, run_id: RunId) -> None:
        """The run and all that is its own, but for artifacts and log segments."""
        for table in _TABLES_OF_A_RUN:
            self._db.tell(f"run_delete_{table}", {"run_id": run_id})

    def by_prefix(self, prefix: str, project: str | None, limit: int) -> list[RunId]:
        # Ids are ASCII, so everything that begins with the prefix sorts below it with a tilde.
        params: dict[str, object] = {"low": prefix, "high": prefix + "~", "limit": limit}
        if project is not None:
            params["project"] = project
        return [RunId(row[0]) for row in self._db.all("run_by_prefix", params)]

    def page(self, where: RunFilter, *, after: tuple[float, RunId] | None, limit: int) -> list[Run]:
        """Newest first; `after` is the last of the page before."""
        base: dict[str, object] = {"limit": limit}
        # Nothing is created after the end of time, so without `after` the page begins at the newest.
        base["after_created_at"], base["after_id"] = after or (math.inf, "")
        if where.label is not None:
            base |= {"label": where.label[0], "label_value": where.label[1]}
        pages = [
            [RUN.read(row) for row in self._db.all("run_page", base | scope)] for scope in self._scopes(where)
        ]
        merged = heapq.merge(*pages, key=lambda run: (run.created_at, run.id), reverse=True)
        return list(islice(merged, limit))

    def _scopes(self, where: RunFilter) -> Iterator[dict[str, str]]:
        """Queries that together are the filter, each a range of one index."""
        project = {} if where.project is None else {"check_project": where.project}
        states = [{"check_state": state} for state in where.states] or [{}]
        name = {} if where.name is None else {"name": where.name}
        if where.schedule is not None:
            groups = [None] if where.group is None else self.find_groups(where.group, where.project)
            for group_id in groups:
                group = {} if group_id is None else {"group_id": str(group_id)}
                for schedule_id in self._schedules(where.schedule, where.project):
                    own = {"schedule_id": schedule_id, **group, **name, **project}
                    yield from ({**own, **state} for state in states)
        elif where.group is not None:
            for group_id in self.find_groups(where.group, where.project):
                yield from ({"group_id": group_id, **name, **project, **state} for state in states)
        elif where.name is not None:
            yield from ({"name": where.name, **project, **state} for state in states)
        elif where.states:
            for state_name in where.states:
                projects = [where.project] if where.project is not None else self._projects(state_name)
                yield from ({"state": state_name, "project": name} for name in projects)
        else:
            yield {} if where.project is None else {"project": where.project}

    def _schedules(self, text: str, project: str | None) -> list[str]:
        if is_id(text, "s"):
            # One that was removed still has its runs.
            return [text]
        params: dict[str, object] = {"text": text, "limit": _MAX_GROUPS}
        if project is not None:
            params["project"] = project
        return [str(row[0]) for row in self._db.all("schedule_find", params)]

    def find_groups(self, text: str, project: str | None) -> list[GroupId]:
        """Those with this id or name."""
        params: dict[str, object] = {"text": text, "limit": _MAX_GROUPS}
        if project is not None:
            params["project"] = project
        return [GroupId(row[0]) for row in self._db.all("group_find", params)]

    def page_groups(
        self, project: str | None, *, after: tuple[float, GroupId] | None, limit: int
    ) -> list[Group]:
        """Newest first."""
        params: dict[str, object] = {"limit": limit}
        params["after_created_at"], params["after_id"] = after or (math.inf, "")
        if project is not None:
            params["project"] = project
        return [GROUP.read(row) for row in self._db.all("group_page", params)]

    def group_states(self, group_id: GroupId) -> dict[str, int]:
        """How many of its runs are in each state."""
        return {row[0]: row[1] for row in self._db.all("group_states", {"group_id": group_id})}

    def group_ends(self, group_id: GroupId, limit: int) -> list[GroupEnd]:
        """Why its runs failed or were cancelled, the most frequent first."""
        rows = self._db.all("group_ends", {"group_id": group_id, "limit": limit})
        return [GroupEnd(*row) for row in rows]

    def group_metrics(self, group_id: GroupId, limit: int) -> list[tuple[RunId, str]]:
        """The last metrics of its runs, as JSON."""
        rows = self._db.all("group_metrics", {"group_id": group_id, "limit": limit})
        return [(RunId(row[0]), str(row[1])) for row in rows]

    def _projects(self, state: str) -> Iterator[str]:
        row = self._db.one("state_project_after", {"state": state})
        while row is not None:
            yield row[0]
            row = self._db.one("state_project_after", {"state": state, "after": row[0]})

    def lanes(self) -> list[Lane]:
        """Every lane that has a queued run; costs one index seek per lane, however long it is."""
        return [lane for lane, _ in self.heads()]

    def heads(self) -> list[tuple[Lane, ReadyRun]]:
        """The same, each with its oldest run."""
        heads: list[tuple[Lane, ReadyRun]] = []
        row = self._db.one("lane_first", {})
        while row is not None:
            lane = Lane(*row[:3])
            heads.append((lane, ReadyRun(*row[3:])))
            found = sorted(self._db.all("lane_next", lane._asdict()), key=itemgetter(0))
            row = found[0][1:] if found else None
        return heads

    def ready(self, lane: Lane, *, after: ReadyRun | None, limit: int) -> list[ReadyRun]:
        """The oldest queued runs of a lane, in order."""
        params: dict[str, object] = {**lane._asdict(), "limit": limit}
        if after is not None:
            params |= {"after_ready_at": after.ready_at, "after_id": after.id}
        return [ReadyRun(*row) for row in self._db.all("run_ready", params)]

    def ready_names(self, lane: Lane, *, after: ReadyRun, limit: int) -> list[QueuedRun]:
        """The next queued runs of a lane, with what only the run itself tells a policy."""
        params = {**lane._asdict(), "after_ready_at": after.ready_at, "after_id": after.id, "limit": limit}
        rows = self._db.all("run_ready_names", params)
        return [QueuedRun(ReadyRun(row[0], RunId(row[1])), row[2], row[3]) for row in rows]

    def due_held(self, now: float, limit: int) -> list[RunId]:
        return [RunId(row[0]) for row in self._db.all("run_due_held", {"now": now, "limit": limit})]

    def due_stops(self, now: float, limit: int) -> list[RunId]:
        return [RunId(row[0]) for row in self._db.all("run_due_stops", {"now": now, "limit": limit})]

    def pull_in(self, *, now: float, stop_s: float, backoff_s: float) -> int:
        """For as long as the server was blind nobody could hear of a stop, and the clock may have gone back:
        every stop is due `stop_s` and its grace from now, and no backoff ends later than `backoff_s` from
        now. Return how many were changed."""
        stops = self._db.run("run_pull_in_stops", {"latest": now + stop_s})
        return stops + self._db.run("run_pull_in_backoffs", {"latest": now + backoff_s})

    def over_wall(self, now: float, since: float, limit: int) -> list[RunId]:
        """Running runs whose wall limit is used up, counting of the present lease only what lies
        after `since`. The worker keeps the limit itself; this is for one that does not."""
        params = {"now": now, "since": since, "limit": limit}
        return [RunId(row[0]) for row in self._db.all("run_over_wall", params)]

    def stalled(self, now: float, limit: int) -> list[LeaseId]:
        """Live leases of running runs with a stall limit that showed no activity for that long."""
        return [LeaseId(row[0]) for row in self._db.all("run_stalled", {"now": now, "limit": limit})]

    def ended_before(self, when: float, limit: int) -> list[RunId]:
        """Final runs that still have log segments and ended before `when`."""
        return [RunId(row[0]) for row in self._db.all("run_ended_before", {"when": when, "limit": limit})]

    def counts(self) -> list[tuple[str, int]]:
        """How many runs are in each state that is not final."""
        return [(row[0], row[1]) for row in self._db.all("run_counts", {})]

    def preemptible(self, after: tuple[int, RunId] | None, limit: int) -> list[Run]:
        """Running runs that may be asked to yield, by priority, the lowest first."""
        params: dict[str, object] = {"limit": limit}
        if after is not None:
            params |= {"after_priority": after[0], "after_id": after[1]}
        return [RUN.read(row) for row in self._db.all("run_preemptible", params)]

    def unstarted(self, project: str, limit: int) -> int:
        """How many runs of the project have not started, counted up to `limit`."""
        (row,) = self._db.all("run_unstarted", {"project": project, "limit": limit})
        return int(row[0])

    def page_by_id(self, after: RunId | None, limit: int) -> list[Run]:
        rows = self._db.all("run_page_by_id", {"after": after or "", "limit": limit})
        return [RUN.read(row) for row in rows]

    def newest_generation(self, run: Run) -> int:
        """Of the runs that its manifest declares with the same identity."""
        params = {"project": run.project, "manifest": run.manifest, "identity": run.identity}
        row = self._db.one("run_newest_generation", params)
        return int(row[0]) if row is not None and row[0] is not None else 0

    def put_submission(self, submission: Submission) -> bool:
        """False, and nothing is written, if this principal used the request id before."""
        return self._db.run("submission_put", SUBMISSION.params(submission)) > 0

    def submission(self, principal: str, request_id: str) -> Submission | None:
        row = self._db.one("submission_get", {"principal": principal, "request_id": request_id})
        return None if row is None else SUBMISSION.read(row)

    def forget_submissions(self, principal: str, prefix: str) -> None:
        """Of whom nobody will ask again, by the beginning of their request ids."""
        # Request ids are ASCII, so everything that begins with the prefix sorts below it with a tilde.
        params = {"principal": principal, "low": prefix, "high": prefix + "~"}
        self._db.tell("submission_forget", params)

    def delete_empty_group(self, group_id: GroupId) -> None:
        """If none of its runs is left."""
        self._db.tell("group_delete_empty", {"id": group_id})

    def insert_group(self, group: Group) -> None:
        self._db.put("group_insert", GROUP, group)

    def limit_group(self, group_id: GroupId, max_running: int | None) -> None:
        self._db.tell("group_limit", {"id": group_id, "max_running": max_running})

    def add_parent(self, parent: Parent) -> None:
        self._db.put("parent_insert", PARENT, parent)

    def parents(self, run_id: RunId) -> list[Parent]:
        return [PARENT.read(row) for row in self._db.all("parents", {"run_id": run_id})]

    def children(self, parent_id: RunId) -> list[Parent]:
        return [PARENT.read(row) for row in self._db.all("children", {"parent_id": parent_id})]

    def waiting_children(self, parent_id: RunId, *, after: str, limit: int) -> list[RunId]:
        """Of the children that are held because they wait for parents, those after `after`, by id."""
        params = {"parent_id": parent_id, "after": after, "limit": limit}
        return [RunId(row[0]) for row in self._db.all("children_waiting", params)]

    def waiting(self, after: str, limit: int) -> list[WaitingRun]:
        """Runs that are held because they wait for parents, by id."""
        rows = self._db.all("held_waiting", {"after": after, "limit": limit})
        return [WaitingRun(RunId(row[0]), bool(row[1])) for row in rows]

    def put_unsettled(self, parent_id: RunId, after: str) -> None:
        """Children of the ended run from `after` on were left for the sweeper."""
        self._db.tell("unsettled_put", {"run_id": parent_id, "after_id": after})

    def unsettled(self, limit: int) -> list[tuple[RunId, str]]:
        return [(RunId(row[0]), str(row[1])) for row in self._db.all("unsettled_list", {"limit": limit})]

    def drop_unsettled(self, parent_id: RunId) -> None:
        self._db.tell("unsettled_delete", {"run_id": parent_id})

    def lock_group(self, group_id: GroupId) -> Group | None:
        """Like `group`, and nobody else gives places in it until this transaction ends."""
        row = self._db.one("group_lock", {"id": group_id})
        return None if row is None else GROUP.read(row)

    def try_lock_group(self, group_id: GroupId) -> Group | None:
        """Like `lock_group`; None also when another transaction has it."""
        row = self._db.one("group_try_lock", {"id": group_id})
        return None if row is None else GROUP.read(row)

    def running_in_group(self, group_id: GroupId, limit: int) -> int:
        """How many of its runs are with a host; no further than the limit."""
        (row,) = self._db.all("group_running", {"group_id": group_id, "limit": limit})
        return int(row[0])

    def queued_in_group(self, group_id: GroupId, limit: int) -> list[RunId]:
        """Those that are queued, the youngest first."""
        return [RunId(row[0]) for row in self._db.all("group_queued", {"group_id": group_id, "limit": limit})]

    def placed(self, group_id: GroupId, *, but: RunId | None, limit: int) -> int:
        """How many of the group's runs have a place, not counting `but` and at most `limit`: those that
        are queued or further and not final, and those between two tries."""
        row = self._db.one("group_placed", {"group_id": group_id, "but": but or "", "limit": limit})
        return int(row[0]) if row is not None else 0

    def waiting_in_group(self, group_id: GroupId, hold_reason: str, limit: int) -> list[RunId]:
        """Its runs that are held for this reason, the oldest first."""
        params = {"group_id": group_id, "hold_reason": hold_reason, "limit": limit}
        return [RunId(row[0]) for row in self._db.all("group_waiting", params)]

    def group_with_held(self, after: str) -> GroupId | None:
        """The next group by id that has a held run."""
        row = self._db.one("group_with_held_after", {"after": after})
        return None if row is None else GroupId(row[0])

    def group(self, group_id: GroupId) -> Group | None:
        row = self._db.one("group_get", {"id": group_id})
        return None if row is None else GROUP.read(row)

    def group_runs(self, group_id: GroupId, limit: int) -> list[RunId]:
        rows = self._db.all("group_runs", {"group_id": group_id, "limit": limit})
        return [RunId(row[0]) for row in rows]

    def put_shape(self, shape: Digest, requirements: str) -> None:
        self._db.tell("shape_put", {"shape": shape, "requirements": requirements})

    def shape(self, shape: Digest) -> str | None:
        row = self._db.one("shape_get", {"shape": shape})
        return None if row is None else str(row[0])
