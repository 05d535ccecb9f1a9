"""Tells the server how busy this host is, whether or not it runs anything."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from corral.domain.errors import CorralError
from corral.domain.hosts.samples import HostSample, mean_of
from corral.wire.base import validated
from corral.wire.hosts import HostSampleReport
from corral.worker.server_link import ServerLink

# The first report is soon, so that a host that has just joined is not without numbers for a minute.
FIRST_S = 1.0
LOOK_EVERY_S = 15.0
LOOKS_PER_REPORT = 4

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class HostSampler:
    """Looks every few seconds, and reports the mean about once a minute."""

    look: Callable[[], HostSample]
    link: ServerLink

    def start(self) -> None:
        """In a thread of its own, which ends with the process."""
        threading.Thread(target=self._run, name="corral-sampler", daemon=True).start()

    def _run(self) -> None:
        looks, every_s = 1, FIRST_S
        while True:
            try:
                self._report(looks, every_s)
            except CorralError as error:
                # The server is away, or does not know of samples yet; nothing depends on this one.
                logger.debug("how busy this host is was not told: %s", error)
            except Exception:
                logger.exception("how busy this host is could not be found out")
            looks, every_s = LOOKS_PER_REPORT, LOOK_EVERY_S

    def _report(self, looks: int, every_s: float) -> None:
        readings = []
        for _ in range(looks):
            time.sleep(every_s)
            readings.append(self.look())
        report = validated(HostSampleReport, asdict(mean_of(readings)), what="the sample of this host")
        self.link.corral.own_host.report_sample(report)
