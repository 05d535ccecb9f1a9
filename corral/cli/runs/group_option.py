"""Which group `--group` means: by id exactly that one, by name the newest."""

from __future__ import annotations

from corral.cli.display import render
from corral.client.corral import Corral
from corral.domain.errors import Ambiguous, NotFound


def group_meant(corral: Corral, text: str, project: str | None = None) -> str:
    """Its id, so that a group of the same name that is made meanwhile is not meant too."""
    found = corral.groups.named(text, project=project)
    if not found:
        raise NotFound(f"there is no group {text!r}", hint="List them with `corral groups ls`.")
    if len({group.project for group in found}) > 1:
        raise Ambiguous(
            f"more than one project has a group {text}: {', '.join(f'{g.id} ({g.project})' for g in found)}",
            hint="Give the group's id.",
        )
    newest = found[0]
    if len(found) > 1:
        render.note(
            f"{len(found)} groups are called {text}; this is the newest, {newest.id},"
            f" of {render.moment(newest.created_at)} (`corral groups ls` lists the others)"
        )
    return newest.id
