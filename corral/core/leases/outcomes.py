"""How a lease ends: finish, fail, stopped. Each may be replayed and gets the same answer, for ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.core.hosts import faults
from corral.core.leases.fence import check_held, held, of_rank
from corral.core.leases.gangs import (
    RankEnd,
    all_done,
    any_live,
    close_lease,
    end_rank,
    fence_gang,
    finish_run,
    goes_on,
    rank_stopped,
    without_rank,
)
from corral.core.leases.usage import use_time
from corral.core.policy import ServerPolicy
from corral.core.queue.fair_share import Shares
from corral.core.queue.roster import Roster
from corral.core.runs.dependencies import move
from corral.core.runs.more_memory import MemoryShortage, MoreMemory, more_memory
from corral.core.runs.retry import retry_or_fail
from corral.core.runs.stop import ask_to_stop, settle_stop
from corral.core.runs.transitions import record
from corral.domain.artifacts import ArtifactKind
from corral.domain.canonical import canonical, digest_of
from corral.domain.errors import AlreadyFinal, BlobMissing, InvalidInput
from corral.domain.ids import ArtifactId
from corral.domain.leases import Lease, LeaseKey, LeaseState
from corral.domain.runs.measures import MOST_METRICS
from corral.domain.runs.reasons import Reason
from corral.domain.runs.retries import MemoryKind
from corral.domain.runs.runs import Rank, Run
from corral.domain.runs.states import STOPPING, RankEvent, RankState, RunEvent, RunState
from corral.domain.secrets.redact import SecretValues
from corral.store.transaction import Tx

_DETAIL_CHARS = 16_000


class LeaseReport(NamedTuple):
    """What the worker says of the end of its lease."""

    kind: str
    reason: Reason
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    artifact_id: ArtifactId | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    ran_s: float = 0.0
    # Of what it ran out, where that is why it failed and its worker knows.
    memory: MemoryShortage | None = None

    @property
    def body(self) -> list[object]:
        """What a replay is known by. What older workers do not send is no part of it where it is not said."""
        return [*self[:-1]] if self.memory is None else [*self]


class LeaseOutcome(NamedTuple):
    run_state: str
    rank_state: str


@dataclass(frozen=True)
class LeaseEnder:
    """Everything an outcome needs besides its transaction."""

    policy: ServerPolicy
    shares: Shares
    roster: Roster = field(default_factory=Roster)
    # The secrets of a project, to be taken out of what is stored; None if it has none.
    secrets_of: Callable[[Tx, str], SecretValues | None] = lambda tx, project: None

    def end(self, tx: Tx, key: LeaseKey, report: LeaseReport, *, now: float) -> LeaseOutcome:
        if report.kind != "finish" and report.reason is Reason.FINISHED:
            raise InvalidInput(f"a run that was not finished cannot be `{report.kind}` as finished")
        body = digest_of([key.epoch, *report.body])
        run, lease = held(tx, key)
        if (earlier := _replayed(lease, body)) is not None:
            return earlier
        lease, run = check_held(tx, lease, run, key.epoch, now=now, policy=self.policy)
        # Not before: a replay is known by what was sent.
        said = bool(report.detail or report.metrics)
        if said and (values := self.secrets_of(tx, run.project)) is not None:
            report = report._replace(
                # The worker, which does not know all of these, may have cut one in two at the end.
                detail=values.redact_text(report.detail)[:_DETAIL_CHARS],
                metrics=tuple((values.redact_text(name), value) for name, value in report.metrics),
            )
        run = use_time(tx, run, lease, self.shares, report.ran_s, now=now)
        if report.kind == "finish":
            run, rank = _finish(tx, lease, run, report, now=now)
            faults.returned(tx, key.host_id)
        elif report.kind == "fail":
            unasked = run.state is RunState.RUNNING
            if unasked and report.reason is Reason.HOST_FAULT:
                self._gave_back(lease, report, now=now)
            run, rank = self._fail(tx, lease, run, report, now=now)
            if unasked:
                run = faults.failed(
                    tx, key.host_id, run, report.reason, ran_s=report.ran_s, now=now, policy=self.policy
                )
        else:
            if run.state is RunState.RUNNING and report.reason is Reason.RELEASED and report.ran_s == 0:
                self._gave_back(lease, report, now=now)
            run, rank = self._stopped(tx, lease, run, report, now=now)
        outcome = LeaseOutcome(run.state, rank.state)
        answer = canonical(outcome)
        close_lease(tx, lease, outcome=report.kind, digest=body, answer=answer, now=now)
        return outcome

    def _fail(self, tx: Tx, lease: Lease, run: Run, report: LeaseReport, *, now: float) -> tuple[Run, Rank]:
        rank = end_rank(tx, lease, RankEvent.FAIL, reason=report.reason, exit_code=report.exit_code)
        actor = f"host:{lease.host_id}"
        if rank.state is RankState.RETIRED:
            return _retired(tx, lease, run, now=now), rank
        if run.state in STOPPING:
            run = run._replace(exit_code=report.exit_code, signal=report.signal)
            return rank_stopped(tx, run, lease, RunEvent.FAIL, now=now, actor=actor), rank
        reason, detail = report.reason, report.detail
        if reason is Reason.HOST_FAULT and (met := faults.met_too_many(tx, run)) is not None:
            reason, detail = Reason.POISON, f"{met} times a host could not run it; the last said: {detail}"
        if goes_on(tx, run, lease, reason):
            return without_rank(tx, run, lease, rank, RankEnd(reason, detail, actor, now))
        run = fence_gang(tx, run, lease, self.shares, ran_s=report.ran_s, now=now)
        run = retry_or_fail(
            tx,
            run,
            reason,
            of_rank(run, lease, detail),
            now=now,
            actor=actor,
            exit_code=report.exit_code,
            signal=report.signal,
            more=_more(tx, lease, run, report, now=now, policy=self.policy),
        )
        return run, rank

    def _stopped(
        self, tx: Tx, lease: Lease, run: Run, report: LeaseReport, *, now: float
    ) -> tuple[Run, Rank]:
        """Stopped as it was told, or on the worker's own account: a drain gives it back, a limit ends it."""
        rank = end_rank(tx, lease, RankEvent.STOPPED, reason=report.reason, exit_code=report.exit_code)
        actor = f"host:{lease.host_id}"
        if rank.state is RankState.RETIRED:
            return _retired(tx, lease, run, now=now), rank
        asked = run.state is not RunState.RUNNING
        # Why it was asked to stop says more than that it was.
        detail = run.detail if asked and run.detail else of_rank(run, lease, report.detail) or None
        if not asked:
            if report.reason in (Reason.WALL_LIMIT, Reason.MONEY_LIMIT):
                run = self._halt(tx, run, report, detail, actor=actor, now=now)
            elif goes_on(tx, run, lease, Reason.RELEASED):
                return without_rank(tx, run, lease, rank, RankEnd(Reason.RELEASED, report.detail, actor, now))
            else:
                run = fence_gang(tx, run, lease, self.shares, ran_s=report.ran_s, now=now)
                run = _wish(tx, run, RunEvent.PREEMPT, Reason.RELEASED, report, actor=actor, now=now)
        run = run._replace(exit_code=report.exit_code, signal=report.signal, detail=detail)
        return rank_stopped(tx, run, lease, RunEvent.STOPPED, now=now, actor=actor), rank

    def _halt(
        self, tx: Tx, run: Run, report: LeaseReport, detail: str | None, *, actor: str, now: float
    ) -> Run:
        """The worker met a limit of the run before the server did: the other ranks are told to stop too."""
        if any_live(tx, run, run.attempt):
            return ask_to_stop(
                tx, run, RunEvent.HALT, report.reason, detail, actor=actor, now=now, policy=self.policy
            )
        return _wish(tx, run, RunEvent.HALT, report.reason, report, actor=actor, now=now)

    def _gave_back(self, lease: Lease, report: LeaseReport, *, now: float) -> None:
        """The same host is not asked again for a while."""
        why = report.detail or "it could not be started there"
        self.roster.gave_back(lease.host_id, lease.run_id, boot_id=lease.boot_id, why=why, now=now)


