"""What only Postgres has: several servers, lost connections, and transactions that overlap."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from contract.conftest import Database, Heard, opened
from contract.samples import a_blob, a_host, a_run, an_artifact, digest_of
from corral.domain.artifacts import ArtifactFile
from corral.domain.errors import InvalidInput, StoreUnavailable
from corral.domain.ids import HostId
from corral.domain.runs.runs import Event, Submission
from corral.store.postgres.store import PostgresStore
from corral.store.transaction import Tx


@pytest.fixture
def one(pg_url: str) -> Iterator[Database]:
    with opened(PostgresStore(pg_url)) as database:
        yield database


@pytest.fixture
def other(pg_url: str) -> Iterator[Database]:
    with opened(PostgresStore(pg_url)) as database:
        yield database


def kill_connections(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'corral'"
        )


@contextmanager
def paused(db: Database, unit: Callable[[Tx], object]) -> Iterator[None]:
    """Inside, the unit has run but not committed; at the end it commits."""
    ran, go_on = threading.Event(), threading.Event()

    def held(tx: Tx) -> None:
        unit(tx)
        # What is read comes after everything before it has run.
        tx.quotas.usage()
        ran.set()
        assert go_on.wait(120)

    with ThreadPoolExecutor(1) as pool:
        writing: Future[None] = pool.submit(db.write, held)
        assert ran.wait(120)
        try:
            yield
        finally:
            go_on.set()
        writing.result(120)


def test_connections_that_died_while_idle_are_replaced(one: Database, pg_url: str) -> None:
    one.write(lambda tx: tx.loops.tick("x", 1.0))
    one.read(lambda tx: tx.runs.counts())
    kill_connections(pg_url)

    one.write(lambda tx: tx.loops.tick("x", 2.0))
    assert one.read(lambda tx: tx.runs.counts()) == []


def test_a_unit_whose_connection_dies_leaves_nothing_and_says_unavailable(one: Database, pg_url: str) -> None:
    run = a_run()

    def unit(tx: Tx) -> None:
        tx.runs.insert(run, "{}")
        kill_connections(pg_url)
        tx.runs.get(run.id)

    with pytest.raises(StoreUnavailable):
        one.write(unit)
    assert one.read(lambda tx: tx.runs.get(run.id)) is None
    one.write(lambda tx: tx.runs.insert(run, "{}"))


def test_a_commit_whose_connection_dies_says_that_its_outcome_is_not_known(
    one: Database, pg_url: str
) -> None:
    def unit(tx: Tx) -> None:
        tx.runs.insert(a_run(), "{}")
        tx.runs.counts()
        kill_connections(pg_url)

    with pytest.raises(StoreUnavailable) as caught:
        one.write(unit)
    assert "same request id" in caught.value.hint


def test_a_database_that_is_away_is_unavailable(pg_url: str) -> None:
    with pytest.raises(StoreUnavailable):
        PostgresStore("postgresql://postgres@/none?host=/nonexistent")


def test_the_database_of_another_program_is_refused(pg_url: str) -> None:
    with psycopg.connect(pg_url, autocommit=True) as admin:
        admin.execute("DROP TABLE corral_schema")

    with pytest.raises(InvalidInput, match="not a Corral database"):
        PostgresStore(pg_url)


def test_every_server_hears_what_one_announces_also_after_a_lost_connection(
    one: Database, other: Database, pg_url: str
) -> None:
    heard = Heard(other.store)
    other.read(lambda tx: None)
    one.write(lambda tx: tx.announce("run", "r-1"))
    other.do(heard.until(1))

    kill_connections(pg_url)

    async def again() -> None:
        # Announcements are missed until the listener is back.
        async with asyncio.timeout(20):
            while len(heard.all) < 2:
                await asyncio.to_thread(one.write, lambda tx: tx.announce("run", "r-2"))
                await asyncio.sleep(0.05)

    other.do(again())
    assert set(heard.all) == {("run", "r-1"), ("run", "r-2")}


def test_one_server_leads_until_it_is_gone(pg_url: str, other: Database) -> None:
    with opened(PostgresStore(pg_url)) as first:
        assert first.do(first.store.lead("sweep"))
        assert not other.do(other.store.lead("sweep"))
        assert other.do(other.store.lead("collect"))
        assert first.do(first.store.lead("sweep"))
    assert other.do(other.store.lead("sweep"))


def test_a_leader_that_lost_its_connection_leads_no_more(one: Database, other: Database, pg_url: str) -> None:
    assert one.do(one.store.lead("sweep"))
    kill_connections(pg_url)

    # It learns of it when it asks; the other may have been faster.
    assert not one.do(one.store.lead("sweep"))
    assert other.do(other.store.lead("sweep"))
    assert not one.do(one.store.lead("sweep"))


def test_the_feed_never_skips_an_event_that_commits_late(one: Database, other: Database) -> None:
    late, early = a_run().id, a_run().id

    def event(run_id: str) -> Event:
        return Event(a_run(id=run_id).id, 1, 100.0, "submit", "x", "{}")

    other.write(lambda tx: tx.events.append(event("r-before")))
    seen, cursor = other.read(lambda tx: tx.events.feed("", 10))
    with paused(one, lambda tx: tx.events.append(event(late))):
        other.write(lambda tx: tx.events.append(event(early)))
        more, cursor = other.read(lambda tx: tx.events.feed(cursor, 10))
        seen += more
    rest, cursor = other.read(lambda tx: tx.events.feed(cursor, 10))
    seen += rest

    assert [e.run_id for e in seen] == ["r-before", late, early]


def test_a_blob_that_is_being_pinned_is_not_condemned(one: Database, other: Database) -> None:
    blob = a_blob("x")
    one.write(lambda tx: tx.blobs.put(blob))

    with paused(one, lambda tx: tx.blobs.pin("default", [blob.digest], holder="h", expires_at=None)):
        assert other.write(lambda tx: tx.blobs.condemn(200.0, 300.0, 10)) == []
    assert other.write(lambda tx: tx.blobs.condemn(200.0, 300.0, 10)) == []


def test_a_blob_that_is_being_condemned_is_not_pinned(one: Database, other: Database) -> None:
    blob = a_blob("x")
    one.write(lambda tx: tx.blobs.put(blob))

    with ThreadPoolExecutor(1) as pool:
        with paused(one, lambda tx: tx.blobs.condemn(200.0, 300.0, 10)):
            pin = pool.submit(
                other.write,
                lambda tx: tx.blobs.pin("default", [blob.digest], holder="h", expires_at=None),
            )
        pin.result(120)
    assert other.read(lambda tx: tx.blobs.present("default", [blob.digest])) == {}
    assert one.write(lambda tx: tx.blobs.expire_pins(1e9)) == 0


def test_a_blob_that_a_manifest_is_about_to_name_is_not_condemned(one: Database, other: Database) -> None:
    blob = a_blob("x")
    one.write(lambda tx: tx.blobs.put(blob))

    def commit(tx: Tx) -> None:
        assert tx.blobs.present("default", [blob.digest])
        tx.artifacts.insert(an_artifact(), [ArtifactFile("f", blob.digest, 1, 0o644)])

    with paused(one, commit):
        assert other.write(lambda tx: tx.blobs.condemn(200.0, 300.0, 10)) == []
    assert other.write(lambda tx: tx.blobs.condemn(200.0, 300.0, 10)) == []


def test_the_loser_of_a_race_for_a_name_runs_again_and_sees_the_winner(
    one: Database, other: Database
) -> None:
    def enrol(tx: Tx) -> HostId:
        host = tx.hosts.by_name("box")
        if host is None:
            host = a_host(name="box")
            tx.hosts.insert(host)
        return host.id

    with ThreadPoolExecutor(1) as pool:
        with paused(one, enrol):
            second = pool.submit(other.write, enrol)
        host = one.read(lambda tx: tx.hosts.by_name("box"))
        assert host is not None
        assert second.result(120) == host.id


def test_the_loser_of_a_race_for_a_request_id_waits_and_sees_the_winner(
    one: Database, other: Database
) -> None:
    def submit(tx: Tx, winner: str) -> str:
        if tx.runs.put_submission(Submission("ada", "request-1", digest_of("b"), None, winner, 1.0)):
            return winner
        earlier = tx.runs.submission("ada", "request-1")
        assert earlier is not None
        return earlier.run_ids

    with ThreadPoolExecutor(1) as pool:
        with paused(one, lambda tx: submit(tx, "one")):
            second = pool.submit(other.write, lambda tx: submit(tx, "other"))
        assert second.result(120) == "one"


def test_units_that_lock_each_other_out_both_succeed(one: Database, other: Database) -> None:
    runs = [a_run(), a_run()]
    one.each(runs, lambda tx, run: tx.runs.insert(run, "{}"))
    meet = threading.Barrier(2)

    def bump(tx: Tx, first: int) -> None:
        for turn, index in enumerate((first, 1 - first)):
            run = tx.runs.lock(runs[index].id)
            assert run is not None
            tx.runs.save(run._replace(epoch=run.epoch + 1))
            if turn == 0 and not meet.broken:
                meet_once()

    def meet_once() -> None:
        try:
            meet.wait(2)
            meet.abort()
        except threading.BrokenBarrierError:
            return

    with ThreadPoolExecutor(2) as pool:
        for job in [
            pool.submit(one.write, lambda tx: bump(tx, 0)),
            pool.submit(other.write, lambda tx: bump(tx, 1)),
        ]:
            job.result(120)
    assert [run.epoch for run in one.read(lambda tx: tx.runs.page_by_id(None, 10))] == [2, 2]
