"""The tables of DESIGN.md section 3, row by row, against the code and the page in the docs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest

from corral.domain.errors import IllegalTransition
from corral.domain.runs.reasons import Reason
from corral.domain.runs.retries import BUDGET_OF, Budget, RetryLimits
from corral.domain.runs.states import (
    FINAL,
    RANK_TRANSITIONS,
    RUN_TRANSITIONS,
    Fold,
    RankEvent,
    RankState,
    RunEvent,
    RunState,
    fold,
    run_sources,
    step_rank,
    step_run,
)

State = TypeVar("State", bound=str)
Happening = TypeVar("Happening", bound=str)
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "states.md"

# As the design writes it: states, events, where they lead.
RUN_ROWS = """
held | release | queued
queued | hold | held
held | fail | failed
queued | place | placing
placing | withdraw, placement_lost | queued
queued | claim | running
placing | claim | running
queued, placing | reattach | running
running | requeue | queued
running, queued, placing | fail | failed
running | finish | succeeded
held, queued, placing | cancel | cancelled
running | cancel | stopping
running | halt | halting
running | preempt | yielding
stopping, halting, yielding | finish | succeeded
stopping | stopped, fail, lease_expired, stop_deadline | cancelled
halting | stopped, fail, lease_expired, stop_deadline | failed
yielding | stopped, fail, lease_expired, stop_deadline | queued
yielding | cancel | stopping
yielding | halt | halting
"""
RANK_ROWS = """
waiting | claim | running
waiting | retire | retired
running | stop | stopping
running | retire | retiring
running, stopping, retiring | finish | done
running, stopping | fail, stopped, lease_expired | ended
retiring | fail, stopped, lease_expired | retired
ended | restart | waiting
ended | reattach | running
"""


def read_rows(text: str) -> dict[tuple[str, str], str]:
    table: dict[tuple[str, str], str] = {}
    for line in text.strip().splitlines():
        states, events, to = (part.strip() for part in line.split("|"))
        for pair in product(states.split(", "), events.split(", ")):
            assert pair not in table, f"{pair} is there twice"
            table[pair] = to
    return table


@pytest.mark.parametrize("state", RunState)
@pytest.mark.parametrize("event", RunEvent)
def test_a_run_goes_where_the_design_says_and_nowhere_else(state: RunState, event: RunEvent) -> None:
    """MT-D24, FL-C02: every pair of a state and an event is tried."""
    to = read_rows(RUN_ROWS).get((state, event))
    if to is not None:
        assert step_run(state, event) == to
        return
    with pytest.raises(IllegalTransition):
        step_run(state, event)


@pytest.mark.parametrize("state", RankState)
@pytest.mark.parametrize("event", RankEvent)
def test_a_rank_goes_where_the_design_says_and_nowhere_else(state: RankState, event: RankEvent) -> None:
    to = read_rows(RANK_ROWS).get((state, event))
    if to is not None:
        assert step_rank(state, event) == to
        return
    with pytest.raises(IllegalTransition):
        step_rank(state, event)


def test_only_three_states_are_final_and_no_event_leaves_them() -> None:
    """MT-C29."""
    assert {"succeeded", "failed", "cancelled"} == FINAL
    assert not [pair for pair in RUN_TRANSITIONS if pair[0] in FINAL]


@pytest.mark.parametrize("event", RunEvent)
def test_the_sources_of_an_event_are_the_rows_that_name_it(event: RunEvent) -> None:
    assert run_sources(event) == {state for state, e in read_rows(RUN_ROWS) if e == event}


def test_every_state_can_be_reached_from_a_submission() -> None:
    reached, grew = {"queued"}, True
    while grew:
        more = {str(to) for (state, _), to in RUN_TRANSITIONS.items() if state in reached}
        grew, reached = not more <= reached, reached | more
    assert reached == set(RunState)


def test_every_state_that_is_not_final_can_still_end() -> None:
    """Nothing is a trap: from each there is a way to a final state."""
    ends, grew = set(map(str, FINAL)), True
    while grew:
        more = {str(state) for (state, _), to in RUN_TRANSITIONS.items() if to in ends}
        grew, ends = not more <= ends, ends | more
    assert ends == set(RunState)


@pytest.mark.parametrize(
    ("ranks", "minimum", "elastic", "wanted"),
    [
        ("waiting", 1, False, Fold.WAITING),
        ("running", 1, False, Fold.RUNNING),
        ("done", 1, False, Fold.FINISHED),
        ("ended", 1, False, Fold.ENDED),
        ("running running", 2, False, Fold.RUNNING),
        ("running waiting", 2, False, Fold.WAITING),
        ("done running", 2, False, Fold.RUNNING),
        ("done retired", 1, True, Fold.FINISHED),
        ("running ended", 2, False, Fold.ENDED),
        ("running running ended", 2, True, Fold.RUNNING),
        ("running ended ended", 2, True, Fold.ENDED),
        ("done done ended", 2, True, Fold.RUNNING),
        ("retiring running", 2, True, Fold.RUNNING),
    ],
)
def test_a_runs_state_is_a_fold_over_its_ranks(ranks: str, minimum: int, elastic: bool, wanted: Fold) -> None:
    states = [RankState(name) for name in ranks.split()]
    assert fold(states, minimum=minimum, elastic=elastic) is wanted


def test_every_reason_is_paid_from_the_budget_that_the_design_names() -> None:
    """FL-C20, FL-D33, MT-C32, MT-C51: lost hosts, memory and code errors are counted apart."""
    infrastructure = {"host_lost", "preempted", "placement_lost", "no_capacity", "stalled", "store_away"}
    never = {"wall_limit", "money_limit", "cancelled", "finished", "parent_failed", "poison"}
    assert {r for r in Reason if BUDGET_OF[r] is Budget.INFRASTRUCTURE} == infrastructure
    assert {r for r in Reason if BUDGET_OF[r] is Budget.MEMORY} == {"out_of_memory"}
    assert {r for r in Reason if BUDGET_OF[r] is Budget.NEVER} == never
    assert {"code_error", "bad_data"} <= {r for r in Reason if BUDGET_OF[r] is Budget.CODE}
    assert set(BUDGET_OF) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_a_charge_counts_once_and_a_refund_takes_it_back(reason: Reason) -> None:
    used = RetryLimits(0, 0, 0).charged(reason)
    spent = [used.infrastructure, used.memory, used.code]
    assert sum(spent) == (BUDGET_OF[reason] not in (Budget.FREE, Budget.NEVER))
    assert used.charged(reason, -1) == RetryLimits(0, 0, 0)


def render_page() -> str:
    """`docs/reference/states.md`: a diagram and a table for each, from the tables of the code."""
    return (
        "# States of runs and ranks\n\n"
        "Why a run ended is its `reason`; this page is where it is. It is written from"
        " `corral/domain/runs/states.py`, and a test keeps the two equal.\n\n"
        f"## Runs\n\n{_render(RUN_TRANSITIONS, 'queued')}\n"
        f"## Ranks\n\nA run of one process has one rank.\n\n{_render(RANK_TRANSITIONS, 'waiting')}"
    )


def _render(table: Mapping[tuple[State, Happening], State], start: str) -> str:
    edges: dict[tuple[str, str], list[str]] = {}
    for (state, event), to in table.items():
        edges.setdefault((str(state), str(to)), []).append(str(event))
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    lines += [f"    {state} --> {to}: {', '.join(events)}" for (state, to), events in edges.items()]
    leaves = sorted({to for _, to in edges} - {state for state, _ in edges})
    lines += [f"    {state} --> [*]" for state in leaves]
    lines += ["```", "", "| from | event | to |", "|---|---|---|"]
    lines += [f"| {state} | {', '.join(events)} | {to} |" for (state, to), events in edges.items()]
    return "\n".join(lines) + "\n"


def test_the_page_in_the_docs_is_the_table() -> None:
    wanted = render_page()
    found = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    assert found == wanted, (
        "write it anew: python -c 'import test_states as t; t.PAGE.write_text(t.render_page())' in tests/unit"
    )