def _replayed(lease: Lease, body: str) -> LeaseOutcome | None:
    if lease.state is not LeaseState.CLOSED or lease.outcome_answer is None:
        return None
    if lease.outcome_digest != body:
        raise AlreadyFinal(f"lease {lease.id} was closed before by `{lease.outcome}` with another body")
    run_state, rank_state = json.loads(lease.outcome_answer)
    return LeaseOutcome(run_state, rank_state)


def _finish(tx: Tx, lease: Lease, run: Run, report: LeaseReport, *, now: float) -> tuple[Run, Rank]:
    if report.artifact_id is not None:
        _check_result(tx, lease, report.artifact_id)
    rank = end_rank(tx, lease, RankEvent.FINISH, reason=Reason.FINISHED, exit_code=0)
    actor = f"host:{lease.host_id}"
    # Rank 0's output is the run's result; what the others leave are artifacts of their ranks.
    artifact_id = report.artifact_id if lease.rank == 0 else run.artifact_id
    run = run._replace(artifact_id=artifact_id)
    if report.metrics:
        told = {**json.loads(run.metrics), **dict(report.metrics)}
        # Of many ranks each may tell others.
        run = run._replace(metrics=canonical(dict(list(told.items())[-MOST_METRICS:])))
    if run.world_size == 1 or all_done(tx, run, lease.attempt):
        return finish_run(tx, run, lease, now=now, actor=actor), rank
    if run.state in STOPPING and not any_live(tx, run, lease.attempt):
        # The others were stopped before: what a part of the ranks finished is no result.
        return settle_stop(tx, run, RunEvent.STOPPED, now=now, actor=actor), rank
    done = {"rank": lease.rank, "lease": lease.id}
    return record(tx, run, "rank_done", at=now, actor=actor, data=done), rank


