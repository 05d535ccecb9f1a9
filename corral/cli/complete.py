"""Completes ids and names in the shell: one short call, and silence when there is no server."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from corral.cli.connect import connect
from corral.cli.display.visible import visible_line
from corral.client.corral import Corral
from corral.domain.errors import CorralError

_SHOWN = 50
# A word, and what it is.
Candidate = tuple[str, str]
Completion = Callable[[str], list[Candidate]]


def _completion(find: Callable[[Corral], Iterable[Candidate]]) -> Completion:
    def complete(incomplete: str) -> list[Candidate]:
        try:
            with connect() as corral:
                return [
                    (visible_line(word), visible_line(what))
                    for word, what in find(corral)
                    if word.startswith(incomplete)
                ]
        except CorralError:
            # A message would land in the middle of the user's command line.
            return []

    return complete


@_completion
def runs(corral: Corral) -> Iterable[Candidate]:
    """The newest ones only."""
    found = [(run.id, f"{run.name} {run.state}") for run in corral.runs.page(limit=_SHOWN).items]
    return [*found, ("latest", "the newest that you submitted")]


@_completion
def projects(corral: Corral) -> Iterable[Candidate]:
    """Projects that have a quota, or used something this month."""
    limited = {quota.project for quota in corral.quotas.all()}
    return [(name, "") for name in sorted(limited | {item.project for item in corral.quotas.usage().items})]


@_completion
def groups(corral: Corral) -> Iterable[Candidate]:
    """Names, which are easier to tell apart than ids."""
    page = corral.groups.page(limit=_SHOWN)
    return {group.name: f"{group.runs} runs" for group in reversed(page.items)}.items()


@_completion
def schedules(corral: Corral) -> Iterable[Candidate]:
    page = corral.schedules.page(limit=_SHOWN)
    return [(one.name, one.cron or f"every {one.every:g} s") for one in page.items]


manifests = _completion(
    lambda corral: [(one.name, f"{one.project}, {one.runs} runs") for one in corral.manifests.page().items]
)
webhooks = _completion(lambda corral: [(hook.name, hook.url) for hook in corral.webhooks.all()])
hosts = _completion(lambda corral: [(host.name, host.id) for host in corral.hosts.page().items])
volumes = _completion(lambda corral: [(one.name, f"version {one.head}") for one in corral.volumes.all()])
