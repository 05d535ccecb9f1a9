"""Machines with an identity, and who may call."""

from __future__ import annotations

from typing import NamedTuple

from corral.domain.ids import HostId, new_host_id

# The boot of a host whose worker has said that it goes.
NO_WORKER = ""


class Host(NamedTuple):
    """`declared` is what the manifest named in `declared_by` says of it, as JSON; the more restrictive wins.

    A host that is declared but has not enrolled has a row too, and was never seen.
    """

    id: HostId
    name: str
    capability: str | None
    capability_digest: str | None
    slots: int
    boot_id: str | None
    draining: bool
    last_seen_at: float | None
    created_at: float
    declared: str | None = None
    declared_digest: str | None = None
    declared_by: str | None = None
    revoked_at: float | None = None
    # Failures in a row that look like the host's fault, and until when it gets nothing for them.
    strikes: int = 0
    set_aside_until: float | None = None
    set_aside_why: str | None = None
    # What the strikes were for, as JSON.
    struck_by: str | None = None

    @classmethod
    def new(cls, name: str, now: float) -> Host:
        """One that nobody has heard of yet."""
        return cls(new_host_id(), name, None, None, 0, None, False, None, now)

    def is_aside(self, now: float) -> bool:
        return self.set_aside_until is not None and now < self.set_aside_until

    def takes_work(self, now: float) -> bool:
        """Whether it may be given runs at all, by what is known of it."""
        return not self.draining and self.revoked_at is None and not self.is_aside(now)

    @property
    def said_goodbye(self) -> bool:
        """Its worker was stopped in order, and none has come since."""
        return self.boot_id == NO_WORKER

    def is_away(self, now: float, away_s: float) -> bool:
        return self.said_goodbye or self.last_seen_at is None or now - self.last_seen_at > away_s
