"""Runs, what they are submitted with, and the lanes in which they queue."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter

from corral.domain.errors import found
from corral.domain.ids import Digest, LeaseId, RunId, is_id
from corral.domain.manifests import ManifestRun
from corral.domain.runs.queue import Lane, QueuedRun, ReadyRun, WaitingRun
from corral.domain.runs.runs import Parent, Run, RunFilter, Submission
from corral.store.rows import MANIFEST_RUN, PARENT, RUN, SUBMISSION
from corral.store.table import Table, given
from corral.store.tables.groups import MAX_FOUND

_TABLES_OF_A_RUN = (
    *("run_specs", "attempts", "ranks", "leases", "events", "objects", "object_counts"),
    *("run_inputs", "parents"),
    # Its segments stay until their files are deleted.
    *("unsettled", "logs", "runs"),
)


class SqlRuns(Table):
    def insert(self, run: Run, spec: str) -> None:
        self._db.put("run_insert", RUN, run)
        self._tell("spec_insert", run_id=run.id, spec=spec)
        self._tell("installation_accepted")

    def get(self, run_id: RunId) -> Run | None:
        return self._one(RUN, "run_get", id=run_id)

    def lock(self, run_id: RunId) -> Run | None:
        """Like `get`, and no other transaction changes the run until this one ends."""
        return self._one(RUN, "run_lock", id=run_id)

    def lock_all(self, ids: Iterable[RunId]) -> None:
        """Lock several runs, always in the same order: two transactions must not wait for each other."""
        self._db.one("run_lock_all", {"ids": json.dumps([*ids])})

    def try_lock(self, run_id: RunId) -> tuple[Run, str] | None:
        """Like `lock`, with the spec, but None as well if another transaction holds the run."""
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
        # In the order of generations, so that the newest is the one that stays.
        rows = self._db.all("run_of_manifest", {"project": project, "manifest": manifest})
        return {row[1]: MANIFEST_RUN.read(row) for row in rows}

    def newest_generation(self, run: Run) -> int:
        """Of the runs that its manifest declares with the same identity."""
        params = {"project": run.project, "manifest": run.manifest, "identity": run.identity}
        row = self._db.one("run_newest_generation", params)
        return int(row[0]) if row is not None and row[0] is not None else 0

    def spec(self, run_id: RunId) -> str:
        return str(found(self._db.one("spec_get", {"run_id": run_id}), f"there is no run {run_id}")[0])

    def settings(self, ids: Iterable[RunId]) -> dict[RunId, tuple[str | None, str | None]]:
        """By run, the `params` and `train` of its spec, as JSON."""
        rows = self._db.all("spec_settings", {"ids": json.dumps([*ids])})
        return {RunId(row[0]): (row[1], row[2]) for row in rows}

    def put_spec(self, run_id: RunId, spec: str) -> None:
        self._tell("spec_save", run_id=run_id, spec=spec)

    def delete(self, run_id: RunId) -> None:
        """Delete the run and all that is its own, except artifacts and log segments."""
        for table in _TABLES_OF_A_RUN:
            self._tell(f"run_delete_{table}", run_id=run_id)

    def by_prefix(self, prefix: str, project: str | None, limit: int) -> list[RunId]:
        # Ids are ASCII, so everything that begins with the prefix sorts below it with a tilde.
        scope = given(project=project)
        return self._column("run_by_prefix", low=prefix, high=prefix + "~", limit=limit, **scope)

    def beginning(self, prefix: str, project: str | None, limit: int) -> list[Run]:
        """The runs whose ids begin so, in the order of ids."""
        scope = given(project=project)
        return self._all(RUN, "run_beginning", low=prefix, high=prefix + "~", limit=limit, **scope)

    def page_by_id(self, after: RunId | None, limit: int) -> list[Run]:
        return self._all(RUN, "run_page_by_id", after=after or "", limit=limit)

    def page(self, where: RunFilter, *, after: tuple[float, RunId] | None, limit: int) -> list[Run]:
        """Newest first; `after` is the last of the page before."""
        # Nothing is created after the end of time, so without `after` the page begins at the newest.
        at, last = after or (math.inf, "")
        base: dict[str, object] = {"limit": limit, "after_created_at": at, "after_id": last}
        base |= given(ended_before=where.ended_before, kind=where.kind, other_kind=where.other_kind)
        if where.label is not None:
            base |= {"label": where.label[0], "label_value": where.label[1]}
        base |= given(submitted_by=where.submitted_by)
        pages = [self._all(RUN, "run_page", **base, **scope) for scope in self._scopes(where)]
        merged = heapq.merge(*pages, key=lambda run: (run.created_at, run.id), reverse=True)
        return list(islice(merged, limit))

    def _scopes(self, where: RunFilter) -> Iterator[dict[str, str]]:
        """Queries that together are the filter, each a range of one index."""
        checks = given(name=where.name, check_project=where.project)
        states = [{"check_state": state} for state in where.states] or [{}]
        if where.schedule is not None:
            for group_id in [None] if where.group is None else self._groups(where):
                for schedule_id in self._schedules(where.schedule, where.project):
                    own = {"schedule_id": schedule_id, **given(group_id=group_id), **checks}
                    yield from ({**own, **state} for state in states)
        elif where.group is not None:
            for group_id in self._groups(where):
                yield from ({"group_id": group_id, **checks, **state} for state in states)
        elif where.name is not None:
            yield from ({**checks, **state} for state in states)
        elif where.states:
            for state_name in where.states:
                projects = [where.project] if where.project is not None else self._projects(state_name)
                yield from ({"state": state_name, "project": name} for name in projects)
        else:
            yield given(project=where.project)

    def _groups(self, where: RunFilter) -> list[str]:
        # The id is the first column.
        return self._column("group_find", text=where.group, limit=MAX_FOUND, **given(project=where.project))

    def _schedules(self, text: str, project: str | None) -> list[str]:
        if is_id(text, "s"):
            # A schedule that was removed still has its runs.
            return [text]
        return self._column("schedule_find", text=text, limit=MAX_FOUND, **given(project=project))

    def _projects(self, state: str) -> Iterator[str]:
        row = self._db.one("state_project_after", {"state": state})
        while row is not None:
            yield row[0]
            row = self._db.one("state_project_after", {"state": state, "after": row[0]})

    def lanes(self) -> list[Lane]:
        """Every lane that has a queued run; costs one index seek per lane, however long it is."""
        return [lane for lane, _ in self.heads()]

    def heads(self) -> list[tuple[Lane, ReadyRun]]:
        """The lanes of `lanes`, each with its oldest run."""
        heads: list[tuple[Lane, ReadyRun]] = []
        row = self._db.one("lane_first", {})
        while row is not None:
            lane = Lane(*row[:3])
            heads.append((lane, ReadyRun(*row[3:])))
            later = sorted(self._db.all("lane_next", lane._asdict()), key=itemgetter(0))
            row = later[0][1:] if later else None
        return heads

    def ready(self, lane: Lane, *, after: ReadyRun | None, limit: int) -> list[ReadyRun]:
        """The oldest queued runs of a lane, in order."""
        params: dict[str, object] = {**lane._asdict(), "limit": limit}
        if after is not None:
            params |= {"after_ready_at": after.ready_at, "after_id": after.id}
        return [ReadyRun(*row) for row in self._db.all("run_ready", params)]

    def ready_names(self, lane: Lane, *, after: ReadyRun, limit: int) -> list[QueuedRun]:
        """The next queued runs of a lane, with what a policy can learn only from the run itself."""
        params = {**lane._asdict(), "after_ready_at": after.ready_at, "after_id": after.id, "limit": limit}
        rows = self._db.all("run_ready_names", params)
        return [QueuedRun(ReadyRun(row[0], RunId(row[1])), row[2], row[3]) for row in rows]

    def unstarted(self, project: str, limit: int) -> int:
        """How many runs of the project have not started, counted up to `limit`."""
        return self._number("run_unstarted", project=project, limit=limit)

    def counts_by_project(self) -> list[tuple[str, str, int, float]]:
        """Project and state that is not final, how many runs, and since when the oldest of them is ready."""
        return [
            (row[0], row[1], int(row[2]), float(row[3])) for row in self._db.all("run_waiting_projects", {})
        ]

    def failures(self) -> list[tuple[str, str, int]]:
        """Project, reason, and how many of its runs failed for it and were not removed."""
        return [(row[0], row[1], int(row[2])) for row in self._db.all("run_failures", {})]

    def counts(self) -> list[tuple[str, int]]:
        """How many runs are in each state that is not final."""
        return [(row[0], row[1]) for row in self._db.all("run_counts", {})]

    def preemptible(self, after: tuple[int, RunId] | None, limit: int) -> list[Run]:
        """Running runs that may be asked to yield, by priority, the lowest first."""
        params: dict[str, object] = {"limit": limit}
        if after is not None:
            params |= {"after_priority": after[0], "after_id": after[1]}
        return self._all(RUN, "run_preemptible", **params)

    def due_held(self, now: float, limit: int) -> list[RunId]:
        return self._column("run_due_held", now=now, limit=limit)

    def due_stops(self, now: float, limit: int) -> list[RunId]:
        return self._column("run_due_stops", now=now, limit=limit)

    def pull_in(self, *, now: float, stop_s: float, backoff_s: float) -> int:
        """After the server was away, when no worker could hear of a stop and the clock may have gone back:
        every stop is due `stop_s` and its grace from now, and no backoff ends later than `backoff_s` from
        now. Return how many runs were changed."""
        stops = self._db.run("run_pull_in_stops", {"latest": now + stop_s})
        return stops + self._db.run("run_pull_in_backoffs", {"latest": now + backoff_s})

    def over_wall(self, now: float, since: float, limit: int) -> list[RunId]:
        """Running runs that used up their wall limit; the present lease counts only from `since` on.

        The worker enforces the limit itself; this finds runs of workers that do not.
        """
        return self._column("run_over_wall", now=now, since=since, limit=limit)

    def stalled(self, now: float, limit: int) -> list[LeaseId]:
        """Live leases of running runs with a stall limit that showed no activity for that long."""
        return self._column("run_stalled", now=now, limit=limit)

    def ended_before(self, when: float, limit: int) -> list[RunId]:
        """Final runs that still have log segments and ended before `when`."""
        return self._column("run_ended_before", when=when, limit=limit)

    def put_submission(self, submission: Submission) -> bool:
        """False, and nothing is written, if this principal used the request id before."""
        return self._db.run("submission_put", SUBMISSION.params(submission)) > 0

    def submission(self, principal: str, request_id: str) -> Submission | None:
        return self._one(SUBMISSION, "submission_get", principal=principal, request_id=request_id)

    def forget_submissions(self, principal: str, prefix: str) -> None:
        """Delete those whose request ids begin with the prefix, once nobody will repeat them."""
        # Request ids are ASCII, so everything that begins with the prefix sorts below it with a tilde.
        self._tell("submission_forget", principal=principal, low=prefix, high=prefix + "~")

    def add_parent(self, parent: Parent) -> None:
        self._db.put("parent_insert", PARENT, parent)

    def parents(self, run_id: RunId) -> list[Parent]:
        return self._all(PARENT, "parents", run_id=run_id)

    def children(self, parent_id: RunId) -> list[Parent]:
        return self._all(PARENT, "children", parent_id=parent_id)

    def waiting_children(self, parent_id: RunId, *, after: str, limit: int) -> list[RunId]:
        """Children that are held because they wait for parents, by id."""
        return self._column("children_waiting", parent_id=parent_id, after=after, limit=limit)

    def waiting(self, after: str, limit: int) -> list[WaitingRun]:
        """Runs that are held because they wait for parents, by id."""
        rows = self._db.all("held_waiting", {"after": after, "limit": limit})
        return [WaitingRun(RunId(row[0]), bool(row[1])) for row in rows]

    def put_unsettled(self, parent_id: RunId, after: str) -> None:
        """Leave the children of the ended run from `after` on to the sweeper."""
        self._tell("unsettled_put", run_id=parent_id, after_id=after)

    def unsettled(self, limit: int) -> list[tuple[RunId, str]]:
        return [(RunId(row[0]), str(row[1])) for row in self._db.all("unsettled_list", {"limit": limit})]

    def drop_unsettled(self, parent_id: RunId) -> None:
        self._tell("unsettled_delete", run_id=parent_id)

    def reshape(self, run_id: RunId, shape: Digest) -> None:
        """The run asks for something else from now on."""
        self._tell("run_reshape", id=run_id, shape=shape)

    def put_shape(self, shape: Digest, requirements: str) -> None:
        self._tell("shape_put", shape=shape, requirements=requirements)

    def shape(self, shape: Digest) -> str | None:
        row = self._db.one("shape_get", {"shape": shape})
        return None if row is None else str(row[0])
