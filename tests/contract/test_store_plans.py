"""The queue's statements never read more rows than they return, however long the queue is."""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.postgres import PrivatePostgres

from contract.conftest import Database, opened
from corral.domain.ids import Digest
from corral.domain.runs.queue import Lane, ReadyRun
from corral.domain.runs.runs import Run, RunFilter
from corral.store.postgres.store import PostgresStore
from corral.store.rows import RUN
from corral.store.sqlite.store import SqliteStore
from corral.store.statements import Dialect, Statements

# SQLite chooses an index by the schema alone; a long table shows only how long a wrong one takes.
MANY = 100_000
SHAPES, PRIORITIES, PROJECTS = 20, 3, 5
LANE = Lane(Digest("shape-07"), 1, "project-3")
NO_LANE = Lane(Digest("shape-99"), 1, "project-3")

# Each lane is a mixture of all ages.
_COLUMNS = {
    "id": "'r-' || {number}",
    "project": "'project-' || (i / 60 % 5)",
    "name": "'run-' || (i % 1000)",
    "shape": "'shape-' || {shape}",
    "priority": "i / 20 % 3",
    "group_id": "CASE WHEN i % 10 = 0 THEN 'g-big' END",
    "created_at": "i * 1.0",
    "ready_at": "i * 1.0",
    "state": "'queued'",
    "labels": "'{{}}'",
    "metrics": "'{{}}'",
}
_SQLITE_FORMS = {"number": "printf('%012d', i)", "shape": "printf('%02d', i % 20)"}
_POSTGRES_FORMS = {"number": "lpad(i::text, 12, '0')", "shape": "lpad((i % 20)::text, 2, '0')"}
_NULLABLE = {
    *("seed", "manifest", "wall_limit_s", "stall_limit_s", "hold_reason", "not_before"),
    *("started_at", "ended_at", "reason", "detail", "exit_code", "signal", "stop_deadline"),
    *("stop_reason", "last_host", "artifact_id"),
}

NEWEST = {"after_created_at": math.inf, "after_id": ""}

# What the hot statements are called with, and the index each must use.
HOT: list[tuple[str, dict[str, Any], str]] = [
    ("lane_first", {}, "runs_claim"),
    ("lane_next", LANE._asdict(), "runs_claim"),
    ("lane_next", NO_LANE._asdict(), "runs_claim"),
    ("run_ready", {**LANE._asdict(), "limit": 256}, "runs_claim"),
    ("run_ready", {**NO_LANE._asdict(), "limit": 256}, "runs_claim"),
    ("run_ready", {**LANE._asdict(), "after_ready_at": 9e3, "after_id": "r-x", "limit": 16}, "runs_claim"),
    ("run_due_held", {"now": 1.0, "limit": 10}, "runs_held"),
    ("run_due_stops", {"now": 1.0, "limit": 10}, "runs_stop"),
    ("run_over_wall", {"now": 1.0, "since": 0.0, "limit": 10}, "runs_wall"),
    ("run_stalled", {"now": 1.0, "limit": 10}, "runs_stall"),
    ("run_ended_before", {"when": 1.0, "limit": 10}, "runs_logged"),
    ("run_page", {**NEWEST, "limit": 50}, "runs_created"),
    (
        "run_beginning",
        {"low": "r-b", "high": "r-b~", "project": "project-3", "limit": 50},
        "sqlite_autoindex_runs_1",
    ),
    ("run_page", {**NEWEST, "project": "project-3", "limit": 50}, "runs_project"),
    ("run_page", {"after_created_at": 9e4, "after_id": "r-x", "limit": 50}, "runs_created"),
    ("run_page", {**NEWEST, "state": "held", "project": "project-3", "limit": 50}, "runs_state"),
    ("run_page", {**NEWEST, "name": "run-7", "check_state": "held", "limit": 50}, "runs_name"),
    ("state_project_after", {"state": "held"}, "runs_state"),
    ("group_placed", {"group_id": "g-x", "but": "", "limit": 10}, "runs_"),
    ("group_waiting", {"group_id": "g-x", "hold_reason": "concurrency", "limit": 10}, "runs_waiting"),
    ("group_with_held_after", {"after": "g-x"}, "runs_waiting"),
    ("group_states", {"group_id": "g-big"}, "runs_in_group"),
    ("group_running", {"group_id": "g-x", "limit": 10}, "runs_in_group"),
    ("schedule_unfinished", {"schedule_id": "s-x", "limit": 10}, "runs_of_schedule"),
    ("run_page", {**NEWEST, "schedule_id": "s-x", "check_state": "held", "limit": 50}, "runs_schedule"),
]


def insert_statement(forms: dict[str, str], source: str) -> str:
    values = {column: text.format(**forms) for column, text in _COLUMNS.items()}
    chosen = [values.get(c, "NULL" if c in _NULLABLE else "'0'" if c in _TEXTS else "0") for c in RUN.columns]
    return f"INSERT INTO runs ({', '.join(RUN.columns)}) SELECT {', '.join(chosen)} FROM {source}"


_TEXTS = {"kind", "identity", "submitted_by"}


@pytest.fixture(scope="module")
def long_table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("long") / "corral.db"
    with opened(SqliteStore(path)):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA synchronous = OFF")
        raw.execute("PRAGMA journal_mode = OFF")
        raw.execute("PRAGMA cache_size = -1000000")
        numbers = (
            f"(WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY - 1})"
            " SELECT i FROM n)"
        )
        raw.execute(insert_statement(_SQLITE_FORMS, numbers))
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def long_queue(postgres: PrivatePostgres) -> Iterator[str]:
    with postgres.fresh() as url:
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute(insert_statement(_POSTGRES_FORMS, "generate_series(0, 99999) AS n (i)").encode())
            raw.execute("VACUUM ANALYZE runs")
        yield url


