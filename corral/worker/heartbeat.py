"""Renews a lease while its job lives; the answers carry the server's orders."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from corral.domain.errors import CorralError, LeaseLost, NotFound
from corral.wire.leases import BeatRequest, LeaseView
from corral.worker.host.probe import gpu_sample
from corral.worker.lease import LeaseControl
from corral.worker.server_link import Pauses, ServerLink

logger = logging.getLogger(__name__)

# Two renewals can be lost before the sweeper takes the run.
BEATS_PER_LEASE = 3
LONGEST_WAIT_S = 60.0
SHORTEST_MARGIN_S = 1.0


class Vitals:
    """What a beat reports about the child, as the worker sees it. Progress travels with the log."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self._gpus = tuple(gpus)
        self._began = time.monotonic()
        self.pid: int | None = None
        self.active_at: Callable[[], float] | None = None
        # As the last beat saw it; to look takes a while where there are many processes.
        self.rss_bytes = 0

    def request(self, wait_s: float) -> BeatRequest:
        active_s_ago = None if self.active_at is None else max(0.0, time.monotonic() - self.active_at())
        return BeatRequest(sample=self._sample(), active_s_ago=active_s_ago, wait_s=wait_s)

    def memory(self) -> int:
        """How many bytes the child and all below it have; 0 where that is not known."""
        return 0 if self.pid is None else int(tree_sample(self.pid).get("rss_bytes", 0))

    def _sample(self) -> dict[str, float]:
        ran = {"ran_s": time.monotonic() - self._began}
        if self.pid is None:
            return ran
        tree = tree_sample(self.pid)
        self.rss_bytes = int(tree.get("rss_bytes", 0))
        return {**ran, **tree, **gpu_sample(self._gpus)}


def tree_sample(pid: int) -> dict[str, float]:
    """Memory and processor time of a process and all below it; empty when it is gone."""
    rss, cpu_s, count = 0, 0.0, 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                rss += process.memory_info().rss
                cpu_s += times.user + times.system
                count += 1
    return {"rss_bytes": float(rss), "cpu_s": cpu_s, "processes": float(count)} if count else {}


class Heartbeat:
    """A thread that beats at once and then three times per lease, until it is ended.

    The server holds its answer back until the next beat is due, so that a stop is heard at once.
    """

    def __init__(self, link: ServerLink, lease: LeaseView, control: LeaseControl, vitals: Vitals) -> None:
        self._link = link
        self._lease = lease
        self._control = control
        self._vitals = vitals
        self._every_s = lease.lease_s / BEATS_PER_LEASE
        self._ended = threading.Event()
        self._confirmed_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"corral-beat-{lease.id}", daemon=True)

    def start(self) -> None:
        """For a lease that was granted just now."""
        self._thread.start()

    def resume(self) -> None:
        """For a lease of an earlier worker: nobody knows when it last beat."""
        self._confirmed_at = float("-inf")
        self._thread.start()

    @property
    def silent_s(self) -> float:
        """For how long the server has not confirmed the lease."""
        return time.monotonic() - self._confirmed_at

    def end(self) -> None:
        """No beat is begun after this; one under way may still arrive, which is harmless."""
        self._ended.set()

    def _run(self) -> None:
        pauses = Pauses()
        while not self._ended.is_set() and not self._control.lost:
            began = time.monotonic()
            # The worker claims nothing while a lease may have run out: such a beat is answered at once.
            is_overdue = self.silent_s > self._lease.lease_s
            try:
                self._beat(0.0 if is_overdue else min(self._every_s, LONGEST_WAIT_S))
                pauses.reset()
                if not is_overdue:
                    self._ended.wait(self._every_s - (time.monotonic() - began))
            except (LeaseLost, NotFound) as error:
                # After the end the lease is closed on purpose.
                if not self._ended.is_set():
                    self._control.lose(error.message)
            except CorralError as error:
                logger.debug("a beat of %s failed: %s", self._lease.id, error)
                self._link.look_again()
                self._ended.wait(min(self._every_s, pauses.next_s()))

    def _beat(self, wait_s: float) -> None:
        lease = self._lease
        request = self._vitals.request(wait_s)
        sent_at = time.monotonic()
        # A connection may be dead unnoticed, as when a router forgets it. If the answer is half a beat late,
        # there is still time for another beat over a new connection before the lease ends.
        margin_s = max(SHORTEST_MARGIN_S, self._every_s / 2)
        answer = self._link.corral.leases.beat(lease.id, lease.epoch, request, margin_s=margin_s)
        self._every_s = answer.lease_s / BEATS_PER_LEASE
        # Not the time of the answer: it may have lain unread while this host slept.
        self._confirmed_at = sent_at
        if self._ended.is_set():
            return
        if answer.action == "lost":
            self._control.lose(answer.reason or "the server says so")
        elif answer.action == "stop":
            self._control.told_to_stop(answer.reason, answer.grace_s)
