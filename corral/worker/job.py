"""One lease, from its grant to its outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from corral.client.files.digest import FileChanged, FileUnreadable
from corral.client.files.tree import NotAFolder, SecretInTree, TreeRefused
from corral.client.files.walk import TreeTooLarge
from corral.client.training.model_cache import cached_bytes
from corral.domain.errors import BlobMissing, CorralError, LeaseLost, NotFound
from corral.domain.hosts.capability import Capability
from corral.domain.paths import BadPath
from corral.domain.runs.reasons import Reason
from corral.domain.secrets.redact import SecretValues
from corral.wire.leases import FailRequest, FinishRequest, LeaseView
from corral.worker.child.command import Exit
from corral.worker.child.rank_socket import RankSocket
from corral.worker.child.supervise import Supervision
from corral.worker.child.verdict import ENGINE_CODES, failed, stopped, verdict, without_secrets
from corral.worker.context import WorkerContext
from corral.worker.heartbeat import Heartbeat, Vitals
from corral.worker.host.health import HostFault, is_hosts, is_hosts_at_start
from corral.worker.host.recheck import NoLongerFits, recheck
from corral.worker.instance.lent_slot import LentSlot
from corral.worker.instance.server import InstanceServer
from corral.worker.lease import LeaseControl, LeaseSession, StopOrder
from corral.worker.prepare.preparation import Preparation, PreparationFailed, PreparedCommand
from corral.worker.prepare.workspace import JobOutcome, JobPhase, JobRecord, Workspace
from corral.worker.report.checkpoints import CheckpointUploader
from corral.worker.report.outbox import deliver
from corral.worker.report.recorder import Recorder
from corral.worker.report.spool import BatchSender, Spool
from corral.worker.report.uploads import TRIES, Uploads
from corral.worker.server_link import ServerLink, WaitAbandoned

logger = logging.getLogger(__name__)

_BAD_OUTPUT = (TreeRefused, TreeTooLarge, SecretInTree, NotAFolder, FileUnreadable, FileChanged, BadPath)
_NO_SECRETS = SecretValues({})
# What a good run ends with where its host is broken. The host is asked before the run is blamed.
_PERHAPS_THE_HOST = frozenset({Reason.CODE_ERROR, Reason.ENVIRONMENT, Reason.UNKNOWN})


class LeaseJob:
    """`run` for a new lease, `resume` for one whose child had ended under an earlier worker."""

    def __init__(
        self,
        context: WorkerContext,
        beats: ServerLink,
        lease: LeaseView,
        *,
        claimed_with: Capability | None = None,
        slot_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.lease = lease
        self.child_ended = False
        # While uv runs in a session of its own, it must not be taken for an orphan.
        self.building = lease.spec.environment is not None
        self.control = LeaseControl(lease.id, wall_left_s=lease.wall_left_s, grace_s=lease.spec.grace)
        self._context = context
        self._claimed_with = claimed_with
        self._slot = LentSlot(slot_changed)
        self._workspace = Workspace(context.home, lease.id)
        self._vitals = Vitals(lease.gpus)
        self._beater = Heartbeat(beats, lease, self.control, self._vitals)
        self._session = LeaseSession(context.link, lease, self.control)
        self._secrets = _NO_SECRETS

    def run(self) -> None:
        # First of all: a lease without a heartbeat is soon given to another host.
        self._beater.start()
        self._guarded(self._run)

    def resume(self, record: JobRecord) -> None:
        self.child_ended = True
        self.building = False
        self._beater.resume()
        self._guarded(partial(self._resume, record))

    @property
    def lends_slot(self) -> bool:
        """Whether another lease may run in its place for now."""
        return self._slot.is_lent

    @property
    def rss_bytes(self) -> int:
        """What its child and all below it have of the host's memory; 0 where that is not known yet."""
        return 0 if self.child_ended else self._vitals.rss_bytes

    @property
    def unused_ram_bytes(self) -> int:
        """What was set aside for it and it has not taken yet."""
        promised = self.lease.spec.resources.min_ram or 0
        return 0 if self.child_ended else max(0, promised - self.rss_bytes)

    @property
    def may_have_lapsed(self) -> bool:
        """Whether the lease may have run out unnoticed; the next beat takes it up again."""
        return not self.control.lost and self._beater.silent_s > self.lease.lease_s

    def release(self) -> None:
        """The worker drains: stop, and give the run back."""
        self.control.stop(Reason.RELEASED, "the worker drains")

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (WaitAbandoned, LeaseLost, NotFound) as error:
            self.control.lose(str(error) or "given up")
        except OSError as error:
            logger.warning("%s cannot be run here: %s", self.lease.id, error)
            self._deliver_plainly(self._cannot_run(error))
        except Exception as error:
            logger.exception("the job of %s failed in the worker", self.lease.id)
            why = f"the worker failed: {type(error).__name__}: {error}"
            self._deliver_plainly(failed(Reason.UNKNOWN, why))
        finally:
            self._beater.end()
            self._context.ports.give_back(self.lease.id)
            self._workspace.remove()

    def _run(self) -> None:
        self._workspace.create()
        self._workspace.save(JobRecord(self.lease, JobPhase.RUNNING))
        recorder, sender = self._record()
        checkpoints = None
        try:
            if (fault := self._context.health.fault) is not None:
                raise HostFault(fault)
            if reasons := recheck(
                self._context.snapshot,
                self.lease,
                self._claimed_with,
                self._context.system,
                self._model_here,
            ):
                raise NoLongerFits("; ".join(reasons))
            serving = self._serving(recorder)
            prepared = Preparation(self._context, self._session, self._workspace, recorder, serving).run()
            self._secrets = prepared.secrets
            checkpoints = self._checkpoints(recorder)
            outcome = self._supervised(prepared, recorder, checkpoints, serving)
        except PreparationFailed as error:
            outcome = self._or_the_hosts(failed(error.reason, error.detail))
        except HostFault as error:
            outcome = failed(Reason.HOST_FAULT, f"this host can run nothing now: {error}")
        except NoLongerFits as error:
            logger.warning("%s is given back: %s", self.lease.run_id, error)
            outcome = stopped(StopOrder(Reason.RELEASED, str(error), 0), None, 0)
        except WaitAbandoned:
            outcome = self._stopped_early()
        except OSError as error:
            outcome = self._cannot_run(error)
        self._settle(outcome, recorder, sender, checkpoints)

    def _model_here(self) -> int:
        spec = self.lease.spec
        if spec.model is None:
            return 0
        return cached_bytes(spec.model, spec.model_revision, {**self._context.engine_env, **spec.env})

    def _cannot_run(self, error: OSError) -> JobOutcome:
        """The worker's own work failed. A host that is out of something is at fault, whatever the run is."""
        text = f"this host cannot run it: {error}"
        if not is_hosts(error):
            return self._or_the_hosts(failed(Reason.ENVIRONMENT, text))
        self._context.health.found(text)
        return failed(Reason.HOST_FAULT, text)

    def _or_the_hosts(self, outcome: JobOutcome) -> JobOutcome:
        """What looks like the run's failure is the host's if the host is still broken without the run."""
        body = outcome.body
        if not isinstance(body, FailRequest) or body.reason not in _PERHAPS_THE_HOST:
            return outcome
        # The disk may be full of what the run itself has written.
        self._workspace.discard()
        if (fault := self._context.health.look()) is None:
            return outcome
        why = f"this host can run nothing now: {fault}\n{body.detail}"
        return replace(outcome, body=body.model_copy(update={"reason": Reason.HOST_FAULT, "detail": why}))

    def _resume(self, record: JobRecord) -> None:
        if record.outcome is None:
            return
        recorder, sender = self._record()
        preparation = Preparation(self._context, self._session, self._workspace, recorder)
        outcome = record.outcome
        try:
            self._secrets = SecretValues(preparation.secret_values())
            checkpoints = self._checkpoints(recorder)
            checkpoints.recover()
        except PreparationFailed as error:
            checkpoints = None
            if record.phase is JobPhase.OUTPUT:
                # Without the secrets nobody can say that the output holds none.
                outcome = failed(error.reason, error.detail)
        self._settle(outcome, recorder, sender, checkpoints)

    def _record(self) -> tuple[Recorder, BatchSender]:
        spool = Spool(self._workspace.spool)
        sender = BatchSender(spool, self._session)
        sender.start()
        return Recorder(spool), sender

    def _checkpoints(self, recorder: Recorder) -> CheckpointUploader:
        uploads = Uploads(self._session, recorder)
        return CheckpointUploader(self._workspace, uploads, recorder, self._secrets)

    def _serving(self, recorder: Recorder) -> InstanceServer | None:
        if self.lease.spec.service is None:
            return None
        folder = self._workspace.calls
        return InstanceServer(
            self._session, folder, recorder=recorder, memory=self._vitals.memory, slot=self._slot
        )

    def _supervised(
        self,
        prepared: PreparedCommand,
        recorder: Recorder,
        checkpoints: CheckpointUploader,
        serving: InstanceServer | None,
    ) -> JobOutcome:
        if self.control.stopping:
            return self._stopped_early()
        self.building = False
        if serving is not None:
            serving.secrets = prepared.secrets
            serving.start()
        supervision = Supervision(self._workspace, self.control, recorder, self._vitals, checkpoints, serving)
        is_engine = self.lease.spec.kind == "train"
        codes = ENGINE_CODES if is_engine else {}
        meeting = RankSocket(self._session, self._workspace.rank_socket, prepared.secrets)
        with nullcontext() if serving else meeting:
            ended = supervision.run(prepared, quota_bytes=self.lease.log_quota_bytes)
        # On a GPU the engine's tokens are there, and not in the memory that the kernel gives out.
        ended = replace(ended, has_gpus=bool(self.lease.gpus), shrinks=is_engine and not self.lease.gpus)
        if serving is not None and (why := serving.why_broken()) is not None:
            return failed(Reason.CODE_ERROR, why, ended.exit, ended.ran_s)
        if serving is not None and serving.killed_for_call and ended.obeyed is None:
            # It was killed because a call did not end. That call's outcome says so; the run did not fail.
            ended = replace(ended, exit=Exit(code=0))
        if ended.obeyed is None and (ended.exit.hosts_fault or is_hosts_at_start(ended.exit.errno)):
            self._context.health.found(str(ended.exit.error))
            raise HostFault(str(ended.exit.error))
        return self._or_the_hosts(verdict(ended, codes))

    def _stopped_early(self) -> JobOutcome:
        order = self.control.stop_order()
        if self.control.lost or order is None:
            raise WaitAbandoned
        return stopped(order, None, 0)

    def _settle(
        self,
        outcome: JobOutcome,
        recorder: Recorder,
        sender: BatchSender,
        checkpoints: CheckpointUploader | None,
    ) -> None:
        """Everything that must be on the server before the outcome, then the outcome."""
        self.child_ended = True
        self.building = False
        if self.control.lost:
            raise WaitAbandoned
        outcome = without_secrets(outcome, self._secrets)
        self._save(outcome, JobPhase.OUTPUT if outcome.kind == "finish" else JobPhase.OUTCOME)
        if outcome.kind != "finish":
            self._workspace.discard()
        if checkpoints is not None:
            checkpoints.drain()
        for tries_left in reversed(range(TRIES)):
            done = without_secrets(self._with_output(outcome, recorder), self._secrets)
            recorder.flush()
            sender.drain()
            self._save(done, JobPhase.OUTCOME)
            self._beater.end()
            try:
                deliver(self._context.outbox, self._session, done)
                return
            except BlobMissing:
                if not tries_left:
                    raise

    def _with_output(self, outcome: JobOutcome, recorder: Recorder) -> JobOutcome:
        body = outcome.body
        if not isinstance(body, FinishRequest) or body.artifact_id is not None:
            return outcome
        try:
            artifact_id = Uploads(self._session, recorder).output(self._workspace.output, self._secrets)
        except _BAD_OUTPUT as error:
            text = f"the output is refused: {error.message}\n{error.hint}"
            return failed(Reason.BAD_OUTPUT, text, ran_s=body.ran_s)
        except (LeaseLost, NotFound):
            raise
        except CorralError as error:
            return failed(Reason.BAD_OUTPUT, f"the output was not stored: {error.message}\n{error.hint}")
        return replace(outcome, body=body.model_copy(update={"artifact_id": artifact_id}))

    def _save(self, outcome: JobOutcome, phase: JobPhase) -> None:
        record = JobRecord(self.lease, phase, outcome)
        try:
            if phase is JobPhase.OUTCOME:
                self._workspace.save_durably(record)
            else:
                self._workspace.save(record)
        except OSError as error:
            # The disk is full. The outcome is still reported; only a crash before that would lose it.
            logger.warning("the outcome of %s is not on disk: %s", self.lease.id, error)

    def _deliver_plainly(self, outcome: JobOutcome) -> None:
        self._beater.end()
        try:
            deliver(self._context.outbox, self._session, without_secrets(outcome, self._secrets))
        except WaitAbandoned:
            logger.warning("%s was lost before its failure could be reported", self.lease.id)
