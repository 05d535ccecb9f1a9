"""Choosing for a worker that may take one run: that run, wherever in the queue it stands."""

from __future__ import annotations

from dataclasses import dataclass, field

from corral.core.queue.choose import Chooser
from corral.core.queue.lanes import Candidate
from corral.domain.ids import RunId
from corral.domain.runs.queue import Lane, ReadyRun
from corral.domain.runs.states import RunState


@dataclass
class OneRunChooser(Chooser):
    """Quotas, limits of groups and what the host can take count as for any other; the order does not."""

    only: RunId = field(kw_only=True)
    _looked: bool = False

    def _take(self) -> Candidate | None:
        run = None if self._looked else self.tx.runs.get(self.only)
        self._looked = True
        if run is None or run.state is not RunState.QUEUED or not self._fits(run.shape):
            return None
        candidate = Candidate(Lane(run.shape, run.priority, run.project), ReadyRun(run.ready_at, run.id))
        return candidate if self._may(candidate) else None
