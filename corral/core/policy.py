"""Times and limits that the server was set up with."""

from __future__ import annotations

from dataclasses import dataclass

from corral.domain.hosts.capability import Requirements
from corral.domain.runs.runs import INSTANCE, Run


@dataclass(frozen=True)
class ServerPolicy:
    lease_s: float = 30.0
    first_beat_s: float = 10.0
    # A host that has not called for this long is shown as away.
    away_s: float = 90.0
    stop_slack_s: float = 15.0
    log_quota_bytes: int = 256 << 20
    log_retention_s: float = 30 * 86400.0
    upload_retention_s: float = 7 * 86400.0
    blob_grace_s: float = 3600.0
    user_pin_s: float = 86400.0
    # How long a host's credential lasts; its worker replaces it well before.
    host_token_s: float = 90 * 86400.0
    rotation_overlap_s: float = 300.0
    segment_bytes: int = 8 << 20
    # A run's priority grows by one point for this many seconds of waiting; None is never.
    ageing_s: float | None = None
    # A run that has been next for this long without fitting gets a host reserved.
    reserve_after_s: float = 60.0
    # Hosts are kept for a gang no longer than this after it should have begun.
    keep_for_gang_s: float = 3600.0
    preemption: bool = True
    # Where a run names them first, hosts that have joined get so long before an executor is asked.
    own_hosts_first_s: float = 30.0
    # The same for the instance of a function, for which callers wait.
    own_hosts_first_instance_s: float = 5.0
    # Models that may be trained, by id or by how it begins (`Qwen/*`); empty is any.
    models: tuple[str, ...] = ()
    # What a schedule submits, as JSON: it is read each time that the schedule makes it.
    schedule_bytes: int = 8 << 20
    # A run waits this long for a free host before others are asked to make room for it.
    preempt_after_s: float = 5.0
    # A run that was started again is left alone for this long before it may be asked to make room.
    preempt_guard_s: float = 600.0

    def own_hosts_s(self, need: Requirements) -> float:
        """How long only hosts that have joined may take a run that names them first."""
        return self.own_hosts_first_instance_s if need.kind == INSTANCE else self.own_hosts_first_s

    def stop_s(self, run: Run) -> float:
        """The longest that a stop may take: a lease to hear of it, the grace to do it, slack to report it."""
        return self.lease_s + run.grace_s + self.stop_slack_s

    def margin_s(self, run: Run) -> float:
        """No run starts within this time of the end of its project's GPU hours.

        It is longer than what the sweeper needs to stop a run, so that none is stopped as soon as it starts.
        """
        return self.least_margin_s + run.grace_s

    @property
    def least_margin_s(self) -> float:
        return 3 * self.lease_s + self.stop_slack_s
