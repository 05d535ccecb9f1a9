"""Times and limits that the server was set up with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
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
