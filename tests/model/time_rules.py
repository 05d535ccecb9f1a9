"""Time, the loops, and everything that goes wrong with the server itself."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from corral.domain.errors import StoreUnavailable
from corral.domain.ids import RunId
from model import sweeping
from model.base import Base
from model.faults import Fault, Kind, ServerDied

TICK_S = 5.0


class TimeRules(Base):
    @rule(seconds=st.sampled_from([1, 4, 9, 11, 14, 16, 31, 100]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.advance(seconds)

    @rule(seconds=st.sampled_from([3600, -3600, 7, -7, 1.5, -1.5]))
    def the_clock_jumps_or_the_machine_slept(self, seconds: float) -> None:
        self.world.clock.jump(seconds)

    @rule(ticks=st.integers(1, 9))
    def the_sweeper_ticks_on_time(self, ticks: int) -> None:
        for _ in range(ticks):
            self.world.clock.advance(TICK_S)
            self._sweep()

    @rule(ticks=st.integers(1, 12), active=st.sampled_from([0, 40]))
    def time_passes_in_peace(self, ticks: int, active: int) -> None:
        """Every worker beats, but for one whose lease ran out; what its child does is another matter."""
        for n in range(ticks):
            self.world.clock.advance(TICK_S)
            speaking = [lease for lease in self.model.live() if not lease.host.revoked]
            for lease in speaking if n % 3 == 0 else []:
                ago = min(active, n * TICK_S)
                answer = self.lease_call(lease, "POST", "beat", {"active_s_ago": ago}).body
                assert answer["action"] == self.model.beat(lease, self.now, ago)
            self._sweep()

    @rule()
    def the_sweeper_ticks(self) -> None:
        self._sweep()

    def _sweep(self) -> None:
        fault = self.world.store.fault
        tick_fails = fault is not None and fault.skip == 0 and fault.kind is not Kind.DIE_AFTER_COMMIT
        whole = True
        try:
            self.world.do(self.world.server.loops.sweeper.sweep())
        except StoreUnavailable:
            whole = False
        except ServerDied:
            whole = False
            self.world.restart()
        wall, mono = self.now, self.world.clock.monotonic()
        sweeping.begin(self.model, wall, mono)
        if tick_fails:
            self.model.window.began = None
        else:
            self._follow(wall, mono, whole=whole)
        self.note_deaths()

    def _follow(self, wall: float, mono: float, *, whole: bool) -> None:
        for effect in sweeping.effects(self.model, wall, mono):
            if whole or self._happened(effect):
                effect.apply()

    def _happened(self, effect: sweeping.Effect) -> bool:
        """Of a sweep that was cut short: each of its units is there or not; the model cannot know which."""
        row = self.world.read(lambda tx: tx.runs.get(RunId(effect.run.id)))
        assert row is not None
        return row.event_n != len(effect.run.history)

    @rule(kind=st.sampled_from(list(Kind)), skip=st.integers(0, 2))
    def trouble_lies_ahead(self, kind: Kind, skip: int) -> None:
        """The next write, or one soon after it, goes wrong in this way, whoever makes it."""
        self.world.store.fault = Fault(kind, skip)

    @rule()
    def the_server_is_killed(self) -> None:
        self.world.restart()
        self.note_deaths()

    @rule()
    def the_other_loops_run(self) -> None:
        loops = self.world.server.loops
        try:
            self.world.do(loops.reconcile())
            self.world.do(loops.collector.collect(self.world.services.in_thread))
        except StoreUnavailable:
            return
        except ServerDied:
            self.world.restart()
            self.note_deaths()