def _retired(tx: Tx, lease: Lease, run: Run, *, now: float) -> Run:
    actor = f"host:{lease.host_id}"
    run = record(tx, run, "rank_retired", at=now, actor=actor, data={"rank": lease.rank})
    return finish_run(tx, run, lease, now=now, actor=actor) if all_done(tx, run, lease.attempt) else run


def _wish(
    tx: Tx, run: Run, event: RunEvent, reason: Reason, report: LeaseReport, *, actor: str, now: float
) -> Run:
    """What the worker stopped it for, as if somebody had asked for that."""
    data: dict[str, object] = {"reason": reason}
    if report.detail:
        data["detail"] = report.detail[:2000]
    return move(tx, run, event, at=now, actor=actor, data=data, stop_reason=reason)


def _check_result(tx: Tx, lease: Lease, artifact_id: ArtifactId) -> None:
    """The result must be what this very lease made, or an older one's files could pass for it."""
    artifact = tx.artifacts.get(artifact_id)
    made_here = artifact is not None and (
        artifact.run_id,
        artifact.attempt,
        artifact.rank,
        artifact.epoch,
        artifact.kind,
    ) == (lease.run_id, lease.attempt, lease.rank, lease.epoch, ArtifactKind.OUTPUT)
    if not made_here:
        raise BlobMissing(
            f"lease {lease.id} did not commit the artifact {artifact_id}",
            hint="Commit the output with this lease, then finish.",
        )


def _more(
    tx: Tx, lease: Lease, run: Run, report: LeaseReport, *, now: float, policy: ServerPolicy
) -> MoreMemory | None:
    """What is asked for next by a run that ran out of memory and may be tried again."""
    if report.reason is not Reason.OUT_OF_MEMORY or not run.budgets.allows(run.used, report.reason):
        return None
    # Older workers do not say. Of theirs, a run fails for its GPU's memory only if it trains.
    usual = MemoryShortage(MemoryKind.GPU if run.kind == "train" else MemoryKind.HOST)
    return more_memory(tx, run, lease, report.memory or usual, now=now, policy=policy)
