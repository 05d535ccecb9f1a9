"""Where quotas, and what was used of them, are kept."""

from __future__ import annotations

from typing import Protocol

from corral.domain.quotas import Quota, UsageHours


class Quotas(Protocol):
    def get(self, project: str) -> Quota | None: ...

    def lock(self, project: str) -> Quota | None:
        """Like `get`, and no other transaction that locks it goes on until this one ends."""
        ...

    def try_lock(self, project: str) -> Quota | None:
        """Like `lock`, but None as well if another transaction holds it: nobody waits in a circle."""
        ...

    def all(self) -> list[Quota]: ...

    def put(self, quota: Quota) -> None:
        """Insert or replace."""
        ...

    def delete(self, project: str) -> bool: ...

    def add_hours(self, used: UsageHours) -> None:
        """Add to what the project used in that month."""
        ...

    def hours(self, project: str, month: str) -> UsageHours | None: ...

    def hours_page(self, after: tuple[str, str] | None, limit: int) -> list[UsageHours]: ...
