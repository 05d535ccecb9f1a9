"""How the rounds of a run's replicas stand: how many, who took part, and what became of each one's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from corral.cli.display import render
from corral.cli.display.visible import visible_line
from corral.wire.runs import AttemptView, RankRoundsView

COLUMNS = ("RANK", "ROUNDS", "LATE", "COMMITTED", "DROPPED", "SENT", "READ", "WAITED")


def of_ranks(attempts: Sequence[AttemptView]) -> dict[int, RankRoundsView]:
    """The newest that each rank has said of them."""
    return {
        rank.rank: rank.rounds for attempt in attempts for rank in attempt.ranks if rank.rounds is not None
    }


def done(ranks: dict[int, RankRoundsView]) -> str | None:
    """`12 of 20`; None of a run without rounds."""
    if not ranks:
        return None
    furthest = max(ranks.values(), key=lambda one: one.done)
    return f"{furthest.done} of {furthest.of}"


def members(ranks: dict[int, RankRoundsView]) -> str | None:
    """Who took part in the last ones: `10: 0 1 2, 11: 0 2, 12: 0 1 2`."""
    if not ranks:
        return None
    furthest = max(ranks.values(), key=lambda one: one.done)
    named = [
        f"{number}{f' part {part + 1}' if furthest.fragments > 1 else ''}: {visible_line(who)}"
        for part, number, who in furthest.recent
    ]
    return ", ".join(named) or None


def show(ranks: dict[int, RankRoundsView]) -> None:
    """A row for each rank; tokens are those that it trained on."""
    if not ranks:
        return
    render.say()
    rows = [
        (
            rank,
            found.taken,
            found.late,
            found.committed,
            found.dropped,
            render.size(found.up),
            render.size(found.down),
            f"{found.waited_s / found.spent_s:.0%}" if found.spent_s else None,
        )
        for rank, found in sorted(ranks.items())
    ]
    render.show_table(COLUMNS, rows, empty="")