@pytest.mark.parametrize(
    ("name", "params", "index"), HOT, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(HOT)]
)
def test_on_sqlite_the_index_is_used_and_nothing_is_scanned_or_sorted(
    long_table: Path, name: str, params: dict[str, Any], index: str
) -> None:
    text = Statements(Dialect.SQLITE, locks=False).text(name, params)
    with closing(sqlite3.connect(long_table)) as raw:
        plan = [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {text}", params)]
        began = time.perf_counter()
        raw.execute(text, params).fetchall()
        print(f"{name}: {(time.perf_counter() - began) * 1e6:.0f} us: {plan}")

    touching = [step for step in plan if re.match("(SCAN|SEARCH) (runs|r) ", step)]
    assert touching
    for step in touching:
        assert f"INDEX {index}" in step, plan
    # Walking an index from its end is no scan of runs: LIMIT stops it, or it holds only what matters.
    walks = {"lane_first", "run_over_wall", "run_stalled"}
    assert name in walks or not any(step.startswith("SCAN runs") for step in plan), plan
    assert not any("TEMP B-TREE FOR ORDER" in step for step in plan), plan


@pytest.mark.parametrize(
    ("name", "params", "index"), HOT, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(HOT)]
)
def test_on_postgres_few_pages_are_read_and_the_table_is_not_scanned(
    long_queue: str, name: str, params: dict[str, Any], index: str
) -> None:
    text = Statements(Dialect.POSTGRES, locks=True).text(name, params)
    with psycopg.connect(long_queue, autocommit=True) as raw:
        explain = f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {text}".encode()
        plan = "\n".join(row[0] for row in raw.execute(explain, params))
    print(plan)

    # Which of two good indexes it takes is for its statistics to say; the queue has only one.
    assert index != "runs_claim" or "runs_claim" in plan
    assert "Seq Scan" not in plan
    pages = sum(int(number) for number in re.findall(r"(?:hit|read)=(\d+)", plan.partition("Planning")[0]))
    assert pages < 1000, plan


# What is asked for again and again must not depend on how many files and log segments there ever were.
KEPT: list[tuple[str, dict[str, Any], str]] = [
    ("segment_runs_gone", {"limit": 10}, "removed_logs"),
    ("project_bytes_get", {"project": "p"}, "project_bytes"),
    ("schedule_ahead", {"now": 1.0, "limit": 10}, "schedules"),
]


@pytest.mark.parametrize(("name", "params", "table"), KEPT, ids=[name for name, _, _ in KEPT])
def test_what_is_asked_often_reads_a_table_of_its_own(
    long_table: Path, name: str, params: dict[str, Any], table: str
) -> None:
    with closing(sqlite3.connect(long_table)) as raw:
        text = Statements(Dialect.SQLITE, locks=False).text(name, params)
        plan = [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {text}", params)]

    assert len(plan) == 1
    assert re.match(f"(SCAN|SEARCH) {table} USING (COVERING )?INDEX", plan[0]), plan


def test_a_group_is_counted_without_reading_its_runs(long_table: Path, long_queue: str) -> None:
    params = {"group_id": "g-big"}
    with closing(sqlite3.connect(long_table)) as raw:
        text = Statements(Dialect.SQLITE, locks=False).text("group_states", params)
        (step,) = [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {text}", params)]
        assert "COVERING INDEX runs_in_group" in step
        assert raw.execute(text, params).fetchall() == [("queued", MANY // 10)]
    with psycopg.connect(long_queue, autocommit=True) as pg:
        text = Statements(Dialect.POSTGRES, locks=True).text("group_states", params)
        plan = "\n".join(row[0] for row in pg.execute(f"EXPLAIN {text}".encode(), params))
        assert "Index Only Scan using runs_in_group" in plan


@pytest.fixture(params=["sqlite", "postgres"])
def full(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == "postgres":
        with opened(PostgresStore(request.getfixturevalue("long_queue"))) as database:
            yield database
    else:
        with opened(SqliteStore(request.getfixturevalue("long_table"))) as database:
            yield database


def test_a_long_queue_is_listed_lane_by_lane(full: Database) -> None:
    lanes = full.read(lambda tx: tx.runs.lanes())
    began = time.perf_counter()
    lanes = full.read(lambda tx: tx.runs.lanes())
    print(f"{len(lanes)} lanes in {(time.perf_counter() - began) * 1e3:.1f} ms")

    assert lanes == sorted(lanes, key=lambda lane: (lane.shape, -lane.priority, lane.project))
    assert len(set(lanes)) == SHAPES * PRIORITIES * PROJECTS
    assert full.read(lambda tx: tx.runs.ready(NO_LANE, after=None, limit=10)) == []


def test_a_lane_of_a_long_queue_pages_in_order(full: Database) -> None:
    first = full.read(lambda tx: tx.runs.ready(LANE, after=None, limit=100))
    again = full.read(lambda tx: tx.runs.ready(LANE, after=first[49], limit=50))

    assert first == sorted(first)
    assert first[50:] == again
    assert isinstance(again[0], ReadyRun)


def listed(db: Database, where: RunFilter) -> list[Run]:
    return db.read(lambda tx: tx.runs.page(where, after=None, limit=50))


def test_a_list_of_few_among_many_is_short_work(full: Database) -> None:
    for where in (RunFilter(states=("running", "failed")), RunFilter(states=("queued",)), RunFilter()):
        began = time.perf_counter()
        page = listed(full, where)
        print(f"{where.states}: {len(page)} runs in {(time.perf_counter() - began) * 1e3:.1f} ms")
        assert [run.created_at for run in page] == sorted((r.created_at for r in page), reverse=True)
        assert len(page) == (0 if "running" in where.states else 50)
