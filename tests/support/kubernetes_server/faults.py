"""Failures on demand: answers that are errors, replies that are lost, requests that never arrive."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

from support.kubernetes_server.errors import ApiError, server_failure, too_many_requests

LOSE_REQUEST = "lose request"
LOSE_REPLY = "lose reply"


@dataclass
class Fault:
    """What happens to the next requests that fit."""

    what: int | str
    times: int
    method: str
    path: re.Pattern[str]
    retry_after_s: int


class Faults:
    """Faults that are waiting for a request; each is used up."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self._lock = threading.Lock()

    def inject(
        self, what: int | str, *, times: int = 1, method: str = "", path: str = "", retry_after_s: int = 1
    ) -> None:
        """`what` is a status (429, 500, 503), LOSE_REQUEST or LOSE_REPLY; `path` a regular expression."""
        with self._lock:
            self._waiting.append(Fault(what, times, method, re.compile(path), retry_after_s))

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def take(self, method: str, path: str) -> str:
        """Raises the error that is due, or gives LOSE_REQUEST, LOSE_REPLY or nothing."""
        with self._lock:
            for fault in self._waiting:
                if fault.method in ("", method) and fault.path.search(path):
                    fault.times -= 1
                    if fault.times <= 0:
                        self._waiting.remove(fault)
                    break
            else:
                return ""
        if isinstance(fault.what, int):
            raise self._error(fault)
        return fault.what

    def _error(self, fault: Fault) -> ApiError:
        if fault.what == 429:
            return too_many_requests(fault.retry_after_s)
        assert isinstance(fault.what, int)
        return server_failure(fault.what)
