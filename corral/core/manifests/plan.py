"""What a manifest says against what is there: the difference, without changing anything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from corral.core.runs.submit import NewRun
from corral.domain.errors import FieldError
from corral.domain.ids import Digest, GroupId, RunId, is_id
from corral.domain.manifests import (
    PRUNED,
    Action,
    ApplyOptions,
    FieldDifference,
    ManifestChange,
    ManifestEntry,
    ManifestRun,
    key_of,
)
from corral.domain.runs.holds import HoldKind, hold_kind
from corral.domain.runs.runs import Group
from corral.domain.runs.states import FINAL, LEASED, RunState
from corral.store.transaction import Tx


@dataclass(frozen=True)
class WantedManifest:
    """A manifest as it was given: runs by identity, hosts as canonical JSON by name."""

    project: str
    name: str
    entries: Mapping[Digest, ManifestEntry]
    hosts: Mapping[str, str]
    also: frozenset[ApplyOptions] = frozenset()
    # By group, how many of its runs may be queued or running at once.
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return key_of(self.project, self.name)


@dataclass
class ManifestPlan:
    """`ended` failed or were cancelled and stay so unless asked for; `gone` were removed before."""

    known: Mapping[Digest, ManifestRun]
    changes: list[ManifestChange] = field(default_factory=list)
    same: int = 0
    ended: list[ManifestChange] = field(default_factory=list)
    gone: list[ManifestChange] = field(default_factory=list)
    problems: list[FieldError] = field(default_factory=list)

    def lacking(self, have: Mapping[Digest, object]) -> list[Digest]:
        """New runs whose spec has not come yet."""
        new = (c.identity for c in self.changes if c.action is Action.NEW and c.identity is not None)
        return [identity for identity in new if identity not in have]


def plan(tx: Tx, wanted: WantedManifest, fresh: Mapping[Digest, NewRun]) -> ManifestPlan:
    """Everything that applying it now would do, and everything that is in the way."""
    known = tx.runs.of_manifest(wanted.project, wanted.name)
    made = ManifestPlan(known)
    groups = GroupNames(tx)
    for entry in wanted.entries.values():
        _compare(tx, made, wanted, entry, known.get(entry.identity), groups)
    for run in known.values():
        if run.identity not in wanted.entries and run.state not in FINAL:
            _dropped(made, wanted, run)
    _formers(tx, made, wanted)
    _limits(made, wanted, groups)
    _hosts(tx, made, wanted)
    _check(tx, made, wanted, fresh)
    return made


def _formers(tx: Tx, made: ManifestPlan, wanted: WantedManifest) -> None:
    """Tell of new runs which run they take the place of, so that it can be said what changed."""
    applied = tx.manifests.get(wanted.project, wanted.name)
    if applied is None or not any(change.action is Action.NEW for change in made.changes):
        return
    names: dict[str, str] = json.loads(applied.body).get("runs", {})
    formers = {
        name: made.known[Digest(identity)].id
        for identity, name in names.items()
        if identity not in wanted.entries and identity in made.known
    }
    made.changes = [
        change._replace(former=formers.get(change.name)) if change.action is Action.NEW else change
        for change in made.changes
    ]


class GroupNames:
    """The groups of a manifest's runs, each asked for once."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._found: dict[GroupId, Group | None] = {}

    def name(self, group_id: GroupId | None) -> str | None:
        if group_id is None:
            return None
        if group_id not in self._found:
            self._found[group_id] = self._tx.groups.get(group_id)
        found = self._found[group_id]
        return None if found is None else found.name

    def of(self, known: Mapping[Digest, ManifestRun]) -> dict[str, Group]:
        """By name; of several with one name the oldest, to which new runs are added."""
        for run in known.values():
            self.name(run.group_id)
        found = sorted((group for group in self._found.values() if group), key=lambda group: group.id)
        return {group.name: group for group in sorted(found, key=lambda g: g.created_at, reverse=True)}


def _limits(made: ManifestPlan, wanted: WantedManifest, groups: GroupNames) -> None:
    used = {entry.group for entry in wanted.entries.values()}
    for name, group in groups.of(made.known).items():
        new = wanted.limits.get(name)
        if name in used and group.max_running != new:
            differ = (FieldDifference("max_running", group.max_running, new),)
            made.changes.append(ManifestChange(Action.CHANGED, "group", name, differences=differ))


