"""Asking executors whether they could hold runs that go to the cheapest, beside the loop of placements: none
that is slow, silent or odd keeps the loop from what else it has to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from corral.core.placements.cheapest import Quote, quote, ranked
from corral.domain.errors import CorralError
from corral.domain.hosts.capability import CHEAPEST, Requirements
from corral.domain.placements.placements import ExecutorRecord
from corral.ports.clock import Clock
from corral.ports.executor import Executor

log = logging.getLogger("corral.server.placements")
# What an executor said holds for so long: runs that need the same are asked for once.
_FRESH_S = 10.0
# One that did not answer is not asked again for so long; who gave no word in time, for longer.
_AWAY_S, _SILENT_S = 10.0, 60.0
# Of what it says against a need, so much is kept.
_MOST_WHYS, _WHY_CHARS = 10, 300


@dataclass
class QuoteDesk:
    """Each executor is asked one thing at a time, and given `answer_s` for it."""

    open: Callable[[ExecutorRecord], Executor]
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    clock: Clock
    answer_s: float
    # By executor and need: why it could never hold it, and until when that is believed.
    _told: dict[tuple[str, Requirements], tuple[tuple[str, ...], float]] = field(default_factory=dict)
    _away_until: dict[str, float] = field(default_factory=dict)
    _asking: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def ask(
        self, records: Sequence[ExecutorRecord], needs: Sequence[Requirements], within_s: float
    ) -> None:
        """What is not known yet, in the order of the needs; who takes longer goes on beside the loop."""
        now, stop_at = self.clock.now(), asyncio.get_running_loop().time() + within_s
        self._told = {key: told for key, told in self._told.items() if told[1] > now}
        for record in records:
            unknown = [need for need in needs if self._is_unknown(record, need)]
            if unknown and record.name not in self._asking:
                task = asyncio.create_task(self._ask(record, unknown, stop_at))
                self._asking[record.name] = task
                task.add_done_callback(partial(self._asked, record.name))
        if self._asking:
            await asyncio.wait(list(self._asking.values()), timeout=within_s)

    def quotes(
        self, records: Sequence[ExecutorRecord], need: Requirements, forecast_s: Mapping[str, float]
    ) -> list[Quote] | None:
        """Of all executors that a run does not name itself; None while one has yet to answer."""
        others = [one for one in records if _may_serve(one, need)]
        if any(self._is_unknown(record, need) for record in others):
            return None
        found = []
        for record in others:
            against, _ = self._told.get((record.name, need), ((), 0.0))
            price = quote(record, need, need.most_ranks, forecast_s)
            found.append(price._replace(against=against, away=self._is_away(record.name)))
        return ranked(found)

    def _is_unknown(self, record: ExecutorRecord, need: Requirements) -> bool:
        is_asked = _may_serve(record, need) and not self._is_away(record.name)
        return is_asked and (record.name, need) not in self._told

    def _is_away(self, name: str) -> bool:
        return self.clock.now() < self._away_until.get(name, 0.0)

    def _asked(self, name: str, _: asyncio.Task[None]) -> None:
        del self._asking[name]

    async def _ask(self, record: ExecutorRecord, needs: Sequence[Requirements], stop_at: float) -> None:
        """Until the time is over: what comes first then is said anew."""
        try:
            executor = self.open(record)
            for need in needs:
                async with asyncio.timeout(self.answer_s):
                    against = await self.in_thread(partial(executor.refusals, need, need.ranks))
                short = tuple(why[:_WHY_CHARS] for why in against[:_MOST_WHYS])
                self._told[record.name, need] = short, self.clock.now() + _FRESH_S
                if asyncio.get_running_loop().time() >= stop_at:
                    return
        except CorralError:
            self._away_until[record.name] = self.clock.now() + _AWAY_S
        except TimeoutError:
            self._away_until[record.name] = self.clock.now() + _SILENT_S
        except Exception:
            log.exception("executor %s", record.name)
            self._away_until[record.name] = self.clock.now() + _SILENT_S

    def close(self) -> None:
        for task in list(self._asking.values()):
            task.cancel()


def _may_serve(record: ExecutorRecord, need: Requirements) -> bool:
    """Whether it is one of those that `cheapest` stands for in the run's list."""
    return CHEAPEST in need.executors and record.removed_at is None and record.name not in need.executors
