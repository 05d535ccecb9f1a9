"""Groups of runs."""

from __future__ import annotations

from corral.client.api import Api
from corral.wire.groups import GroupDetail, GroupPage, GroupResults, GroupView


class Groups(Api):
    """Each call takes a group's id or name; of several with the name, the newest is meant."""

    root = "/v1/groups"

    def page(self, *, project: str | None = None, cursor: str | None = None, limit: int = 50) -> GroupPage:
        """Newest first."""
        params = {"project": project, "cursor": cursor, "limit": limit}
        return self._transport.get(self.root, GroupPage, params)

    def named(self, text: str, *, project: str | None = None) -> list[GroupView]:
        """The group of this id, or those of this name, the newest first."""
        page = self._transport.get(self.root, GroupPage, {"name": text, "project": project, "limit": 50})
        exact = [group for group in page.items if group.id == text]
        return exact or [group for group in page.items if group.name == text]

    def get(self, group: str) -> GroupDetail:
        return self._transport.get(self._path(group), GroupDetail)

    def results(self, group: str) -> GroupResults:
        """Its runs by what they were given, and each metric over their seeds."""
        return self._transport.get(self._path(group, "results"), GroupResults)
