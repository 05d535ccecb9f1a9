"""Ends what runs too long or grows too large: calls, and if need be the process of the instance."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from corral.worker.instance.lent_slot import LentSlot
from corral.worker.instance.live_calls import LiveCalls
from corral.worker.lease import LeaseControl
from corral.worker.report.recorder import Recorder

LOOK_S = 0.05
# How often the memory of an instance that has a limit is measured.
MEASURE_MEMORY_S = 1.0


@dataclass(frozen=True)
class Watchdog:
    """`run` in a thread of its own, until the instance is gone; True if its process must be killed."""

    calls: LiveCalls
    control: LeaseControl
    recorder: Recorder
    slot: LentSlot
    memory: Callable[[], int]
    max_memory: int | None

    def run(self) -> bool:
        measured_at = time.monotonic()
        while not self.calls.state.is_gone:
            time.sleep(LOOK_S)
            if self.control.stop_order() is not None:
                self.calls.stop()
            now = time.monotonic()
            if now - measured_at >= MEASURE_MEMORY_S:
                measured_at = now
                self._check_memory()
            with self.calls.changing() as state:
                state.give_back_stale(now)
                must_kill = state.end_by_force(now)
                overdue = state.overdue(now)
                running = state.running
            self.slot.look(running, now)
            for call in overdue:
                self.calls.tell_to_end(call.id)
            if must_kill:
                # Nothing else ends code that does not listen.
                self.recorder.say("a call did not end when it was told to; its process is killed")
                return True
        return False

    def _check_memory(self) -> None:
        """An instance that has grown too large takes no more calls, and ends when those it has are done."""
        state, most = self.calls.state, self.max_memory
        if most is None or state.is_stopping or not state.is_ready or (now := self.memory()) <= most:
            return
        self.recorder.say(
            f"the instance has {now >> 20} MiB, more than its max_memory of {most >> 20} MiB: "
            "it takes no more calls, and another takes its place"
        )
        self.calls.stop()
