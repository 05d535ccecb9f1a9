"""The worker's loop: claims leases for its free slots, and runs a job for each."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import partial

from corral.client.environments.lock import Lock
from corral.domain.errors import CorralError, ServerUnreachable, StoreUnavailable
from corral.domain.hosts.capability import Capability
from corral.wire.hosts import CapabilityReport
from corral.wire.leases import ClaimAnswer, ClaimRequest, LeaseView, RamReport
from corral.worker.child.system import reap_orphans, sweep
from corral.worker.context import WorkerContext
from corral.worker.job import LeaseJob
from corral.worker.prepare.environments import Environments
from corral.worker.prepare.workspace import JobPhase, JobRecord, workspaces
from corral.worker.server_link import Pauses, ServerLink

CLAIM_WAIT_S = 25.0
PROBE_EVERY_S = 60.0
# A host with a fault looks at itself, and says what it finds, so often.
FAULT_EVERY_S = 5.0
MAX_LEASES = 1_000
# Jobs that end within this time are told of together.
TOGETHER_S = 0.05
# Outcomes are on disk, and the next worker delivers them: no need to wait for a server that is away.
DRAIN_AWAY_S = 5.0
# After the grace of the runs. Whatever still works on its output then is taken up by the next worker.
DRAIN_LIMIT_S = 60.0
HANG_UP_LIMIT_S = 2.0
# Longer than the longest pause between two tries of a beat or an outcome.
BEAT_FIRST_S = 15.0
# Environments are collected every so many probes: adding up their sizes takes a while.
COLLECT_EVERY = 60
ENVIRONMENTS_MAX_BYTES = 50 << 30
ENVIRONMENTS_MAX_AGE_S = 30 * 86400.0

logger = logging.getLogger(__name__)


def default_slots(capability: Capability) -> int:
    return max(1, capability.cores or 1, len(capability.gpus or ()))


@dataclass(eq=False)
class Agent:
    """`start`, then `drain` once. Its threads are daemons: what they leave is on disk."""

    context: WorkerContext
    _: KW_ONLY
    # Connections of their own: no upload can take them, and a waiting claim can be broken off.
    claims: ServerLink
    beats: ServerLink
    slots: int
    capability: Capability
    probe: Callable[[], Capability]
    ram_free: Callable[[], int | None] = lambda: None
    _known_capability: Capability | None = None
    _boot_id: str = field(default_factory=lambda: secrets.token_hex(16))
    _holding: list[str] | None = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _running: dict[str, LeaseJob] = field(default_factory=dict)
    _draining: threading.Event = field(default_factory=threading.Event)
    # How many leases the claim that waits asked for; None while none waits.
    _asked_for: int | None = None
    # Set when a slot became free that this claim does not know of.
    _more_room: threading.Event = field(default_factory=threading.Event)
    _claimer: threading.Thread = field(init=False)

    def start(self) -> None:
        """Sweep what an earlier worker left, take up what it could not report, then claim."""
        strays = sweep((), data_dir=self.context.home)
        if strays:
            logger.warning("killed %d processes that an earlier worker left", len(strays))
        for workspace in workspaces(self.context.home):
            record = workspace.load()
            if record is None or record.phase is JobPhase.RUNNING or record.outcome is None:
                logger.info("%s died with an earlier worker", workspace.lease_id)
                workspace.remove()
            else:
                self._resume(record)
        self._holding = list(self._running)
        self._claimer = threading.Thread(target=self._claim_for_ever, name="corral-claims", daemon=True)
        self._claimer.start()
        threading.Thread(target=self._upkeep, name="corral-upkeep", daemon=True).start()
        threading.Thread(target=self._tell_of_room, name="corral-room", daemon=True).start()

    def drain(self) -> None:
        """Claim nothing more, stop the children, report them as given back. Returns when that is done."""
        with self._changed:
            self._draining.set()
            self._changed.notify_all()
        # First of all: a claim that still waits would be granted the runs that are given back.
        self.claims.hang_up()
        self._claimer.join(HANG_UP_LIMIT_S)
        with self._changed:
            for job in self._running.values():
                job.release()
            grace_s = max((job.lease.spec.grace for job in self._running.values()), default=0.0)
            give_up_at = time.monotonic() + grace_s + DRAIN_LIMIT_S
            while self._running and not self._only_the_server_is_missing():
                if time.monotonic() > give_up_at:
                    logger.error("these do not end and are left: %s", ", ".join(self._running))
                    break
                self._changed.wait(0.2)
            for lease_id in self._running:
                logger.warning("the outcome of %s is on disk; the next worker reports it", lease_id)
        if not self._running:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Nobody need wait until the host has not been heard of for long."""
        if self.context.link.away_s:
            return
        try:
            self.beats.corral.leases.claim(self._request(0).model_copy(update={"draining": True}))
        except CorralError as error:
            logger.debug("the server is not told that the worker goes: %s", error)

    def _only_the_server_is_missing(self) -> bool:
        ended = all(job.child_ended for job in self._running.values())
        return ended and self.context.link.away_s > DRAIN_AWAY_S

    def _claim_for_ever(self) -> None:
        pauses = Pauses()
        request: ClaimRequest | None = None
        while not self._draining.is_set():
            if request is None:
                free = self._wait_for_slot()
                if self._draining.is_set():
                    return
                request = self._request(free)
            # At once: what becomes free from here on is told beside this claim.
            self._asked_for = request.max_leases
            self._let_leases_beat()
            try:
                answer = self.claims.corral.leases.claim(request)
            except (ServerUnreachable, StoreUnavailable) as error:
                # The same request is sent again: if only its answer was lost, the server repeats it.
                level = logging.DEBUG if self.claims.away_s else logging.WARNING
                logger.log(level, "waiting for the server: %s", error)
                self.claims.look_again()
            except CorralError as error:
                logger.error("the server refuses to give work: %s %s", error, error.hint)
                # The host may have been given another token by now.
                self.claims.look_again()
                request = None
            except Exception:
                logger.exception("a claim failed in the worker")
                request = None
            else:
                pauses.reset()
                self._take(request, answer)
                request = None
                continue
            finally:
                self._asked_for = None
            self._draining.wait(pauses.next_s())

    def _tell_of_room(self) -> None:
        """The server counts on what was asked for: ranks that start together need all that is free now."""
        while not self._draining.is_set():
            self._more_room.wait(PROBE_EVERY_S)
            # Several may end at once.
            if not self._more_room.is_set() or self._draining.wait(TOGETHER_S):
                continue
            self._more_room.clear()
            with self._changed:
                free, asked = min(MAX_LEASES, self.slots - self._slots_in_use()), self._asked_for
            if asked is None or free <= asked or self._holding is not None or self.context.health.fault:
                continue
            request = self._request(free).model_copy(update={"wait_s": 0})
            try:
                self._take(request, self.beats.corral.leases.claim(request))
            except CorralError as error:
                logger.debug("the next claim tells what is free: %s", error)

    def _let_leases_beat(self) -> None:
        """After a sleep, a partition or a restart, leases beat first: else the host would claim them anew."""
        give_up_at = time.monotonic() + BEAT_FIRST_S
        while any(job.may_have_lapsed for job in self._jobs()) and time.monotonic() < give_up_at:
            if self._draining.wait(0.02):
                return

    def _wait_for_slot(self) -> int:
        """How many slots are free, once one is; 0 after a while, so that the host still shows itself."""
        health = self.context.health
        if health.fault is not None and self._told_fault == health.fault:
            self._draining.wait(FAULT_EVERY_S)
            health.look()
        if health.fault is not None:
            return 0
        with self._changed:
            if self._slots_in_use() >= self.slots:
                self._changed.wait(PROBE_EVERY_S)
            return min(MAX_LEASES, max(0, self.slots - self._slots_in_use()))

    def _slots_in_use(self) -> int:
        return sum(not job.lends_slot for job in self._running.values())

    def _slot_changed(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _request(self, free: int) -> ClaimRequest:
        capability = replace(
            self.capability, system=self.context.system.known(), fault=self.context.health.fault
        )
        # A fault is told again and again: the server forgets it after a while.
        news = capability != self._known_capability or capability.fault is not None
        return ClaimRequest(
            request_id=secrets.token_hex(16),
            boot_id=self._boot_id,
            slots=self.slots,
            lent_slots=sum(job.lends_slot for job in self._jobs()),
            max_leases=free,
            wait_s=CLAIM_WAIT_S if free else 0,
            capability=CapabilityReport.model_validate(asdict(capability)) if news else None,
            holding=self._holding,
            ram=self._ram(),
        )

    def _ram(self) -> RamReport | None:
        free = self.ram_free()
        if free is None:
            return None
        jobs = self._jobs()
        unused = sum(job.unused_ram_bytes for job in jobs)
        return RamReport(free_bytes=max(0, free - unused), runs_bytes=sum(job.rss_bytes for job in jobs))

    @property
    def _told_fault(self) -> str | None:
        return None if self._known_capability is None else self._known_capability.fault

    def _report_news(self) -> None:
        """Report what a job has found out of the host at once: the claim that waits did not carry it."""
        told, fault = self._known_capability, self.context.health.fault
        if told is None or (told.system, told.fault) == (self.context.system.known(), fault):
            return
        try:
            self.beats.corral.leases.claim(self._request(0))
        except CorralError as error:
            logger.debug("the next claim tells it: %s", error)

    def _take(self, request: ClaimRequest, answer: ClaimAnswer) -> None:
        if self.claims.away_s:
            logger.info("the server is back")
        self.claims.answered()
        if request.capability is not None:
            self._known_capability = request.capability.capability()
        self._holding = None
        for lease in answer.leases:
            self._begin(lease)

    def _begin(self, lease: LeaseView) -> None:
        job = LeaseJob(
            self.context,
            self.beats,
            lease,
            claimed_with=self._known_capability,
            slot_changed=self._slot_changed,
        )
        with self._changed:
            if lease.id in self._running:
                return
            if self._draining.is_set():
                job.release()
            self._launch(job, job.run)

    def _resume(self, record: JobRecord) -> None:
        logger.info("%s ended under an earlier worker; reporting it", record.lease.id)
        job = LeaseJob(self.context, self.beats, record.lease)
        with self._changed:
            self._launch(job, partial(job.resume, record))

    def _launch(self, job: LeaseJob, work: Callable[[], None]) -> None:
        self._running[job.lease.id] = job
        threading.Thread(
            target=self._run_job, args=(job, work), name=f"corral-job-{job.lease.id}", daemon=True
        ).start()

    def _run_job(self, job: LeaseJob, work: Callable[[], None]) -> None:
        try:
            work()
            self._report_news()
        except Exception:
            # No job's failure ends the worker.
            logger.exception("the job of %s failed in the worker", job.lease.id)
        finally:
            with self._changed:
                del self._running[job.lease.id]
                self._changed.notify_all()
                self._more_room.set()

    def _upkeep(self) -> None:
        rounds = 0
        while not self._draining.wait(PROBE_EVERY_S):
            rounds += 1
            try:
                self.capability = self.probe()
                self.context.health.look()
                self.context.system.look_again()
                self.context.cache.trim()
                if not any(job.building for job in self._jobs()):
                    reap_orphans()
                if rounds % COLLECT_EVERY == 0:
                    self._collect_environments()
            except Exception:
                logger.exception("the upkeep failed in the worker")

    def _collect_environments(self) -> None:
        environments = Environments(self.context.home / "environments", self.context.base_env)
        built = [job.lease.spec.environment for job in self._jobs()]
        in_use = [environments.key(Lock(each.lock, each.python)) for each in built if each is not None]
        for gone in environments.collect(
            in_use=in_use, max_bytes=ENVIRONMENTS_MAX_BYTES, older_than_s=ENVIRONMENTS_MAX_AGE_S
        ):
            logger.info("removed environment %s (%d bytes)", gone.key, gone.size_bytes)

    def _jobs(self) -> list[LeaseJob]:
        with self._changed:
            return list(self._running.values())
