"""What a server knows of the queue, in memory: hints, which a claim checks in the database."""

from __future__ import annotations

from dataclasses import dataclass, field

from corral.core.policy import ServerPolicy
from corral.core.queue.eligibility import Shapes
from corral.core.queue.fair_share import Shares
from corral.core.queue.growth import Growth
from corral.core.queue.lanes import Lanes
from corral.core.queue.outlook import Outlooks
from corral.core.queue.reservations import Reservations
from corral.core.queue.rooms import Rooms
from corral.core.queue.roster import Roster
from corral.domain.hosts.capability import Requirements
from corral.domain.ids import Digest
from corral.domain.quotas import QuotaUse
from corral.domain.runs.queue import Lane
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx


@dataclass
class Board:
    """What a server knows of the queue, in memory."""

    lanes: Lanes = field(default_factory=Lanes)
    shapes: Shapes = field(default_factory=Shapes)
    shares: Shares = field(default_factory=Shares)
    reservations: Reservations = field(default_factory=Reservations)
    roster: Roster = field(default_factory=Roster)
    rooms: Rooms = field(default_factory=Rooms)
    outlooks: Outlooks = field(default_factory=Outlooks)
    growth: Growth = field(default_factory=Growth)
    # The least margin before the end of a project's GPU hours that the policy keeps for any run.
    margin_s: float = 0.0

    def may_start(self, lane: Lane) -> bool:
        """Whether a host should look at the lane: not if the project's quota lets nothing start."""
        need = self.shapes.known(lane.shape)
        return need is None or self.over_quota(lane.project, need, keep_s=self.margin_s) is None

    def over_quota(
        self, project: str, need: Requirements, *, keep_s: float, coming: QuotaUse | None = None
    ) -> str | None:
        """Why the project's quota does not let so much start, as far as is known. `coming` is what it will
        have beside what it has."""
        gpus, ranks = need.gpus_together, need.ranks
        return self.shares.held_back(project, gpus, ranks=ranks, keep_s=keep_s, coming=coming)

    def held_back(
        self, tx: Tx, run: Run, policy: ServerPolicy, *, coming: QuotaUse | None = None
    ) -> str | None:
        """Why the project's quota does not let the run start now, as a claim would judge it."""
        need = self.shapes.get(tx, run.shape)
        return self.over_quota(run.project, need, keep_s=policy.margin_s(run), coming=coming)

    def may_have(self, shape: Digest) -> bool:
        """False if this server knows of no waiting run of the shape that may start."""
        return self.lanes.may_have(shape, self.may_start) or self.growth.may_have(shape)
