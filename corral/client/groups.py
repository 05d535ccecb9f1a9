"""Groups of runs."""

from __future__ import annotations

from corral.client.api import Api
from corral.wire.groups import GroupDetail, GroupPage


class Groups(Api):
    """Each call takes a group's id or name; of several with the name, the newest is meant."""

    root = "/v1/groups"

    def page(self, *, project: str | None = None, cursor: str | None = None, limit: int = 50) -> GroupPage:
        """Newest first."""
        params = {"project": project, "cursor": cursor, "limit": limit}
        return self._transport.get(self.root, GroupPage, params)

    def get(self, group: str) -> GroupDetail:
        return self._transport.get(self._path(group), GroupDetail)
