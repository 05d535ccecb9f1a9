"""Why no host at all can take a run, in one line."""

from __future__ import annotations

from corral.core.policy import ServerPolicy
from corral.core.queue.eligibility import Shapes
from corral.core.queue.why import WhyQuestion, standings
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx

# Of hosts that lack different things, and of those that lack the same, so many are named.
_NAMED = 3


def why_nowhere(tx: Tx, run: Run, *, now: float, policy: ServerPolicy, shapes: Shapes) -> str | None:
    """What each host lacks: `vm: needs 1 GPU; the host has none`. None if one may take it, now or later."""
    asked = WhyQuestion(shapes.get(tx, run.shape), run.project, run.name, run)
    found = standings(tx, asked, now=now, policy=policy, shapes=shapes)
    if not found:
        return "no host has joined"
    if any(one.eligible for one in found):
        return None
    lacking: dict[str, list[str]] = {}
    for one in found:
        lacking.setdefault("; ".join(one.reasons), []).append(one.host.name)
    told = [f"{_named(hosts)}: {why}" for why, hosts in lacking.items()]
    more = f"; and more: `corral why {run.id}`" if len(told) > _NAMED else ""
    return f"{'; '.join(told[:_NAMED])}{more}"


def _named(hosts: list[str]) -> str:
    more = len(hosts) - _NAMED
    return ", ".join(hosts[:_NAMED]) + (f" and {more} more" if more > 0 else "")
