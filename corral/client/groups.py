"""Groups of runs."""

from __future__ import annotations

from corral.client.http.transport import Transport, quoted
from corral.wire.groups import GroupDetail, GroupPage


class Groups:
    """Each call takes a group's id or name; of several with the name, the newest is meant."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def page(self, *, project: str | None = None, cursor: str | None = None, limit: int = 50) -> GroupPage:
        """Newest first."""
        params = {"project": project, "cursor": cursor, "limit": limit}
        return self._transport.get("/v1/groups", GroupPage, params)

    def get(self, group: str) -> GroupDetail:
        return self._transport.get(f"/v1/groups/{quoted(group)}", GroupDetail)
