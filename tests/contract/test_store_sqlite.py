"""What only SQLite has: group commit, a file that fills up or is taken, and files of others."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from contract.conftest import Database, opened
from contract.samples import a_run
from corral.domain.errors import Conflict, DiskFull, InvalidInput, StoreUnavailable
from corral.domain.runs.runs import Run
from corral.store.sqlite.committer import Committer
from corral.store.sqlite.store import MEMORY, SqliteStore
from corral.store.transaction import Tx


def insert(run: Run, tx: Tx) -> None:
    tx.runs.insert(run, "{}")


def kept(path: Path) -> int:
    with closing(sqlite3.connect(path)) as raw:
        (count,) = raw.execute("SELECT COUNT(*) FROM runs").fetchone()
    return int(count)


def test_units_share_a_commit_and_one_that_fails_harms_nobody(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "corral.db")
    heard: list[str] = []
    store.subscribe(lambda topic, key: heard.append(key))

    def unit(n: int, tx: Tx) -> int:
        tx.runs.insert(a_run(), "{}")
        tx.announce("run", str(n))
        if n % 10 == 3:
            raise Conflict(f"unit {n}")
        return n

    async def work() -> list[int | BaseException]:
        units = (store.write(partial(unit, n)) for n in range(100))
        return await asyncio.gather(*units, return_exceptions=True)

    with opened(store) as db:
        results = db.do(work())
        db.write(lambda tx: None)

        failed = [n for n in range(100) if n % 10 == 3]
        assert [n for n, result in enumerate(results) if isinstance(result, Conflict)] == failed
        assert kept(tmp_path / "corral.db") == 90
        assert heard == [str(n) for n in range(100) if n not in failed]
        assert store.commits <= 20


def test_a_caller_that_goes_away_does_not_break_the_batch(sqlite: Database) -> None:
    runs = [a_run() for _ in range(20)]

    async def work() -> None:
        tasks = [asyncio.create_task(sqlite.store.write(partial(insert, run))) for run in runs]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in done[::2])
        assert all(result is None for result in done[1::2])

    sqlite.do(work())
    there = {run.id for run in sqlite.read(lambda tx: tx.runs.page_by_id(None, 100))}
    assert {run.id for run in runs[1::2]} <= there


def test_a_full_disk_fails_the_batch_and_announces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    store = SqliteStore(path, max_bytes=1 << 20)
    heard: list[str] = []
    store.subscribe(lambda topic, key: heard.append(key))

    def unit(spec: str, tx: Tx) -> None:
        run = a_run()
        tx.runs.insert(run, spec)
        tx.announce("run", run.id)

    async def work() -> list[BaseException | None]:
        units = (store.write(partial(unit, "x" * n)) for n in (10, 10, 2 << 20, 10))
        return await asyncio.gather(*units, return_exceptions=True)

    with opened(store) as db:
        results = db.do(work())
        failed = [result for result in results if result is not None]
        assert failed
        assert all(isinstance(result, DiskFull) for result in failed)
        assert kept(path) == len(heard) == len(results) - len(failed)

        # Room for small things is left, so the store goes on.
        before = kept(path)
        db.write(partial(unit, "small"))
        assert kept(path) == before + 1


def test_everything_fails_cleanly_while_the_disk_stays_full(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    store = SqliteStore(path, max_bytes=700 << 10)

    async def fill() -> int:
        accepted = 0
        while True:
            units = [store.write(lambda tx: tx.runs.insert(a_run(), "x" * 3000)) for _ in range(8)]
            results = await asyncio.gather(*units, return_exceptions=True)
            accepted += sum(result is None for result in results)
            if any(result is not None for result in results):
                assert all(r is None or isinstance(r, DiskFull) for r in results)
                return accepted

    with opened(store) as db:
        accepted = db.do(fill())
        with pytest.raises(DiskFull):
            db.write(lambda tx: tx.runs.insert(a_run(), "x" * 100_000))
        assert kept(path) == accepted > 0


def test_a_file_that_another_process_holds_is_waited_for_without_blocking_the_loop(
    sqlite: Database, tmp_path: Path
) -> None:
    other = sqlite3.connect(tmp_path / "corral.db", isolation_level=None)

    async def work() -> int:
        other.execute("BEGIN IMMEDIATE")
        write = asyncio.create_task(sqlite.store.write(lambda tx: tx.loops.tick("x", 1.0)))
        turns = 0
        while turns < 20:
            await asyncio.sleep(0.001)
            assert not write.done()
            turns += 1
        other.execute("ROLLBACK")
        await write
        return turns

    with closing(other):
        assert sqlite.do(work()) == 20


def test_a_file_that_stays_held_is_unavailable_for_now(sqlite: Database, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "corral.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            sqlite.write(lambda tx: tx.loops.tick("x", 1.0))
        other.execute("ROLLBACK")

    sqlite.write(lambda tx: tx.loops.tick("x", 1.0))


def test_a_read_sees_one_snapshot_while_others_write(sqlite: Database) -> None:
    run = a_run()
    began, written = threading.Event(), threading.Event()

    def look(tx: Tx) -> tuple[Run | None, Run | None]:
        first = tx.runs.get(run.id)
        began.set()
        written.wait(120)
        return first, tx.runs.get(run.id)

    async def work() -> tuple[Run | None, Run | None]:
        reading = asyncio.create_task(sqlite.store.read(look))
        await asyncio.to_thread(began.wait, 120)
        await sqlite.store.write(lambda tx: tx.runs.insert(run, "{}"))
        written.set()
        return await reading

    assert sqlite.do(work()) == (None, None)


def test_what_was_written_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    run = a_run()
    for _ in range(2):
        with opened(SqliteStore(tmp_path / "corral.db")) as db:
            if db.read(lambda tx: tx.runs.get(run.id)) is None:
                db.write(lambda tx: tx.runs.insert(run, "{}"))
    assert kept(tmp_path / "corral.db") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["corral.db"]


def test_closing_finishes_what_was_taken(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "corral.db")

    async def work() -> None:
        tasks = [
            asyncio.create_task(store.write(lambda tx: tx.runs.insert(a_run(), "{}"))) for _ in range(50)
        ]
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(*tasks)

    asyncio.run(work())
    assert kept(tmp_path / "corral.db") == 50


def test_the_file_and_its_log_are_private(sqlite: Database, tmp_path: Path) -> None:
    sqlite.write(lambda tx: tx.loops.tick("x", 1.0))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}

    assert modes == {"corral.db": 0o600, "corral.db-wal": 0o600, "corral.db-shm": 0o600}


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n" * 100)

    with pytest.raises(InvalidInput, match=r"notes.txt is not a Corral database"):
        SqliteStore(path)
    assert path.read_text() == "dear diary\n" * 100


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE songs (title TEXT)")
    before = path.read_bytes()

    with pytest.raises(InvalidInput, match="not a Corral database"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="missing"):
        SqliteStore(tmp_path / "missing" / "corral.db")


def test_a_transaction_without_a_loop_commits_at_its_end_or_not_at_all() -> None:
    store = SqliteStore(MEMORY)
    heard: list[str] = []
    store.subscribe(lambda topic, key: heard.append(key))
    run = a_run()

    def failing() -> None:
        with store.transaction() as tx:
            tx.runs.insert(run, "{}")
            tx.announce("run", "never")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        failing()
    with store.transaction() as tx:
        assert tx.runs.get(run.id) is None
        tx.runs.insert(run, "{}")
        tx.announce("run", run.id)
    with store.transaction() as tx:
        assert tx.runs.get(run.id) == run
    assert heard == [run.id]
    asyncio.run(store.close())


class Held(Committer):
    """Commits as it should, but not before it is told to; or fails as a disk does."""

    def __init__(self) -> None:
        super().__init__("held-commit")
        self.go = threading.Event()
        self.fails = False

    def run(self, work: Callable[[], None]) -> asyncio.Future[None]:
        def held() -> None:
            assert self.go.wait(120)
            if self.fails:
                raise sqlite3.OperationalError("disk I/O error")
            work()

        return super().run(held)


def holding(store: SqliteStore) -> Held:
    committer = Held()
    assert store._committer is not None
    store._committer.close()
    store._committer = store._writer._committer = committer
    return committer


def test_what_is_announced_early_is_told_while_the_commit_is_under_way(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "corral.db")
    heard: list[str] = []
    told = asyncio.Event()

    def listen(_: str, key: str) -> None:
        heard.append(key)
        told.set()

    store.subscribe(listen)
    committer = holding(store)

    def unit(tx: Tx) -> None:
        tx.runs.insert(a_run(), "{}")
        tx.announce("run", "late")
        tx.announce("run", "early", early=True)

    async def work() -> None:
        writing = asyncio.ensure_future(store.write(unit))
        await told.wait()
        assert (heard, writing.done()) == (["early"], False)
        assert kept(tmp_path / "corral.db") == 0
        committer.go.set()
        await writing

    with opened(store) as db:
        db.do(work())
        db.write(lambda tx: None)

        assert heard == ["early", "late"]
        assert kept(tmp_path / "corral.db") == 1


def test_a_commit_that_fails_is_an_error_for_all_who_share_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "corral.db")
    committer = holding(store)
    committer.fails = True
    committer.go.set()

    async def work() -> list[BaseException | None]:
        writes = (store.write(partial(insert, a_run())) for _ in range(3))
        return await asyncio.gather(*writes, return_exceptions=True)

    with opened(store) as db:
        assert [type(one) for one in db.do(work())] == [StoreUnavailable] * 3
        committer.fails = False
        db.write(partial(insert, a_run()))

        assert kept(tmp_path / "corral.db") == 1


def test_one_that_fails_half_way_undoes_nothing_of_one_that_was_told_of_early(tmp_path: Path) -> None:
    """What was told of early is not run again: it would be another call the second time."""
    store = SqliteStore(tmp_path / "corral.db")
    times: list[str] = []

    def first(tx: Tx) -> None:
        times.append("first")
        tx.runs.insert(a_run(), "{}")
        tx.announce("call_ready", "of a call", early=True)

    def fails(tx: Tx) -> None:
        times.append("fails")
        tx.runs.insert(a_run(), "{}")
        raise Conflict("half way")

    async def work() -> None:
        done, failed = await asyncio.gather(store.write(first), store.write(fails), return_exceptions=True)
        assert (done, type(failed)) == (None, Conflict)

    with opened(store) as db:
        db.do(work())
        assert times == ["first", "fails"]
        assert kept(tmp_path / "corral.db") == 1


def test_a_writer_that_is_cancelled_leaves_nothing_half_done(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "corral.db")
    committer = holding(store)
    committer.fails = True

    async def work() -> None:
        lost = asyncio.ensure_future(store.write(partial(insert, a_run())))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        writing = store._writer._draining
        assert writing is not None
        writing.cancel()
        with pytest.raises(StoreUnavailable):
            await lost
        committer.go.set()
        with pytest.raises(sqlite3.OperationalError):
            await committer.run(lambda: None)
        committer.fails = False
        await store.write(partial(insert, a_run()))

    with opened(store) as db:
        db.do(work())
        assert kept(tmp_path / "corral.db") == 1


def test_a_unit_that_could_not_be_run_at_all_is_told_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "corral.db")

    def without_savepoints(action: int, *_: object) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_SAVEPOINT else sqlite3.SQLITE_OK

    with opened(store) as db:
        store._writer._in_savepoints = 1
        store._raw.set_authorizer(without_savepoints)
        with pytest.raises(StoreUnavailable, match="not authorized"):
            db.write(partial(insert, a_run()))
        store._raw.set_authorizer(None)
        store._writer._in_savepoints = 0

        db.write(partial(insert, a_run()))
        assert kept(tmp_path / "corral.db") == 1
