"""Ends what runs too long or grows too large: calls, and if need be the process of the instance."""

from __future__ import annotations

import time
from collections.abc import Callable

from corral.worker.instance.live_calls import LiveCalls
from corral.worker.lease_control import LeaseControl
from corral.worker.report.recorder import Recorder

LOOK_S = 0.05
# How often the memory of an instance that has a limit is measured.
MEASURE_MEMORY_S = 1.0


class Watchdog:
    """`run` in a thread of its own, until the instance is gone; True if it had to kill the process."""

    def __init__(
        self,
        calls: LiveCalls,
        *,
        control: LeaseControl,
        recorder: Recorder,
        memory: Callable[[], int],
        max_memory: int | None,
    ) -> None:
        self._calls = calls
        self._control = control
        self._recorder = recorder
        self._memory = memory
        self._max_memory = max_memory

    def run(self) -> bool:
        measured_at = time.monotonic()
        while not self._calls.state.is_gone:
            time.sleep(LOOK_S)
            if self._control.wish() is not None:
                self._calls.stop()
            now = time.monotonic()
            if now - measured_at >= MEASURE_MEMORY_S:
                measured_at = now
                self._check_memory()
            with self._calls.changing() as state:
                state.give_back_stale(now)
                must_kill = state.end_by_force(now)
                overdue = state.overdue(now)
            for call in overdue:
                self._calls.tell_to_end(call.id)
            if must_kill:
                # Nothing else ends code that does not listen.
                self._recorder.say("a call did not end when it was told to; its process is killed")
                return True
        return False

    def _check_memory(self) -> None:
        """An instance that has grown too large takes no more calls, and ends when those it has are done."""
        state, most = self._calls.state, self._max_memory
        if most is None or state.is_stopping or not state.is_ready or (now := self._memory()) <= most:
            return
        self._recorder.say(
            f"the instance has {now >> 20} MiB, more than its max_memory of {most >> 20} MiB: "
            "it takes no more calls, and another takes its place"
        )
        self._calls.stop()
