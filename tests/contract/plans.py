"""Runs that wait for one another, made and ended over a store by the core's own functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from support.clock import ManualClock

from contract.conftest import Database
from contract.samples import a_run, an_artifact, digest_of
from corral.core.leases.expire import Sweeper
from corral.core.policy import ServerPolicy
from corral.core.queue.fair_share import Shares
from corral.core.runs.cancel import cancel
from corral.core.runs.dependencies import let_in, move, settle_more, settle_waiting
from corral.core.runs.needs import RunNeeds
from corral.core.runs.submit import Dependency, NewRun, SubmitResult, submit
from corral.domain.artifacts import ArtifactKind
from corral.domain.hosts.capability import Requirements
from corral.domain.ids import ArtifactId, RunId
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import OnFailure, Run
from corral.domain.runs.states import RunEvent
from corral.store.transaction import Tx

POLICY = ServerPolicy()
__all__ = ["Plan", "let_in", "new", "parent", "settle_more", "settle_waiting"]


def new(name: str = "step", *, after: Sequence[Dependency | str] = (), **fields: Any) -> NewRun:
    links = tuple(parent(one) if isinstance(one, str) else one for one in after)
    needs = RunNeeds(**{key: value for key, value in fields.items() if key not in Run._fields})
    run = a_run(name=name, identity=digest_of(name), retry_code=1, grace_s=5.0)
    run = run._replace(**{key: value for key, value in fields.items() if key in Run._fields})
    return NewRun(run, '{"inputs":{}}', Requirements(), needs, links)


def parent(run: str, *, input: str | None = None, on_failure: str = "fail") -> Dependency:
    return Dependency(run, input, OnFailure(on_failure), "after[0]")


class Plan:
    """Time passes a second with each act."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.clock = ManualClock(1_000.0, 1_000.0)
        self._requests = 0
        self.sweeper = Sweeper(db.store, self.clock, POLICY, Shares())

    def now(self) -> float:
        self.clock.advance(1.0)
        return self.clock.wall

    def submit(self, *runs: NewRun, max_running: int | None = None) -> list[RunId]:
        return list(self.submitted(*runs, max_running=max_running).ids)

    def submitted(self, *runs: NewRun, max_running: int | None = None) -> SubmitResult:
        self._requests += 1
        request, now = f"request-{self._requests:04}", self.now()
        return self.db.write(
            lambda tx: submit(
                tx,
                runs,
                request_id=request,
                group=None,
                principal="user:ada",
                now=now,
                max_running=max_running,
            )
        )

    def run(self, run_id: RunId) -> Run:
        found = self.db.read(lambda tx: tx.runs.get(run_id))
        assert found is not None
        return found

    def states(self, run_ids: Sequence[RunId]) -> list[str]:
        return [str(self.run(run_id).state) for run_id in run_ids]

    def events(self, run_id: RunId) -> list[str]:
        found = self.db.read(lambda tx: tx.events.of_run(run_id, after=0, limit=100))
        assert [event.n for event in found] == list(range(1, self.run(run_id).event_n + 1))
        return [event.type for event in found]

    def start(self, run_id: RunId) -> None:
        self.step(run_id, RunEvent.CLAIM)

    def step(self, run_id: RunId, event: RunEvent, **changes: Any) -> None:
        now = self.now()
        self.db.write(lambda tx: self._step(tx, run_id, event, now, changes))

    @staticmethod
    def _step(tx: Tx, run_id: RunId, event: RunEvent, now: float, changes: dict[str, Any]) -> None:
        run = tx.runs.lock(run_id)
        assert run is not None
        move(tx, run, event, at=now, actor="host:box", **changes)

    def finish(self, run_id: RunId, artifact: ArtifactId | None = None) -> None:
        """From wherever it stands, as a worker would."""
        if self.run(run_id).state == "queued":
            self.start(run_id)
        self.step(
            run_id,
            RunEvent.FINISH,
            ended_at=self.clock.wall,
            reason=Reason.FINISHED,
            artifact_id=artifact,
        )

    def fail(self, run_id: RunId) -> None:
        if self.run(run_id).state == "queued":
            self.start(run_id)
        self.step(run_id, RunEvent.FAIL, ended_at=self.clock.wall, reason=Reason.CODE_ERROR)

    def cancel(self, run_id: RunId) -> None:
        now = self.now()
        self.db.write(lambda tx: cancel(tx, run_id, reason="", actor="user:ada", now=now, policy=POLICY))

    def result(self, run_id: RunId) -> ArtifactId:
        made = an_artifact(kind=ArtifactKind.OUTPUT, run_id=run_id)
        self.db.write(lambda tx: tx.artifacts.insert(made, []))
        return made.id

    def sweep(self) -> None:
        self.now()
        self.db.do(self.sweeper.sweep())

    def at_once(self, *units: Callable[[Tx], object]) -> list[object]:
        """Started together; on Postgres they run in transactions side by side."""

        async def all_of_them() -> list[object]:
            return list(await asyncio.gather(*(self.db.store.write(unit) for unit in units)))

        return self.db.do(all_of_them())
