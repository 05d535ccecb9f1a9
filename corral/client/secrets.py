"""Secrets of projects."""

from __future__ import annotations

from corral.client.api import Api
from corral.wire.secrets import SecretPage, SecretValue, SecretView


class ProjectSecrets(Api):
    """Names and dates come back, values never do."""

    root = "/v1/projects"

    def page(self, project: str) -> SecretPage:
        return self._transport.get(self._path(project, "secrets"), SecretPage)

    def set(self, project: str, name: str, value: str) -> SecretView:
        body = SecretValue(value=value)
        return self._transport.repeat("PUT", self._path(project, "secrets", name), SecretView, body=body)

    def delete(self, project: str, name: str) -> None:
        self._transport.once("DELETE", self._path(project, "secrets", name), type(None))
