"""Requests to the API server: repeated where that is worth it, and with errors that say what to do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from corral.adapters.executors.kubernetes.connection import ClusterConnection, connect
from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.domain.errors import CorralError
from corral.ports.executor import ExecutorUnreachable

Json = dict[str, Any]
# The server is overloaded, restarts, or lost its database for a moment.
_PASSING = frozenset({408, 410, 429, 500, 502, 503, 504})
_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_TIMEOUT_S = (5.0, 30.0)
_PATCH = "application/merge-patch+json"


class ApiRefusal(CorralError):
    """The cluster understood a request and said no, in the words of the message."""

    code = "executor_refused"
    hint = "`corral executors check NAME` says what is missing."

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class AccessDenied(ExecutorUnreachable):
    """The cluster does not accept our credentials, or does not allow this with them."""

    code = "executor_access_denied"

    def __init__(self, status: int, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class KubernetesApi:
    """JSON in and out over the official client, which knows the server's address and our credentials."""

    def __init__(self, options: KubernetesOptions, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._options = options
        self._pause = pause
        self._lock = threading.Lock()
        self._connection: ClusterConnection | None = None

    @property
    def connection(self) -> ClusterConnection:
        with self._lock:
            if self._connection is None:
                self._connection = connect(self._options)
            return self._connection

    @property
    def namespace(self) -> str:
        return self.connection.namespace

    def close(self) -> None:
        with self._lock:
            made, self._connection = self._connection, None
        if made is not None:
            made.client.rest_client.close()

    def get(self, path: str, **query: object) -> Json:
        return _object(self._send("GET", path, query))

    def text(self, path: str, **query: object) -> str:
        return self._send("GET", path, query).decode(errors="replace")

    def create(self, path: str, body: Json, **query: object) -> Json:
        return _object(self._send("POST", path, query, body))

    def patch(self, path: str, body: Json) -> Json:
        return _object(self._send("PATCH", path, {}, body, content_type=_PATCH))

    def delete(self, path: str, body: Json) -> None:
        self._send("DELETE", path, {}, body)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: Json | None = None,
        *,
        content_type: str = "application/json",
    ) -> bytes:
        """Each attempt that failed in passing is followed by a pause."""
        pause_s = _FIRST_PAUSE_S
        renewed = False
        for left in reversed(range(_ATTEMPTS)):
            connection = self.connection
            try:
                status, headers, answer = _exchange(connection, method, path, query, body, content_type)
            except ConnectionLost as error:
                failure: CorralError = _no_answer(connection, error)
                wait_s = pause_s
            else:
                if status < 400:
                    return answer
                failure = self._failure(status, answer, connection, path)
                wait_s = _retry_after(headers) or pause_s
                if status == 401 and not renewed:
                    # Tokens in files are replaced while we run: they are read once more.
                    renewed = True
                    self.close()
                    continue
                if status not in _PASSING:
                    raise failure
            if left:
                self._pause(min(wait_s, _LONGEST_PAUSE_S))
                pause_s *= 2
        raise failure

    def _failure(self, status: int, answer: bytes, connection: ClusterConnection, path: str) -> CorralError:
        reason, message = _status_words(answer)
        if status == 401:
            return AccessDenied(
                status,
                f"Kubernetes does not accept the credentials of {connection.origin} "
                f"(401 {reason or 'Unauthorized'}: {message})",
                hint="Log in again: `kubectl auth whoami` with the same context must work.",
            )
        if status == 403 and " cannot " in message:
            return AccessDenied(
                status,
                f"Kubernetes forbids this: {message}",
                hint=f"Apply deploy/kubernetes/workers.yaml to the namespace {self._namespace_in(path)}, or "
                "ask its administrator; `corral executors check NAME` prints a command for each permission.",
            )
        if status in _PASSING:
            return ExecutorUnreachable(f"Kubernetes is not able to answer ({status} {reason}): {message}")
        return ApiRefusal(status, reason, message)

    def _namespace_in(self, path: str) -> str:
        _, found, rest = path.partition("/namespaces/")
        return rest.partition("/")[0] if found else self.namespace


class ConnectionLost(Exception):
    """No answer; the request may have been carried out."""


def _no_answer(connection: ClusterConnection, error: Exception) -> ExecutorUnreachable:
    host = connection.client.configuration.host
    return ExecutorUnreachable(
        f"Kubernetes does not answer at {host} ({connection.origin}): {error}",
        hint="`kubectl get --raw /readyz` in the same context says whether the server is there.",
    )


def _exchange(
    connection: ClusterConnection,
    method: str,
    path: str,
    query: Mapping[str, object],
    body: Json | None,
    content_type: str,
) -> tuple[int, Mapping[str, str], bytes]:
    client = connection.client
    headers = {"Accept": "application/json, */*"}
    if body is not None:
        headers["Content-Type"] = content_type
    given = [(name, _query_text(value)) for name, value in query.items() if value is not None]
    sent = client.param_serialize(
        method, path, query_params=given, header_params=headers, body=body, auth_settings=["BearerToken"]
    )
    try:
        answer = client.call_api(*sent, _request_timeout=_TIMEOUT_S)
        return answer.status, answer.headers, answer.read()
    except connection.failures as error:
        raise ConnectionLost(str(error)) from error


def _query_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    text = headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None


def _status_words(answer: bytes) -> tuple[str, str]:
    """The reason and the message of a Status object, or the text of whoever answered instead."""
    try:
        found = json.loads(answer)
        return str(found.get("reason", "")), str(found.get("message", ""))
    except (ValueError, AttributeError):
        return "", answer.decode(errors="replace")[:500]


def _object(answer: bytes) -> Json:
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise ExecutorUnreachable(
            f"what answers as Kubernetes sent no JSON: {answer[:200]!r}",
            hint="Check the server's address in the kubeconfig: a proxy may be in between.",
        ) from error
    if not isinstance(found, dict):
        raise ExecutorUnreachable(f"what answers as Kubernetes sent no object: {answer[:200]!r}")
    return found


def jobs_path(namespace: str, name: str = "") -> str:
    return _path("/apis/batch/v1", namespace, "jobs", name)


def pods_path(namespace: str, name: str = "") -> str:
    return _path("/api/v1", namespace, "pods", name)


def secrets_path(namespace: str, name: str = "") -> str:
    return _path("/api/v1", namespace, "secrets", name)


def events_path(namespace: str) -> str:
    return _path("/api/v1", namespace, "events", "")


def _path(api: str, namespace: str, plural: str, name: str) -> str:
    whole = f"{api}/namespaces/{quote(namespace, safe='')}/{plural}"
    return f"{whole}/{quote(name, safe='')}" if name else whole
