"""Hosts, as they are listed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic import JsonValue as Json

from corral.wire.base import Answer, known_only
from corral.wire.hosts.capability import CapabilityReport


class HostView(Answer):
    id: str
    name: str
    slots: int
    busy: int
    draining: bool
    alive: bool
    last_seen_at: float | None = None
    revoked_at: float | None = None
    credential_expires_at: float | None = Field(None, description="Only where a single host is asked for.")
    capability: Annotated[CapabilityReport | None, known_only(CapabilityReport)] = None
    declared: dict[str, Json] | None = Field(None, description="Limits and policy from a manifest.")
    declared_by: str | None = None
    effective: Annotated[CapabilityReport | None, known_only(CapabilityReport)] = Field(
        None, description="What counts: the more restrictive of what it reports and what is declared."
    )
    effective_slots: int | None = None
    strikes: int = Field(0, description="Failures in a row that look like its own.")
    set_aside_until: float | None = None
    set_aside_why: str | None = None


class HostPage(Answer):
    items: list[HostView]
    next: str | None = None
