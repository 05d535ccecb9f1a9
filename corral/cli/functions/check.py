"""`corral fn check`: what would be missing on a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.functions.app_file import File, members_of
from corral.cli.options import AsJson
from corral.domain.errors import ServerUnreachable
from corral.functions.check import CheckFinding
from corral.functions.check import check as checked
from corral.functions.member import Member

_SILENT_S = 2.0


def check_app(file: File, as_json: AsJson = False) -> None:
    """Say what would be missing on a worker. Exits with 1 if something cannot work."""
    members = members_of(file)
    found = [(member, finding) for member in _with_progress(members) for finding in checked(member)]
    found += [(member, finding) for member in members for finding in _system_findings(member)]
    if as_json:
        render.show_json([{"member": member.name, **vars(finding)} for member, finding in found])
    else:
        said: dict[CheckFinding, list[str]] = {}
        for member, finding in found:
            said.setdefault(finding, []).append(member.name)
        table = [(one.level, ", ".join(names), one.where, one.message) for one, names in said.items()]
        empty = f"{len(members)} checked: nothing is missing"
        render.show_table(("", "FUNCTION", "WHERE", "WHAT"), table, empty=empty)
    if any(finding.level == "error" for _, finding in found):
        raise typer.Exit(1)


def _with_progress(members: list[Member]) -> Iterator[Member]:
    """Say how far it is, where it takes long."""
    began = time.monotonic()
    for place, member in enumerate(members, start=1):
        if time.monotonic() - began > _SILENT_S:
            render.note(f"corral: checking {member.name}, {place} of {len(members)}")
        yield member


def _system_findings(member: Member) -> list[CheckFinding]:
    """Which hosts lack a system package; a host that was never asked for one is not known to."""
    wanted = member.settings.resources.system
    if not wanted:
        return []
    try:
        with connect() as corral:
            hosts = [host for host in corral.hosts.page().items if host.revoked_at is None]
    except ServerUnreachable:
        why = f"needs {', '.join(wanted)} on its host; no server was asked"
        return [CheckFinding("warning", member.name, why)]
    found = []
    for name in wanted:
        has = {host.name: (host.capability.system.get(name) if host.capability else None) for host in hosts}
        lacking = sorted(host for host, there in has.items() if there is False)
        if hosts and len(lacking) == len(hosts):
            why = f"needs {name}, and every host lacks it: {', '.join(lacking)}"
            found.append(CheckFinding("error", member.name, why))
        elif lacking:
            found.append(CheckFinding("warning", member.name, f"needs {name}; {', '.join(lacking)} lacks it"))
    return found