def _compare(
    tx: Tx,
    made: ManifestPlan,
    wanted: WantedManifest,
    entry: ManifestEntry,
    run: ManifestRun | None,
    groups: GroupNames,
) -> None:
    if run is None:
        made.changes.append(ManifestChange(Action.NEW, "run", entry.name, entry.identity))
        return
    if run.state in FINAL:
        if run.state is RunState.SUCCEEDED:
            made.same += 1
        elif run.detail == PRUNED or ApplyOptions.RETRY_FAILED in wanted.also:
            made.changes.append(_change(Action.AGAIN, run)._replace(name=entry.name))
        else:
            made.ended.append(_change(Action.AGAIN, run))
        return
    found = tuple(_differences(tx, entry, run, groups))
    if hold_kind(run.hold_reason) is HoldKind.REMOVED:
        made.changes.append(_change(Action.RESTORED, run)._replace(differences=found))
    elif found:
        made.changes.append(_change(Action.CHANGED, run)._replace(differences=found))
    else:
        made.same += 1


def _dropped(made: ManifestPlan, wanted: WantedManifest, run: ManifestRun) -> None:
    if run.state in (RunState.STOPPING, RunState.HALTING):
        return
    if ApplyOptions.PRUNE in wanted.also and run.state not in LEASED:
        made.changes.append(_change(Action.PRUNED, run))
    elif ApplyOptions.PRUNE_RUNNING in wanted.also and run.state in LEASED:
        made.changes.append(_change(Action.STOPPED, run))
    elif hold_kind(run.hold_reason) is not HoldKind.REMOVED:
        made.changes.append(_change(Action.REMOVED, run))
    else:
        made.gone.append(_change(Action.REMOVED, run))


def _change(action: Action, run: ManifestRun) -> ManifestChange:
    return ManifestChange(action, "run", run.name, run.identity, run.id, run.state)


def _differences(
    tx: Tx, entry: ManifestEntry, run: ManifestRun, groups: GroupNames
) -> Iterator[FieldDifference]:
    if entry.name != run.name:
        yield FieldDifference("name", run.name, entry.name)
    group = groups.name(run.group_id)
    if entry.group != group:
        yield FieldDifference("group", group, entry.group)
    if entry.policy != run.policy:
        spec = json.loads(tx.runs.spec(run.id))
        old = dict(_flat({key: spec.get(key) for key in entry.values}))
        new = dict(_flat(entry.values))
        for path in sorted({*old, *new}):
            if old.get(path) != new.get(path) and not (entry.fitted and path.startswith("resources.")):
                yield FieldDifference(path, old.get(path), new.get(path))


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check(tx: Tx, made: ManifestPlan, wanted: WantedManifest, fresh: Mapping[Digest, NewRun]) -> None:
    """What new runs name must be there. Runs of one sweep name the same things: asked once."""
    seen: set[object] = set()
    names = {entry.name for entry in wanted.entries.values()}
    before: dict[str, set[str]] = {}
    for change in made.changes:
        new = fresh.get(change.identity) if change.identity and change.action is Action.NEW else None
        if new is None:
            continue
        needs = new.needs
        tables = (needs.inputs, needs.digests, needs.parts)
        key = (needs.code, needs.secrets, new.after, *(tuple(table.items()) for table in tables))
        if key in seen:
            continue
        seen.add(key)
        prefix = f"runs.{change.name}."
        made.problems += needs.missing(tx, new.run.project, prefix)
        before.setdefault(change.name, set()).update(after.run for after in new.after)
        for after in new.after:
            if after.run not in names and not _is_run(tx, after.run, new.run.project):
                message = f"names {after.run}, which is neither a run of this manifest nor one of the project"
                made.problems.append(FieldError(prefix + after.place, message))
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        around = " after ".join(reversed(error.args[1]))
        made.problems.append(FieldError("runs", f"wait for each other: {around}"))


def _is_run(tx: Tx, text: str, project: str) -> bool:
    run = tx.runs.get(RunId(text)) if is_id(text, "r") else None
    return run is not None and run.project == project


def _hosts(tx: Tx, made: ManifestPlan, wanted: WantedManifest) -> None:
    for name, declared in wanted.hosts.items():
        host = tx.hosts.by_name(name)
        owner = None if host is None else host.declared_by
        if owner is not None and owner != wanted.key:
            message = f"is declared by the manifest {owner} already; this is {wanted.key}"
            made.problems.append(FieldError(f"hosts.{name}", message))
        elif host is None or host.declared is None:
            made.changes.append(ManifestChange(Action.NEW, "host", name))
        elif host.declared != declared:
            old, new = (dict(_flat(json.loads(text))) for text in (host.declared, declared))
            found = [FieldDifference(p, old.get(p), new.get(p)) for p in sorted({*old, *new})]
            differ = tuple(d for d in found if d.old != d.new)
            made.changes.append(ManifestChange(Action.CHANGED, "host", name, differences=differ))
    for host in tx.hosts.declared_by(wanted.key):
        if host.name not in wanted.hosts:
            made.changes.append(ManifestChange(Action.REMOVED, "host", host.name))
