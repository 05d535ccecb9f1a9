"""On Postgres: claims, batches of outcomes and applies at once, and nobody waits in a circle (FL-D03)."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import psycopg
from support.postgres import PrivatePostgres

from contract.conftest import Database, opened
from contract.plans import new
from contract.test_manifest_apply import CAPABILITY, NOW, ManifestHarness, spec
from corral.core.audit import Author
from corral.core.leases.outcomes import LeaseEnder, LeaseOutcome, LeaseReport
from corral.core.manifests.apply import Apply
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.claim import Claim, ClaimResult, ClaimTerms
from corral.core.queue.eligibility import Shapes
from corral.core.queue.fair_share import Shares
from corral.core.queue.grants import Grant
from corral.core.queue.lanes import Lanes
from corral.core.runs.submit import submit
from corral.domain.hosts.hosts import Host
from corral.domain.ids import new_host_id
from corral.domain.quotas import Quota
from corral.domain.runs.reasons import Reason
from corral.store.postgres.store import PostgresStore
from corral.store.store import Store, write_together
from corral.store.transaction import Tx

PROJECTS = ("alpha", "beta", "default")
RUNS, HOSTS, APPLIES = 60, 4, 25
MANY = 100_000


class Worker:
    """One host of a server of its own: it claims a few runs of all projects and ends them in one batch."""

    def __init__(self, store: Store, number: int) -> None:
        self.store, self.number, self.requests, self.ended = store, number, 0, 0
        name = f"box-{number}"
        self.host = Host(new_host_id(), name, CAPABILITY, "c" * 64, 100, None, False, NOW, NOW)
        self.shares, self.shapes, self.lanes = Shares(), Shapes(), Lanes()
        self.ender = LeaseEnder(ServerPolicy(), self.shares)

    def claim(self, tx: Tx) -> ClaimResult:
        self.shares.load(tx, NOW)
        self.lanes.reconcile(tx.runs.lanes())
        ask = ClaimTerms(self.host.id, "boot", f"claim-{self.requests}", 100, 3, False, None, None)
        return Claim(Board(self.lanes, self.shapes, self.shares), ServerPolicy(), ask, lambda: NOW)(tx)

    def end(self, tx: Tx, grant: Grant) -> LeaseOutcome:
        report = LeaseReport("finish", Reason.FINISHED, ran_s=1.0)
        lease = grant.lease
        return self.ender.end(tx, lease.key, report, now=NOW + 1)

    async def work(self, over: asyncio.Event) -> None:
        await self.store.write(lambda tx: tx.hosts.insert(self.host))
        while True:
            self.requests += 1
            done = await self.store.write(self.claim)
            # Every other worker reports in the opposite order.
            grants = sorted(done.grants, key=lambda g: g.run.project, reverse=bool(self.number % 2))
            units = [partial(self.end, grant=grant) for grant in grants]
            ids = [grant.lease.id for grant in grants]
            answers = await write_together(self.store, lambda tx, ids=ids: tx.leases.lock_runs(ids), units)  # type: ignore[misc]
            assert not [answer for answer in answers if isinstance(answer, Exception)], answers
            self.ended += len(answers)
            if not grants and over.is_set():
                return


def filled(database: Database) -> None:
    def unit(tx: Tx) -> None:
        for project in PROJECTS:
            tx.quotas.put(Quota(project, max_running=MANY, max_queued=MANY))
        for project in PROJECTS[:2]:
            runs = [new(project=project)] * RUNS
            submit(tx, runs, request_id=f"submit-{project}", group=None, principal="user:ada", now=NOW)

    database.write(unit)


async def applied(store: Store, fleet: ManifestHarness, over: asyncio.Event) -> None:
    """The same runs with other priorities, again and again, while they are claimed; and what boxes may do."""
    for turn in range(APPLIES):
        runs = [spec(n, priority=turn % 2) for n in range(20)]
        runs += [spec(100 + turn)]
        asked = fleet.ask(runs)
        await store.write(
            Apply(asked.wanted, asked.fresh, asked.remade, Author("user:ada", "", NOW), ServerPolicy())
        )
    over.set()


def deadlocks(postgres: PrivatePostgres, url: str) -> int:
    """Counted when the connections of the database are closed."""
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with postgres.admin() as admin:
        while admin.execute("SELECT 1 FROM pg_stat_activity WHERE datname = %s", [name]).fetchone():
            time.sleep(0.05)
        row = admin.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = %s", [name]).fetchone()
    assert row is not None
    return int(str(row[0]))


def test_claims_batches_and_applies_never_wait_in_a_circle(postgres: PrivatePostgres, pg_url: str) -> None:
    """Without an order of locks the database ends one of two that wait for each other, after a second."""
    with opened(PostgresStore(pg_url)) as database, opened(PostgresStore(pg_url)) as other:
        filled(database)
        fleet = ManifestHarness(database)
        stores = [database.store, other.store]
        workers = [Worker(stores[number % 2], number) for number in range(HOSTS)]

        async def all_at_once() -> None:
            over = asyncio.Event()
            async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
                tasks.create_task(applied(database.store, fleet, over))
                for worker in workers:
                    tasks.create_task(worker.work(over))

        database.do(all_at_once())
        hours = database.read(lambda tx: {h.project: h.slot_s for h in tx.quotas.hours_page(None, 10)})
    assert sum(worker.ended for worker in workers) >= 2 * RUNS
    assert sum(hours.values()) == sum(worker.ended for worker in workers)
    assert deadlocks(postgres, pg_url) == 0
