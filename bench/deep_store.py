"""Claims at the store: the unit of work alone, on a database that no server has open."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.fleet import CAPABILITY, request_id
from corral.core.leases.outcomes import LeaseEnder, LeaseReport
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.claim import Claim, ClaimResult, ClaimTerms
from corral.core.queue.eligibility import Shapes
from corral.core.queue.fair_share import Shares
from corral.core.queue.lanes import Lanes
from corral.core.tokens import make_host
from corral.domain.canonical import canonical
from corral.domain.ids import HostId
from corral.domain.runs.reasons import Reason
from corral.store.sqlite.store import SqliteStore
from corral.store.transaction import Tx


class _Bench:
    def __init__(self) -> None:
        self.lanes, self.shapes, self.shares = Lanes(), Shapes(), Shares()
        self.policy = ServerPolicy()
        self.ender = LeaseEnder(self.policy, self.shares)

    def claim(self, tx: Tx, host_id: HostId, *, cores: int) -> tuple[ClaimResult, float]:
        """What was granted, and how many microseconds it took."""
        ask = ClaimTerms(
            host_id=host_id,
            boot_id="bench-boot",
            request_id=request_id(),
            slots=1,
            max_leases=1,
            draining=False,
            capability=canonical({**CAPABILITY, "cores": cores}),
            holding=None,
        )
        unit = Claim(Board(self.lanes, self.shapes, self.shares), self.policy, ask, time.time)
        began = time.perf_counter()
        done = unit(tx)
        return done, (time.perf_counter() - began) * 1e6

    def finish(self, tx: Tx, done: ClaimResult, host_id: HostId) -> None:
        for grant in done.grants:
            report = LeaseReport("finish", Reason.FINISHED, ran_s=0.0)
            self.ender.end(tx, grant.lease.key, report, now=time.time())


def claim_costs_us(path: Path, rounds: int) -> dict[str, list[float]]:
    """Everything is rolled back: the server that comes next finds the queue as deep as it was."""
    bench, spent = _Bench(), dict[str, list[float]]({"claim": [], "fits nothing": []})
    store = SqliteStore(path)
    try:
        with store.transaction() as tx:
            fitting, _ = make_host(tx, "bench-fits", now=time.time())
            small, _ = make_host(tx, "bench-small", now=time.time())
        for _ in range(rounds):
            try:
                with store.transaction() as tx:
                    bench.lanes.reconcile(tx.runs.lanes())
                    # The first fills the lane's buffer, as the first claim after a start does.
                    for number in range(5):
                        done, took_us = bench.claim(tx, fitting.id, cores=8)
                        if number:
                            spent["claim"].append(took_us)
                        bench.finish(tx, done, fitting.id)
                        _, took_us = bench.claim(tx, small.id, cores=2)
                        spent["fits nothing"].append(took_us)
                    raise _Rollback
            except _Rollback:
                pass
    finally:
        asyncio.run(store.close())
    return spent


class _Rollback(Exception):
    pass
