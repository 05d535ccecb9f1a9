"""What a schedule makes at each of its times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from corral.core.policy import ServerPolicy
from corral.core.runs.cancel import cancel
from corral.core.runs.needs import not_there
from corral.core.runs.submit import NewRun, SubmitResult, prefix_of, submit
from corral.domain.errors import FieldError
from corral.domain.ids import RunId, ScheduleId
from corral.domain.runs.states import FINAL, STOPPING
from corral.domain.schedules import BY_SCHEDULE, Schedule
from corral.store.transaction import Tx

_MOST_CANCELLED = 1000


class SubmitKey(NamedTuple):
    """Who submits and under which request id: the same key again makes nothing new."""

    principal: str
    request_id: str


def was_submitted(tx: Tx, ask: SubmitKey) -> bool:
    """Whether runs were made under this key."""
    return tx.runs.submission(ask.principal, ask.request_id) is not None


class ScheduledWork(Protocol):
    """What a schedule makes at each of its times: runs, or a call of a function."""

    def check(self, tx: Tx) -> None:
        """Raise if something that it names is not there."""
        ...

    def keep(self, tx: Tx, schedule_id: ScheduleId) -> None:
        """Hold on to what it needs, as long as the schedule is there."""
        ...

    def was_made(self, tx: Tx, ask: SubmitKey) -> bool: ...

    def make(self, tx: Tx, schedule: Schedule, ask: SubmitKey, *, now: float) -> SubmitResult: ...

    def unfinished(self, tx: Tx, schedule: Schedule) -> Sequence[RunId]:
        """What it made and has not ended."""
        ...

    def cancel(
        self, tx: Tx, schedule: Schedule, made: Sequence[RunId], *, now: float, policy: ServerPolicy
    ) -> None: ...


class ScheduledRuns(NamedTuple):
    """Runs that a schedule submits at each of its times."""

    runs: Sequence[NewRun]
    group: str | None
    max_running: int | None

    def check(self, tx: Tx) -> None:
        missing: list[FieldError] = []
        for index, new in enumerate(self.runs):
            needs = new.needs._replace(digests={})
            missing += needs.missing(tx, new.run.project, prefix_of(index, self.runs))
        if missing:
            raise not_there(missing)

    def keep(self, tx: Tx, schedule_id: ScheduleId) -> None:
        """Keep code and inputs as long as the schedule: the collector takes it for a run that reads them."""
        used = [artifact_id for new in self.runs for artifact_id in new.needs.artifacts]
        tx.artifacts.forget_uses(RunId(schedule_id))
        tx.artifacts.use(RunId(schedule_id), dict.fromkeys(used))

    def was_made(self, tx: Tx, ask: SubmitKey) -> bool:
        return was_submitted(tx, ask)

    def make(self, tx: Tx, schedule: Schedule, ask: SubmitKey, *, now: float) -> SubmitResult:
        return submit(
            tx,
            self.runs,
            request_id=ask.request_id,
            group=self.group,
            principal=ask.principal,
            now=now,
            max_running=self.max_running,
            schedule_id=schedule.id,
        )

    def unfinished(self, tx: Tx, schedule: Schedule) -> Sequence[RunId]:
        return tx.schedules.unfinished(schedule.id, _MOST_CANCELLED)

    def cancel(
        self, tx: Tx, schedule: Schedule, made: Sequence[RunId], *, now: float, policy: ServerPolicy
    ) -> None:
        actor, reason = f"{BY_SCHEDULE}{schedule.name}", "the next time of its schedule came"
        for run_id in made:
            run = tx.runs.lock(run_id)
            if run is not None and run.state not in STOPPING | FINAL:
                cancel(tx, run_id, reason=reason, actor=actor, now=now, policy=policy)


WorkOf = Callable[[Schedule], ScheduledWork]
