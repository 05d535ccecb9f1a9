"""Whether what a manifest makes new or changes could ever start: said when it is planned or applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from corral.core.manifests.plan import ManifestPlan, WantedManifest
from corral.core.runs.submit import NewRun, never_starts
from corral.domain.errors import FieldError
from corral.domain.hosts.capability import Requirements
from corral.domain.ids import Digest
from corral.domain.manifests import Action, ManifestChange, ManifestEntry
from corral.store.transaction import Tx

# A stored spec with the policy that the manifest has for it now.
Remade: TypeAlias = Callable[[str, ManifestEntry], NewRun]
# By what they need, the first run of each.
NeedsOfRuns: TypeAlias = dict[Requirements, NewRun]


def needs_of_runs(
    tx: Tx, made: ManifestPlan, wanted: WantedManifest, fresh: Mapping[Digest, NewRun], remade: Remade
) -> NeedsOfRuns:
    """Runs of one sweep need the same, which is looked at once."""
    found: NeedsOfRuns = {}
    for change in made.changes:
        entry = wanted.entries.get(change.identity) if change.identity else None
        if entry is not None and change.action is Action.NEW and entry.identity in fresh:
            found.setdefault(fresh[entry.identity].requirements, fresh[entry.identity])
    for new in _made_anew(tx, made, wanted, remade):
        found.setdefault(new.requirements, new)
    return found


def _made_anew(tx: Tx, made: ManifestPlan, wanted: WantedManifest, remade: Remade) -> Iterator[NewRun]:
    """Of those that are there already and run again, or by another policy."""
    seen: set[tuple[Digest, str]] = set()
    for change in made.changes:
        entry = wanted.entries.get(change.identity) if change.identity else None
        if entry is None or change.run_id is None or not _is_made_anew(change):
            continue
        run = tx.runs.get(change.run_id)
        if run is None or (run.shape, entry.policy) in seen:
            continue
        seen.add((run.shape, entry.policy))
        values = {key: value for key, value in entry.values.items() if key != "resources" or not entry.fitted}
        yield remade(tx.runs.spec(run.id), entry._replace(values=values))


def _is_made_anew(change: ManifestChange) -> bool:
    return change.kind == "run" and (change.action is Action.AGAIN or bool(change.differences))


def problems_of(tx: Tx, needs: NeedsOfRuns) -> list[FieldError]:
    refused = (never_starts(tx, new.run, need, prefix=f"runs.{new.run.name}.") for need, new in needs.items())
    return [field for one in refused if one is not None for field in one.fields]
