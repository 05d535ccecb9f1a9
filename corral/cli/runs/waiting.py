"""Says why a run that is followed does not start."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from corral.cli.runs.why import sentence
from corral.client.corral import Corral
from corral.domain.errors import CorralError

# Most runs start at once; then there is nothing to explain.
PATIENCE_S = 2.0
_AGAIN_S = 3.0
WAITING = frozenset({"queued", "held", "placing"})
# What counts down says nothing new.
_SECONDS = re.compile(r"\d+ s\b")


@dataclass
class WaitingWords:
    """Told which run waits; says why after a while, and again when that has changed."""

    corral: Corral
    say: Callable[[str], None]
    _run_id: str | None = None
    _ask_at: float = 0.0
    _said: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def waits(self, run_id: str | None) -> None:
        """This run waits now, or none."""
        with self._lock:
            if run_id != self._run_id:
                self._run_id, self._ask_at = run_id, time.monotonic() + PATIENCE_S

    def look(self) -> None:
        """To be called again and again."""
        with self._lock:
            run_id, now = self._run_id, time.monotonic()
            if run_id is None or now < self._ask_at:
                return
            self._ask_at = now + _AGAIN_S
        try:
            answer = self.corral.runs.why(run_id)
        except CorralError:
            # Whoever follows the run says when the server is away.
            return
        words = sentence(answer)
        if answer.state in WAITING and (kept := _SECONDS.sub("", words)) != self._said:
            self._said = kept
            self.say(f"corral: {words}")
