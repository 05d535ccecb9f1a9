"""Show and verify who did what."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.bars import step_bar
from corral.cli.options import command_group, duration_s
from corral.client.corral import Corral
from corral.domain.audit import AuditChain, AuditFilter
from corral.domain.canonical import canonical
from corral.domain.errors import CorralError
from corral.wire.audit import AuditView

app = command_group(__doc__)
POLL_S = 1.0
_HEAD = re.compile(r"([1-9][0-9]{0,17}):([0-9a-f]{64})")


class AuditBroken(CorralError):
    """The chain is not as it was written."""

    code = "audit_broken"
    hint = "Somebody changed the database by hand, or it was damaged; compare with a backup."


@app.command("ls")
def list_audit(
    target: Annotated[str | None, typer.Option(help="Of this alone, as `host:box`.")] = None,
    actor: Annotated[str | None, typer.Option(help="By this one alone, as `operator:ada`.")] = None,
    action: Annotated[str | None, typer.Option(help="This alone, as `token.create` or `token`.")] = None,
    since: Annotated[str | None, typer.Option(help='Of the last while, as "2h" or "7d".')] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --follow, line by line.")] = False,
) -> None:
    """List what operators and users did to anything that is not a run; what happened to a run is in
    `corral events`."""
    age_s = duration_s(since, "--since")
    where = AuditFilter(target, actor, action, None if age_s is None else max(0.0, time.time() - age_s))
    with connect() as corral:
        found = list(itertools.islice(corral.audit.newest(where), limit))[::-1]
        if follow:
            for entry in _follow(corral, where, found):
                if as_json:
                    render.show_json_line(entry)
                else:
                    render.say("  ".join(str(cell) for cell in _row(entry) if cell))
            return
    columns = ("N", "WHEN", "ACTOR", "FROM", "ACTION", "TARGET", "DATA")
    render.show_list(found, columns, map(_row, found), as_json=as_json, empty="nothing was done yet")


def _row(entry: AuditView) -> tuple[render.Cell, ...]:
    data = {key: value for key, value in entry.data.items() if value is not None}
    return (
        entry.n,
        render.moment(entry.at),
        entry.actor,
        entry.origin or None,
        entry.action,
        entry.target,
        canonical(data) if data else None,
    )


def _follow(corral: Corral, where: AuditFilter, found: list[AuditView]) -> Iterator[AuditView]:
    yield from found
    last = found[-1].n if found else next((entry.n for entry in corral.audit.newest()), 0)
    while True:
        for entry in corral.audit.after(last, where):
            last = entry.n
            yield entry
        time.sleep(POLL_S)


@app.command()
def verify(
    head: Annotated[
        str | None, typer.Option(help="`N:HASH` that an earlier `verify` printed: it must still be there.")
    ] = None,
) -> None:
    """Recompute the chain from its beginning, here and not on the server.

    Exits with 1 at the first entry that was changed or is missing. Keep what it prints elsewhere and give
    it as --head next time: that also shows a chain that was cut off at its end or written anew.
    """
    kept = _head(head)
    chain, met = AuditChain(), kept is None
    with connect() as corral, step_bar() as bar:
        while page := corral.audit.after(chain.n):
            if not chain.follow(view.entry() for view in page):
                raise AuditBroken(f"the audit is broken: {chain.problem}")
            met = met or any((view.n, view.hash) == kept for view in page)
            bar.step(f"verifying entry {chain.n}")
    if not met:
        raise AuditBroken(f"the audit is broken: it does not hold the entry {head}")
    counted = "1 entry" if chain.n == 1 else f"{chain.n} entries"
    render.say(f"verified {counted}; the head is {chain.n}:{chain.hash}")


def _head(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    match = _HEAD.fullmatch(text)
    if match is None:
        raise typer.BadParameter("is not N:HASH as `verify` prints it", param_hint="--head")
    return int(match[1]), match[2]
