"""Completes ids and names in the shell: one short call, and silence when there is no server."""

from __future__ import annotations

from corral.cli.connect import connect
from corral.domain.errors import CorralError

_SHOWN = 50


def manifests(incomplete: str) -> list[tuple[str, str]]:
    try:
        with connect() as corral:
            page = corral.manifests.page()
    except CorralError:
        return []
    found = [(item.name, f"{item.project}, {item.runs} runs") for item in page.items]
    return [item for item in found if item[0].startswith(incomplete)]


def runs(incomplete: str) -> list[tuple[str, str]]:
    """Ids with what they are; the newest ones only."""
    try:
        with connect() as corral:
            page = corral.runs.page(limit=_SHOWN)
    except CorralError:
        # A message would land in the middle of the user's command line.
        return []
    found = [(run.id, f"{run.name} {run.state}") for run in page.items]
    return [item for item in [*found, ("latest", "the newest run")] if item[0].startswith(incomplete)]


def webhooks(incomplete: str) -> list[tuple[str, str]]:
    try:
        with connect() as corral:
            found = corral.webhooks.all()
    except CorralError:
        return []
    return [(hook.name, hook.url) for hook in found if hook.name.startswith(incomplete)]


def projects(incomplete: str) -> list[str]:
    """Projects that have a quota, or used something this month."""
    try:
        with connect() as corral:
            found = {quota.project for quota in corral.quotas.all()}
            found |= {item.project for item in corral.quotas.usage().items}
    except CorralError:
        return []
    return sorted(project for project in found if project.startswith(incomplete))


def hosts(incomplete: str) -> list[tuple[str, str]]:
    """Names with what they are."""
    try:
        with connect() as corral:
            page = corral.hosts.page()
    except CorralError:
        return []
    return [(host.name, host.id) for host in page.items if host.name.startswith(incomplete)]


def groups(incomplete: str) -> list[tuple[str, str]]:
    """Names, which are easier to tell apart than ids."""
    try:
        with connect() as corral:
            page = corral.groups.page(limit=_SHOWN)
    except CorralError:
        return []
    found = {group.name: f"{group.runs} runs" for group in reversed(page.items)}
    return [item for item in found.items() if item[0].startswith(incomplete)]


def schedules(incomplete: str) -> list[tuple[str, str]]:
    try:
        with connect() as corral:
            page = corral.schedules.page(limit=_SHOWN)
    except CorralError:
        return []
    found = [(one.name, one.cron or f"every {one.every:g} s") for one in page.items]
    return [item for item in found if item[0].startswith(incomplete)]


def volumes(incomplete: str) -> list[tuple[str, str]]:
    try:
        with connect() as corral:
            found = list(corral.volumes.all())
    except CorralError:
        return []
    return [(one.name, f"version {one.head}") for one in found if one.name.startswith(incomplete)]
