"""Sightings that hold for as long as their Job does not change, so that its pods need not be read again.

A pod that starts, ends, is disturbed or is deleted changes the numbers in the status of its Job.
"""

from __future__ import annotations

import threading
from typing import Any

from corral.adapters.executors.kubernetes.names import JobHandle
from corral.adapters.executors.kubernetes.sightings import has_finished
from corral.domain.placements.orders import Sighting, SightState

Json = dict[str, Any]
# As many launches as one installation may have at once, and more; the oldest go first.
_MOST = 10_000


class SettledLaunches:
    """By the Job's version. Losing one costs a request."""

    def __init__(self) -> None:
        self._known: dict[JobHandle, tuple[str, Sighting]] = {}
        self._lock = threading.Lock()

    def get(self, handle: JobHandle, job: Json | None) -> Sighting | None:
        version, found = self._known.get(handle, ("", None))
        return found if job is not None and job["metadata"]["resourceVersion"] == version else None

    def note(self, handle: JobHandle, job: Json | None, found: Sighting | None) -> None:
        """The pods were read after the Job."""
        settled = job is not None and found is not None and _is_settled(job, found)
        with self._lock:
            self._known.pop(handle, None)
            if settled and job is not None and found is not None:
                self._known[handle] = (job["metadata"]["resourceVersion"], found)
            while len(self._known) > _MOST:
                del self._known[next(iter(self._known))]


def _is_settled(job: Json, found: Sighting) -> bool:
    """Everything has ended, or everything that has not runs by the Job's own word too."""
    if has_finished(job):
        return True
    status = job.get("status", {})
    if status.get("terminating") or "deletionTimestamp" in job["metadata"]:
        return False
    states = [one.state for one in found.ranks]
    alive = states.count(SightState.RUNNING)
    quiet = alive + states.count(SightState.SUCCEEDED) == len(states) and not any(
        one.cause or one.detail for one in found.ranks
    )
    return quiet and status.get("active", 0) == status.get("ready", 0) == alive
