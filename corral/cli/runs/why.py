"""`corral why`: which hosts could take a run, and why the others cannot."""

from __future__ import annotations

from collections.abc import Sequence

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson, RunId
from corral.cli.server.status import told_of_dead_worker
from corral.settings import read_settings
from corral.wire.runs import HostVerdict, WhyAnswer

# How the server's summary ends where a table of reasons follows.
REASONS_BELOW = "; the reasons are below"
_KINDS_TOLD = 3
_HOSTS_TOLD = 3


def why(run: RunId, as_json: AsJson = False) -> None:
    """Say which hosts could take a run, and why the others cannot."""
    with connect() as corral:
        answer = corral.runs.why(run)
    if as_json:
        render.show_json(answer)
        return
    render.say(answer.summary)
    for line in answer.queue:
        render.say(line)
    show_placements(answer.hosts)
    # The server notices it only when the host has not been heard of for a while.
    if dead := told_of_dead_worker(read_settings(), {host.host_id for host in answer.hosts}):
        render.note(dead)


def sentence(answer: WhyAnswer) -> str:
    """What the run waits for, in one line; where no host can take it, with what a few of them lack."""
    head, is_stuck, _ = answer.summary.partition(REASONS_BELOW)
    if not is_stuck:
        return head
    lacking: dict[str, list[str]] = {}
    for host in answer.hosts:
        lacking.setdefault("; ".join(host.reasons), []).append(host.host)
    told = [f"{_named(hosts)}: {why}" for why, hosts in lacking.items()]
    more = f"; and more: `corral why {answer.run_id}`" if len(told) > _KINDS_TOLD else ""
    return f"{head}: {'; '.join(told[:_KINDS_TOLD])}{more}"


def _named(hosts: Sequence[str]) -> str:
    more = len(hosts) - _HOSTS_TOLD
    return ", ".join(hosts[:_HOSTS_TOLD]) + (f" and {more} more" if more > 0 else "")


def show_placements(hosts: Sequence[HostVerdict]) -> None:
    rows = []
    for host in hosts:
        # One below the other: a reason may hold any sign that would part them.
        first, *others = [*host.reasons, *host.waits] or [host.note]
        rows += [(host.host, _place(host), first), *(("", "", reason) for reason in others)]
    empty = "no host is enrolled; `corral up --detach` starts a worker here"
    render.show_table(("HOST", "ELIGIBLE", "WHY"), rows, empty=empty)


def _place(host: HostVerdict) -> str:
    """`yes`, `waits`, or why not in a word; an older server says only whether."""
    words = {"ready": "yes", "": "yes" if host.eligible else "no"}
    return words.get(host.place, host.place.replace("_", " "))
