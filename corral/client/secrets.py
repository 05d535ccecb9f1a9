"""Secrets of projects."""

from __future__ import annotations

from corral.client.http.transport import Transport, quoted
from corral.wire.secrets import SecretPage, SecretValue, SecretView


class ProjectSecrets:
    """Names and dates come back, values never do."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def page(self, project: str) -> SecretPage:
        return self._transport.get(self._path(project), SecretPage)

    def set(self, project: str, name: str, value: str) -> SecretView:
        body = SecretValue(value=value)
        return self._transport.repeat("PUT", self._path(project, name), SecretView, body=body)

    def delete(self, project: str, name: str) -> None:
        self._transport.once("DELETE", self._path(project, name), type(None))

    def _path(self, project: str, name: str | None = None) -> str:
        path = f"/v1/projects/{quoted(project)}/secrets"
        return path if name is None else f"{path}/{quoted(name)}"
