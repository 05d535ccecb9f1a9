"""When each background loop of the servers last ran."""

from __future__ import annotations

from corral.store.table import Table


class SqlLoops(Table):
    def tick(self, loop: str, at: float) -> None:
        self._tell("loop_tick", loop=loop, at=at)
