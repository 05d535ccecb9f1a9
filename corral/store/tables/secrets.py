"""Secrets of projects, encrypted."""

from __future__ import annotations

from corral.domain.secrets.secrets import Secret
from corral.store.rows import SECRET
from corral.store.table import Table


class SqlSecrets(Table):
    def put(self, secret: Secret) -> None:
        """Insert or replace."""
        self._db.put("secret_put", SECRET, secret)

    def get(self, project: str, name: str) -> Secret | None:
        return self._one(SECRET, "secret_get", project=project, name=name)

    def of_project(self, project: str) -> list[Secret]:
        return self._all(SECRET, "secret_all", project=project)

    def bytes_of(self, project: str) -> int:
        """How many bytes those of the project have, encrypted."""
        return self._number("secret_bytes", project=project)

    def delete(self, project: str, name: str) -> bool:
        return self._changed("secret_delete", project=project, name=name)
