"""Which group a name means."""

from __future__ import annotations

from dataclasses import replace

from corral.domain.errors import Ambiguous, NotFound
from corral.domain.runs.runs import Group, RunFilter
from corral.store.transaction import Tx


def find_group(tx: Tx, text: str, project: str | None) -> Group:
    """The group of this id, or the newest of this name; Ambiguous if several projects have the name."""
    found = tx.groups.find(text, project)
    if not found:
        raise NotFound(f"there is no group {text[:80]!r}", hint="List them with `corral groups ls`.")
    exact = [group for group in found if group.id == text]
    if not exact and len({group.project for group in found}) > 1:
        raise Ambiguous(
            f"more than one project has a group {text}: {', '.join(group.id for group in found)}",
            hint="Give the group's id, or the project.",
        )
    return (exact or found)[0]


def with_one_group(tx: Tx, where: RunFilter) -> RunFilter:
    """The filter with the one group that it means; a name that no group has finds nothing."""
    if where.group is None:
        return where
    try:
        return replace(where, group=find_group(tx, where.group, where.project).id)
    except NotFound:
        return where
