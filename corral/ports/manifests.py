"""Where manifests are kept."""

from __future__ import annotations

from typing import Protocol

from corral.domain.manifests import Manifest


class Manifests(Protocol):
    def get(self, project: str, name: str) -> Manifest | None: ...

    def lock(self, project: str, name: str) -> Manifest | None:
        """Like `get`, and no other transaction applies this manifest until this one ends."""
        ...

    def claim(self, manifest: Manifest) -> None:
        """Insert it unless there is one of its name; waits for whoever is about to do the same."""
        ...

    def put(self, manifest: Manifest) -> None:
        """Insert or replace."""
        ...

    def page(self, after: tuple[str, str] | None, limit: int) -> list[Manifest]: ...

    def delete(self, project: str, name: str) -> bool: ...
