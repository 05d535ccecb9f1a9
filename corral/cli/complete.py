"""Completes ids and names in the shell: one short call, and silence when there is no server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from corral.cli.connect import connect, own_project
from corral.cli.display.visible import visible_line
from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.domain.endpoints import LIVE
from corral.domain.errors import CorralError
from corral.settings import read_settings

_SHOWN = 50
# Of names, which are found by looking at all of them.
_LOOKED_AT = 1000
_PART_OF_ID = re.compile(r"r-[a-z0-9]+")
# A word, and what it is.
Candidate = tuple[str, str]
Completion = Callable[[str], list[Candidate]]


def _completion(find: Callable[[Corral, str], Iterable[Candidate]]) -> Completion:
    def complete(incomplete: str) -> list[Candidate]:
        try:
            with connect() as corral:
                return [
                    (visible_line(word), visible_line(what))
                    for word, what in find(corral, incomplete)
                    if word.startswith(incomplete)
                ]
        except CorralError:
            # A message would land in the middle of the user's command line.
            return []

    return complete


@_completion
def runs(corral: Corral, incomplete: str) -> Iterable[Candidate]:
    """All that begin so, however old; the newest where nothing is typed yet."""
    prefix = incomplete if _PART_OF_ID.fullmatch(incomplete) else None
    page = corral.runs.page(RunQuery(prefix=prefix), limit=_LOOKED_AT if prefix else _SHOWN)
    found = [(run.id, f"{run.name} {run.state}") for run in page.items]
    return [*found, ("latest", "the newest that you submitted")]


@_completion
def endpoints(corral: Corral, incomplete: str) -> Iterable[Candidate]:
    """Of the project that commands about functions mean; those of programs only where they are begun."""
    found = corral.endpoints.all(read_settings().project)
    return [
        (one.name, "stopped" if one.stopped else ", ".join(sorted(one.functions)))
        for one in found
        if not one.live or incomplete.startswith(LIVE)
    ]


@_completion
def secrets(corral: Corral, _: str) -> Iterable[Candidate]:
    """Of the project that is meant where none is named."""
    project = own_project(read_settings())
    return [(one.name, f"a secret of {project}") for one in corral.secrets.page(project).items]


@_completion
def tokens(corral: Corral, _: str) -> Iterable[Candidate]:
    """Ids and names of those that can be revoked."""
    valid = [one for one in corral.tokens.page().items if not one.revoked_at and not one.used_at]
    return [pair for one in valid for pair in ((one.id, one.name), (one.name, one.id))]


def artifacts_or_runs(incomplete: str) -> list[Candidate]:
    """Artifacts where an id of one is begun, or else runs, whose results are meant."""
    return _artifacts(incomplete) if incomplete.startswith("a-") else runs(incomplete)


@_completion
def _artifacts(corral: Corral, _: str) -> Iterable[Candidate]:
    found = corral.artifacts.page(limit=_LOOKED_AT).items
    return [(one.id, f"{one.kind}{f' of {one.run_id}' if one.run_id else ''}") for one in found]


@_completion
def projects(corral: Corral, _: str) -> Iterable[Candidate]:
    """Projects that have a quota, or used something this month."""
    limited = {quota.project for quota in corral.quotas.all()}
    return [(name, "") for name in sorted(limited | {item.project for item in corral.quotas.usage().items})]


@_completion
def groups(corral: Corral, _: str) -> Iterable[Candidate]:
    """Names, which are easier to tell apart than ids."""
    page = corral.groups.page(limit=_LOOKED_AT)
    return {group.name: f"{group.runs} runs" for group in reversed(page.items)}.items()


@_completion
def schedules(corral: Corral, _: str) -> Iterable[Candidate]:
    return [(one.name, one.cron or f"every {one.every:g} s") for one in corral.schedules.all()]


manifests = _completion(
    lambda corral, _: [(one.name, f"{one.project}, {one.runs} runs") for one in corral.manifests.all()]
)
webhooks = _completion(lambda corral, _: [(hook.name, hook.url) for hook in corral.webhooks.all()])
executors = _completion(lambda corral, _: [(one.name, one.kind) for one in corral.executors.all()])
hosts = _completion(lambda corral, _: [(host.name, host.id) for host in corral.hosts.all()])
volumes = _completion(lambda corral, _: [(one.name, f"version {one.head}") for one in corral.volumes.all()])
