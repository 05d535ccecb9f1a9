"""Making a manifest true, all of it or nothing, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import NamedTuple

from corral.core.audit import Author, note
from corral.core.manifests.plan import GroupNames, ManifestPlan, WantedManifest, plan
from corral.core.manifests.starts import Remade, needs_of_runs, problems_of
from corral.core.policy import ServerPolicy
from corral.core.quotas import no_room
from corral.core.runs.cancel import cancel
from corral.core.runs.dependencies import hold_over_limit, let_in, move, release, settle_waiting
from corral.core.runs.shapes import put_shape
from corral.core.runs.submit import NewRun, put_run
from corral.core.runs.transitions import record
from corral.core.topics import TOPIC_HOST
from corral.domain.canonical import canonical, digest_of
from corral.domain.errors import Conflict, InvalidInput, NotFound
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import HostPolicy, read_declared, render_declared
from corral.domain.ids import Digest, GroupId, RunId, is_id, new_group_id, new_run_id
from corral.domain.manifests import (
    PRUNED,
    Action,
    ApplyOptions,
    Manifest,
    ManifestChange,
    ManifestEntry,
    ManifestRun,
)
from corral.domain.runs.holds import HoldKind, waits_for
from corral.domain.runs.runs import Group, Parent, Run
from corral.domain.runs.states import FINAL, LEASED, RunEvent, RunState
from corral.store.transaction import Tx


class ApplyResult(NamedTuple):
    plan: ManifestPlan
    manifest: Manifest


@dataclass
class Apply:
    """A unit of work. `fresh` are the specs that came along; `remade` gives a stored one a new policy."""

    wanted: WantedManifest
    fresh: Mapping[Digest, NewRun]
    remade: Remade
    by: Author
    policy: ServerPolicy
    _shapes: dict[Requirements, Digest] = field(default_factory=dict)
    _groups: dict[str, GroupId] = field(default_factory=dict)
    # The runs of each name: what is there, and what is about to be.
    _named: dict[str, list[RunId]] = field(default_factory=dict)
    _known: Mapping[Digest, ManifestRun] = field(default_factory=dict)
    _count: int = 0

    def __call__(self, tx: Tx) -> ApplyResult:
        self._shapes, self._groups, self._named = {}, {}, {}
        wanted = self.wanted
        before = held_against_others(tx, wanted.project, wanted.name)
        made = plan(tx, wanted, self.fresh)
        made.problems += problems_of(tx, needs_of_runs(tx, made, wanted, self.fresh, self.remade))
        if made.problems:
            raise refused(wanted, made)
        if lacking := made.lacking(self.fresh):
            raise Conflict(
                f"{len(lacking)} runs of the manifest {wanted.name} are not known any more",
                hint="Somebody changed it meanwhile. Nothing was changed; apply it again.",
            )
        manifest = _as_manifest(wanted, before, self.by)
        if not made.changes and before is not None and before.digest == manifest.digest:
            return ApplyResult(made, before)
        tx.runs.lock_all(change.run_id for change in made.changes if change.run_id is not None)
        self._groups = {name: group.id for name, group in GroupNames(tx).of(made.known).items()}
        made.changes = [self._do(tx, change) for change in _children_first(tx, self._numbered(made))]
        made.changes = self._settled(tx, made.changes)
        # At the end: a claim has runs locked when it comes to the quota, and so must whoever else locks both.
        more = sum(change.makes_a_run for change in made.changes)
        if more and (refusal := no_room(tx, wanted.project, more, written=more)) is not None:
            raise refusal
        tx.manifests.put(manifest)
        self._note(tx, made, manifest)
        return ApplyResult(made, manifest)

    def is_same(self, before: Manifest) -> bool:
        """Whether it says what was applied last; then there is nothing to write."""
        return before.digest == _as_manifest(self.wanted, before, self.by).digest

    def _numbered(self, made: ManifestPlan) -> list[ManifestChange]:
        """New runs get their ids first: one may wait for another that comes after it."""
        # In order: what is queued at the same moment starts by its id.
        ids = iter(sorted(new_run_id() for _ in made.changes))
        changes = [
            change._replace(run_id=next(ids)) if change.makes_a_run else change for change in made.changes
        ]
        now = {change.identity: change.run_id for change in changes if change.kind == "run"}
        for entry in self.wanted.entries.values():
            known = made.known.get(entry.identity)
            run_id = now.get(entry.identity) or (known.id if known else None)
            if run_id is not None:
                self._named.setdefault(entry.name, []).append(run_id)
        self._known = made.known
        return changes

    def _settled(self, tx: Tx, changes: list[ManifestChange]) -> list[ManifestChange]:
        """Runs whose parents have ended go on at once, and groups with room let the next ones in."""
        limits = {*self.wanted.limits, *(change.name for change in changes if change.kind == "group")}
        for group_id in {self._groups[name] for name in limits if name in self._groups}:
            hold_over_limit(tx, group_id, actor=self.by.actor, now=self.by.now)
            let_in(tx, group_id, now=self.by.now, unlimited=True)
        made = []
        for change in changes:
            entry = self.wanted.entries.get(change.identity) if change.identity else None
            placed = change.state is RunState.QUEUED and entry is not None and entry.group in limits
            if (change.state is RunState.HELD or placed) and change.run_id is not None:
                settle_waiting(tx, change.run_id, now=self.by.now)
                run = tx.runs.get(change.run_id)
                change = change._replace(state=run.state if run else change.state)
            made.append(change)
        return made

    def _do(self, tx: Tx, change: ManifestChange) -> ManifestChange:
        if change.kind == "host":
            self._host(tx, change)
            return change
        if change.kind == "group":
            tx.groups.limit(self._groups[change.name], self.wanted.limits.get(change.name))
            return change
        entry = self.wanted.entries.get(change.identity) if change.identity else None
        if change.action is Action.NEW and entry is not None:
            return self._insert(tx, change, entry, self.fresh[entry.identity], 1)
        if change.action is Action.AGAIN and entry is not None:
            return self._again(tx, change, entry)
        run = tx.runs.lock(change.run_id) if change.run_id else None
        if run is None:
            raise NotFound(f"there is no run {change.run_id}")
        if run.state in FINAL:
            # It ended after the plan was made; there is nothing left to change.
            return change._replace(state=run.state)
        if change.action in (Action.CHANGED, Action.RESTORED) and entry is not None:
            if change.differences:
                run = self._change(tx, change, entry, run)
            if change.action is Action.RESTORED:
                run = self._restore(tx, run)
        elif change.action is Action.REMOVED:
            run = self._hold(tx, run)
        else:
            by = self.by
            run = cancel(tx, run.id, reason=PRUNED, actor=by.actor, now=by.now, policy=self.policy)
        return change._replace(state=run.state)

    def _insert(
        self, tx: Tx, change: ManifestChange, entry: ManifestEntry, new: NewRun, generation: int
    ) -> ManifestChange:
        run_id, by = change.run_id or new_run_id(), self.by
        shape, group = self._shape(tx, new), self._group(tx, entry)
        run = new.accepted(run_id, shape, group, by=by.actor, now=by.now)._replace(
            identity=entry.identity, manifest=self.wanted.name, policy=entry.policy, generation=generation
        )
        links = self._links(run_id, new)
        if links:
            hold = waits_for([link.parent_id for link in links])
            run = run._replace(state=RunState.HELD, hold_reason=hold)
        elif entry.group in self.wanted.limits:
            # They are let in by age, in the order in which they stand in the manifest.
            self._count += 1
            ready_at = by.now + self._count * 1e-6
            run = run._replace(state=RunState.HELD, hold_reason=HoldKind.CONCURRENCY.value, ready_at=ready_at)
        put_run(tx, run, new, links)
        return change._replace(run_id=run_id, state=run.state)

    def _links(self, run_id: RunId, new: NewRun) -> list[Parent]:
        found: dict[RunId, Parent] = {}
        for after in new.after:
            parents = [RunId(after.run)] if is_id(after.run, "r") else self._named.get(after.run, [])
            for parent_id in parents:
                found[parent_id] = Parent(run_id, parent_id, after.input, after.on_failure)
        return list(found.values())

    def _again(self, tx: Tx, change: ManifestChange, entry: ManifestEntry) -> ManifestChange:
        known = self._known[entry.identity]
        old = tx.runs.lock(known.id)
        if old is None or change.run_id is None:
            raise NotFound(f"there is no run {known.id}")
        spec = json.loads(tx.runs.spec(old.id))
        # What a parent gave is given anew: it may have run again as well.
        for after in spec.get("after") or ():
            spec.get("inputs", {}).pop(after.get("input"), None)
        done = self._insert(tx, change, entry, self.remade(canonical(spec), entry), old.generation + 1)
        record(tx, old, "requeued_as", at=self.by.now, actor=self.by.actor, data={"run": done.run_id})
        return done

    def _change(self, tx: Tx, change: ManifestChange, entry: ManifestEntry, run: Run) -> Run:
        values = {key: value for key, value in entry.values.items() if key != "resources" or not entry.fitted}
        new = self.remade(tx.runs.spec(run.id), entry._replace(values=values))
        before = run
        run = run.with_policy_of(new.run)._replace(
            group_id=self._group(tx, entry), shape=self._shape(tx, new), policy=entry.policy
        )
        tx.runs.save_policy(run, new.spec)
        if run.is_held(HoldKind.CONCURRENCY) and run.group_id != before.group_id:
            # It waited for a place in a group that it is not in any more.
            run = release(tx, run, actor=self.by.actor, now=self.by.now)
        data = {difference.path: [difference.old, difference.new] for difference in change.differences}
        return record(tx, run, "changed", at=self.by.now, actor=self.by.actor, data=data)

    def _restore(self, tx: Tx, run: Run) -> Run:
        by = self.by
        if run.state is RunState.HELD:
            return release(tx, run, actor=by.actor, now=by.now)
        return record(tx, run._replace(hold_reason=None), "restored", at=by.now, actor=by.actor)

    def _hold(self, tx: Tx, run: Run) -> Run:
        by, hold = self.by, HoldKind.REMOVED.value
        data = {"hold_reason": hold}
        if run.state is RunState.QUEUED:
            return move(tx, run, RunEvent.HOLD, at=by.now, actor=by.actor, data=data, hold_reason=hold)
        # Held already, or running: the mark keeps it from the queue.
        held = run._replace(hold_reason=hold, not_before=None)
        return record(tx, held, "removed", at=by.now, actor=by.actor, data=data)

    def _shape(self, tx: Tx, new: NewRun) -> Digest:
        if new.requirements not in self._shapes:
            self._shapes[new.requirements] = put_shape(tx, new.requirements)
        return self._shapes[new.requirements]

    def _group(self, tx: Tx, entry: ManifestEntry) -> GroupId | None:
        if entry.group is None:
            return None
        if entry.group not in self._groups:
            limit = self.wanted.limits.get(entry.group)
            made = Group(new_group_id(), self.wanted.project, entry.group, self.by.now, limit)
            tx.groups.insert(made)
            self._groups[entry.group] = made.id
        return self._groups[entry.group]

    def _host(self, tx: Tx, change: ManifestChange) -> None:
        declared = self.wanted.hosts.get(change.name)
        found = tx.hosts.by_name(change.name)
        if found is None:
            found = Host.new(change.name, self.by.now)
            tx.hosts.insert(found)
        # Held against a claim of the host, which writes the same row.
        found = tx.hosts.lock(found.id) or found
        declare(tx, found, None if declared is None else read_declared(declared), by=self.wanted.key)

    def _note(self, tx: Tx, made: ManifestPlan, manifest: Manifest) -> None:
        counts: dict[str, int] = {}
        for change in made.changes:
            counts[f"{change.action} {change.kind}s"] = counts.get(f"{change.action} {change.kind}s", 0) + 1
        revision, digest = manifest.revision, manifest.digest
        note(tx, "manifest.apply", manifest.key, self.by, revision=revision, digest=digest, **counts)


def _children_first(tx: Tx, changes: list[ManifestChange]) -> list[ManifestChange]:
    """Those that are cancelled in such an order that none of them ends for another's sake: each was pruned,
    and comes back when the manifest names it again. The others as they were."""
    pruned = {
        change.run_id: change
        for change in changes
        if change.run_id is not None and change.action in (Action.PRUNED, Action.STOPPED)
    }
    runs = [change for change in changes if change.kind == "run" and change.run_id not in pruned]
    rest = [change for change in changes if change.kind != "run"]
    return [*runs, *(pruned[run_id] for run_id in _from_the_leaves(tx, pruned)), *rest]


def _from_the_leaves(tx: Tx, ids: Collection[RunId]) -> list[RunId]:
    parents = {run_id: [link.parent_id for link in tx.runs.parents(run_id)] for run_id in ids}
    inside = {run_id: [parent for parent in found if parent in ids] for run_id, found in parents.items()}
    return list(reversed(list(TopologicalSorter(inside).static_order())))


def refused(wanted: WantedManifest, made: ManifestPlan) -> InvalidInput:
    lines = "; ".join(f"`{f.path}` {f.message}" for f in made.problems)
    return InvalidInput(
        f"the manifest {wanted.name} cannot be applied: {lines}",
        hint="Nothing was changed. Correct what is named and apply it again.",
        fields=made.problems,
    )


def held_against_others(tx: Tx, project: str, name: str) -> Manifest | None:
    """What was applied last, held so that two applies come one after the other."""
    found = tx.manifests.lock(project, name)
    if found is None:
        # A row to hold: of two first applies, the second waits here for the first.
        tx.manifests.claim(Manifest(project, name, "{}", digest_of({}), 0, 0.0, ""))
        found = tx.manifests.lock(project, name)
    return found if found is not None and found.revision else None


def _as_manifest(wanted: WantedManifest, before: Manifest | None, by: Author) -> Manifest:
    runs = {entry.identity: entry.name for entry in wanted.entries.values()}
    body = {"hosts": {name: json.loads(text) for name, text in wanted.hosts.items()}, "runs": runs}
    text = canonical(body)
    revision = 1 if before is None else before.revision + 1
    return Manifest(wanted.project, wanted.name, text, digest_of(body), revision, by.now, by.actor)


def delete(
    tx: Tx, project: str, name: str, *, also: frozenset[ApplyOptions], by: Author, policy: ServerPolicy
) -> Manifest:
    """Forget the manifest. What it declared of hosts goes; its runs stay, and none of them may wait."""
    found = tx.manifests.lock(project, name)
    if found is None or not found.revision:
        raise NotFound(
            f"there is no manifest {name} in project {project}", hint="List them with `corral manifest ls`."
        )
    live = [run for run in tx.runs.of_manifest(project, name).values() if run.state not in FINAL]
    running = [run for run in live if run.state in LEASED]
    if (live and ApplyOptions.PRUNE not in also) or (running and ApplyOptions.PRUNE_RUNNING not in also):
        raise Conflict(
            f"{len(live) - len(running)} runs of the manifest {name} wait and {len(running)} run",
            hint="Nothing was changed. `--prune` cancels those that wait, `--prune --running` all of them.",
        )
    live_by_id = {run.id: run for run in live}
    tx.runs.lock_all(live_by_id)
    for run in [live_by_id[run_id] for run_id in _from_the_leaves(tx, live_by_id)]:
        now = tx.runs.lock(run.id)
        if now is not None and now.state not in FINAL:
            cancel(tx, run.id, reason=PRUNED, actor=by.actor, now=by.now, policy=policy)
    for host in tx.hosts.declared_by(found.key):
        declare(tx, tx.hosts.lock(host.id) or host, None, by=None)
    tx.manifests.delete(project, name)
    note(tx, "manifest.delete", found.key, by, revision=found.revision, pruned=len(live))
    return found


def declare(tx: Tx, host: Host, declared: HostPolicy | None, *, by: str | None) -> Host:
    """Save in the host's row what it may take, from its next claim on. None takes the declaration back."""
    text = None if declared is None else render_declared(declared)
    new = host._replace(
        declared=text,
        declared_digest=None if declared is None else declared.digest,
        declared_by=None if declared is None else by,
    )
    if new != host:
        tx.hosts.save(new)
        tx.announce(TOPIC_HOST, host.id)
    return new
