"""The one way to wait until something holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# On an idle machine nothing takes that long; on a busy one a test must not fail for it.
PATIENCE_S = 120.0


def eventually(
    look: Callable[[], T | None], what: str | Callable[[], str], *, within_s: float = PATIENCE_S
) -> T:
    """What `look` gives, as soon as it gives something true; `what` says what was waited for."""
    deadline = time.monotonic() + within_s
    pause_s = 0.005
    while True:
        began = time.monotonic()
        if found := look():
            return found
        looked = time.monotonic()
        if looked >= deadline:
            raise AssertionError(f"waited {within_s:g} s for {what() if callable(what) else what}")
        # A look that starts a program must not take the time of what it waits for.
        time.sleep(max(pause_s, min(1.0, 2 * (looked - began))))
        # Short at first: most of what is waited for is nearly there.
        pause_s = min(0.05, pause_s * 1.5)
