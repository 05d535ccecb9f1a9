"""Units of work: all or nothing, announced after the commit, on every database."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from contract.conftest import Database, Heard
from contract.samples import a_run
from corral.domain.errors import Conflict, CorralError, StoreUnavailable
from corral.store.transaction import Tx


def test_a_unit_returns_its_result_and_is_read_back_at_once(db: Database) -> None:
    run = a_run()

    def unit(tx: Tx) -> str:
        tx.runs.insert(run, "{}")
        return "done"

    async def write_then_read() -> None:
        for _ in range(5):
            await db.store.write(lambda tx: tx.loops.tick("x", 1.0))
        assert await db.store.write(unit) == "done"
        assert await db.store.read(lambda tx: tx.runs.get(run.id)) == run

    db.do(write_then_read())


@pytest.mark.parametrize("error", [Conflict("no"), ValueError("a defect")])
def test_a_unit_that_raises_leaves_nothing(db: Database, error: Exception) -> None:
    run = a_run()

    def unit(tx: Tx) -> None:
        tx.runs.insert(run, "{}")
        raise error

    with pytest.raises(type(error), match=str(error)):
        db.write(unit)
    assert db.read(lambda tx: tx.runs.get(run.id)) is None
    db.write(lambda tx: tx.runs.insert(run, "{}"))


def test_units_told_together_are_answered_one_by_one(db: Database) -> None:
    runs = [a_run() for _ in range(6)]

    def unit(n: int, tx: Tx) -> int:
        if n == 1:
            raise Conflict("before it changed anything")
        tx.runs.insert(runs[n], "{}")
        if n == 3:
            raise ValueError("half way")
        return n

    async def work() -> list[int | Exception]:
        return await db.store.write_each([partial(unit, n) for n in range(6)])

    answers = db.do(work())

    assert [n for n in answers if isinstance(n, int)] == [0, 2, 4, 5]
    assert isinstance(answers[1], Conflict)
    assert isinstance(answers[3], ValueError)
    there = [db.read(lambda tx, run=run: tx.runs.get(run.id)) is not None for run in runs]  # type: ignore[misc]
    assert there == [True, False, True, False, True, True]


def test_whoever_has_an_answer_can_rely_on_what_was_announced(db: Database) -> None:
    """A run that was submitted is claimed by a poll that does not wait, on every database; heard once."""
    heard = Heard(db.store)

    async def announce() -> None:
        for n in range(20):
            await db.store.write(lambda tx, n=n: tx.announce("run", f"r-{n}"))  # type: ignore[misc]
            await asyncio.sleep(0)
            assert heard.all[-1:] == [("run", f"r-{n}")]
        # Whatever Postgres says of it comes meanwhile.
        await asyncio.sleep(0.1)

    db.do(announce())

    assert heard.all == [("run", f"r-{n}") for n in range(20)]


def test_announcements_come_after_the_commit_and_only_then(db: Database) -> None:
    heard = Heard(db.store)

    def failing(tx: Tx) -> None:
        tx.announce("run", "never")
        raise Conflict("no")

    def reading(tx: Tx) -> None:
        tx.announce("run", "not from a read")

    def unit(tx: Tx) -> None:
        tx.announce("run", "r-1")
        tx.announce("ready", 'x|1|"ü y')
        assert heard.all == []

    async def work() -> None:
        with pytest.raises(Conflict):
            await db.store.write(failing)
        await db.store.read(reading)
        await db.store.write(unit)
        await heard.until(2)

    db.do(work())
    assert heard.all == [("run", "r-1"), ("ready", 'x|1|"ü y')]


def test_a_listener_that_raises_harms_neither_the_writer_nor_other_listeners(db: Database) -> None:
    problems: list[object] = []

    def broken(topic: str, key: str) -> None:
        raise ValueError(key)

    db.store.subscribe(broken)
    heard = Heard(db.store)

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        await db.store.write(lambda tx: tx.announce("run", "1"))
        await db.store.write(lambda tx: tx.announce("run", "2"))
        await heard.until(2)

    db.do(work())
    assert heard.all == [("run", "1"), ("run", "2")]
    assert len(problems) == 2


def test_a_key_too_long_for_a_notification_is_refused_everywhere(db: Database) -> None:
    with pytest.raises(ValueError, match="too long"):
        db.write(lambda tx: tx.announce("run", "x" * 2000))
    db.write(lambda tx: tx.announce("run", "ü" * 1500))


def test_a_read_keeps_nothing(db: Database) -> None:
    run = a_run()

    async def read() -> None:
        # In memory it is not refused, only undone.
        try:
            await db.store.read(lambda tx: tx.runs.insert(run, "{}"))
        except StoreUnavailable:
            return

    db.do(read())
    assert db.read(lambda tx: tx.runs.get(run.id)) is None


def test_a_locked_run_is_changed_by_one_unit_at_a_time(db: Database) -> None:
    run = a_run()
    db.write(lambda tx: tx.runs.insert(run, "{}"))

    def bump(tx: Tx) -> int:
        now = tx.runs.lock(run.id)
        assert now is not None
        tx.runs.save(now._replace(epoch=now.epoch + 1))
        return now.epoch

    async def work() -> list[int]:
        return await asyncio.gather(*(db.store.write(bump) for _ in range(30)))

    assert sorted(db.do(work())) == list(range(30))


def test_this_server_leads_its_loops(db: Database) -> None:
    assert db.do(db.store.lead("sweep"))
    assert db.do(db.store.lead("sweep"))
    assert db.do(db.store.lead("collect"))


def test_a_closed_store_says_so(db: Database) -> None:
    db.do(db.store.close())

    with pytest.raises(CorralError, match="closed"):
        db.write(lambda tx: tx.loops.tick("x", 1.0))
    with pytest.raises(CorralError, match="closed"):
        db.read(lambda tx: tx.runs.counts())
