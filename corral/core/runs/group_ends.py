"""Why runs of a group ended as they did: equal failures are one, however many runs had them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from corral.domain.ids import without_ids
from corral.domain.runs.runs import EndedRun, GroupEnd

# Each run has a folder of its own, on whichever host; objects in a traceback have their addresses.
_LEASE_FOLDER = re.compile(r"[^\s\"'`(]*/leases/l-[a-z0-9]{12}")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


def merged_ends(runs: Iterable[EndedRun], *, most: int) -> list[GroupEnd]:
    """The most frequent first; the detail is the example's own."""
    found: dict[tuple[str, str | None, str], GroupEnd] = {}
    for run in runs:
        key = (run.state, run.reason, _alike(run.detail or ""))
        known = found.get(key)
        if known is None:
            found[key] = GroupEnd(run.state, run.reason, run.detail, 1, run.id)
        else:
            found[key] = known._replace(runs=known.runs + 1)
    return sorted(found.values(), key=lambda end: (-end.runs, end.example))[:most]


def _alike(detail: str) -> str:
    """The detail without what differs from run to run though the failure is the same."""
    return _ADDRESS.sub("0x", without_ids(_LEASE_FOLDER.sub("", detail)))
