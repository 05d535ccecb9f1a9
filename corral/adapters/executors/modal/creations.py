"""Sandboxes that are being made: the SDK waits for a GPU, and whoever launches does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from corral.adapters.executors.modal.api import ModalApi
from corral.adapters.executors.modal.sandboxes import SandboxRequest

Failed = Callable[[str, Exception], None]


class Creation:
    """One of them. `error` is why it was not made."""

    def __init__(self, api: ModalApi, request: SandboxRequest, failed: Failed) -> None:
        self.request = request
        self.sandbox: str | None = None
        self.error: Exception | None = None
        self.done = threading.Event()
        self._api = api
        self._failed = failed
        # A process that ends waits for none of them.
        threading.Thread(target=self._make, name=f"modal-{request.name}", daemon=True).start()

    def _make(self) -> None:
        try:
            self.sandbox = self._api.create(self.request)
        # Whatever it is: the one that launches raises it.
        except Exception as error:  # noqa: BLE001
            self._failed(self.request.name, error)
            self.error = error
        finally:
            self.done.set()


class Creations:
    """By name; one that is under way is not begun a second time. `failed` hears of each that was not made,
    also when nobody waits for it any more."""

    def __init__(self, api: ModalApi, failed: Failed) -> None:
        self._api = api
        self._failed = failed
        self._lock = threading.Lock()
        self._under_way: dict[str, Creation] = {}

    def begin(self, requests: Sequence[SandboxRequest]) -> list[Creation]:
        with self._lock:
            known = {name: one for name, one in self._under_way.items() if not one.done.is_set()}
            for request in requests:
                if request.name not in known:
                    known[request.name] = Creation(self._api, request, self._failed)
            self._under_way = known
            return [known[request.name] for request in requests]


def wait_for(begun: Sequence[Creation], within_s: float) -> None:
    """Until all are made or the time is over; those that go on are left to themselves."""
    until = time.monotonic() + within_s
    for one in begun:
        one.done.wait(max(0.0, until - time.monotonic()))
