"""Deciding that an executor is to bring workers up for a run, written down before anything is asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import NamedTuple, TypeVar

from corral.core.placements.cheapest import Quote, askable, forecast_of, why_chosen
from corral.core.placements.close import LONGEST_BACKOFF_S
from corral.core.placements.pauses import pause_s
from corral.core.placements.wanted import rests_s, spelled_out, usable
from corral.core.placements.worker_hosts import has_lease, held, worker_token
from corral.core.placements.workers import serving
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.runs.dependencies import move
from corral.core.runs.transitions import record
from corral.domain.hosts.capability import CHEAPEST, OWN_HOSTS, Requirements
from corral.domain.ids import PlacementId, RunId, new_placement_id
from corral.domain.placements.placements import Placement, PlacementState
from corral.domain.placements.prices import price_of, read_price
from corral.domain.quotas import QuotaUse
from corral.domain.runs.queue import Lane, ReadyRun
from corral.domain.runs.runs import Run
from corral.domain.runs.states import UNSTARTED_RANKS, RunEvent, RunState
from corral.ports.secrets import Cipher
from corral.store.transaction import Tx

# So many runs of a lane are looked at in one round.
_PAGE = 50
# So many wait for an executor that has not taken them yet: for one that is away, no more are prepared.
MOST_INTENDED = 20
_TOKENS_AT_ONCE = 128
_LONGEST_PAUSE_S = 300.0
T = TypeVar("T")


class DueRun(NamedTuple):
    """A run for which an executor is to be asked, with its forecast time by GPU."""

    run_id: RunId
    need: Requirements
    forecast_s: Mapping[str, float]


@dataclass(frozen=True)
class Placing:
    """One round's look at the queue."""

    board: Board
    policy: ServerPolicy
    cipher: Cipher

    def due(self, tx: Tx, now: float) -> list[DueRun]:
        """Queued runs that an executor is to bring workers up for now, as many as there are places for.

        By priority; among the projects of one priority each has its turn, the one that used least first.
        """
        room = {name: MOST_INTENDED - tx.placements.intended(name) for name in usable(tx)}
        room = {name: left for name, left in room.items() if left > 0}
        queues: dict[tuple[int, str], list[tuple[ReadyRun, Lane]]] = {}
        coming: dict[str, QuotaUse] = {}
        for lane, head in tx.runs.heads():
            need = self.board.shapes.get(tx, lane.shape)
            if not room.keys() & set(spelled_out(need.executors, [*room])):
                continue
            if lane.project not in coming:
                coming[lane.project] = coming_of(tx, self.board, lane.project)
            more = coming[lane.project]
            if self.board.over_quota(lane.project, need, keep_s=0.0, coming=more) is None:
                queues.setdefault((-lane.priority, lane.project), []).append((head, lane))
        found: list[DueRun] = []
        for _, projects in groupby(sorted(queues), key=itemgetter(0)):
            keys = sorted(projects, key=lambda key: self.board.shares.weight(key[1], now))
            turns = [self._due_of(tx, sorted(queues[key]), now) for key in keys]
            found += islice(in_turns(turns), sum(room.values()) - len(found))
        return found

    def _due_of(self, tx: Tx, lanes: Sequence[tuple[ReadyRun, Lane]], now: float) -> Iterator[DueRun]:
        """Of one project and priority, the lane with the oldest run first."""
        for head, lane in lanes:
            need = self.board.shapes.get(tx, lane.shape)
            page = (named.ready for named in tx.runs.ready_names(lane, after=head, limit=_PAGE))
            for ready in chain([head], page):
                waited_s = now - ready.ready_at
                if waited_s >= self._own_hosts_s(need) and not _is_placed_or_rests(tx, ready.id, now):
                    forecast_s = forecast_of(tx, ready.id) if CHEAPEST in need.executors else {}
                    yield DueRun(ready.id, need, forecast_s)

    def _own_hosts_s(self, need: Requirements) -> float:
        return self.policy.own_hosts_s(need) if need.executors[0] in OWN_HOSTS else 0.0

    def place(self, tx: Tx, run_id: RunId, now: float, quotes: Sequence[Quote] = ()) -> Placement | None:
        """The intent; None if the run waits no longer, or too many wait for each executor that it names.

        `quotes` are those of executors that the run does not name, the best first.
        """
        run = tx.runs.lock(run_id)
        if run is None or run.state is not RunState.QUEUED or _open(tx, run_id):
            return None
        need = self.board.shapes.get(tx, run.shape)
        wanted = spelled_out(need.executors, askable(quotes))
        ready = {name for name in usable(tx) if tx.placements.intended(name) < MOST_INTENDED}
        executor = next_executor(wanted, tx.placements.of_run(run_id), ready)
        coming = coming_of(tx, self.board, run.project)
        if executor is None or self.board.held_back(tx, run, self.policy, coming=coming) is not None:
            return None
        workers = range(run.world_size)
        if not held(tx, run, workers):
            return None
        placement = self._intend(tx, run, executor, workers, now, chosen=why_chosen(quotes, executor))
        move(tx, run, RunEvent.PLACE, at=now, actor="corral", data=_told(placement))
        return placement

    def replace(self, tx: Tx, run_id: RunId, now: float) -> Placement | None:
        """The intent for those workers of an elastic run that are gone for good; None if none is due.

        The others work meanwhile. Each intent waits longer than the one before, so that workers which end
        at once are not asked for without a pause.
        """
        run = tx.runs.lock(run_id)
        if run is None or run.state is not RunState.RUNNING or not run.elastic:
            return None
        there, before = serving(tx, run), tx.placements.of_run(run_id)
        executor = before[-1].executor
        due_at = before[-1].created_at + pause_s(len(before) - 1, most_s=_LONGEST_PAUSE_S)
        if not there or now < due_at or executor not in usable(tx):
            return None
        ranks = tx.attempts.ranks(run.id, run.attempt)
        wanted = sum(1 for rank in ranks if rank.state in UNSTARTED_RANKS)
        missing = [number for number in range(run.world_size) if number not in there]
        gone = [number for number in missing if not has_lease(tx, run, number)]
        gone = gone[: min(wanted, _TOKENS_AT_ONCE)]
        if not gone or not held(tx, run, gone):
            return None
        placement = self._equipped(tx, run, self._intend(tx, run, executor, gone, now), gone, now)
        record(tx, run, "workers_replaced", at=now, actor="corral", data=_told(placement))
        return placement

    def _intend(
        self,
        tx: Tx,
        run: Run,
        executor: str,
        workers: Sequence[int],
        now: float,
        *,
        chosen: str | None = None,
    ) -> Placement:
        placement_id = new_placement_id()
        need = self.board.shapes.get(tx, run.shape)
        placement = Placement(
            id=placement_id,
            run_id=run.id,
            project=run.project,
            executor=executor,
            ranks=len(workers),
            launch_key=f"corral-{placement_id.removeprefix('p-')}",
            state=PlacementState.INTENDED,
            created_at=now,
            price_per_hour=_price(tx, executor, need, len(workers)),
            chosen=chosen,
        )
        tx.placements.insert(placement)
        return placement

    def equip(self, tx: Tx, placement_id: PlacementId, now: float) -> bool:
        """Tokens for some more of its workers; whether all have theirs. Everybody waits for each piece."""
        placement = tx.placements.lock(placement_id)
        run = None if placement is None else tx.runs.get(placement.run_id)
        if placement is None or run is None or placement.state is not PlacementState.INTENDED:
            return True
        missing = range(len(self.tokens(placement)), placement.ranks)[:_TOKENS_AT_ONCE]
        if not held(tx, run, missing):
            return False
        placement = self._equipped(tx, run, placement, missing, now)
        return len(self.tokens(placement)) == placement.ranks

    def _equipped(
        self, tx: Tx, run: Run, placement: Placement, workers: Sequence[int], now: float
    ) -> Placement:
        """With tokens for those workers too."""
        made = [*self.tokens(placement)]
        made += [worker_token(tx, run, placement, number, now) for number in workers]
        sealed = self.cipher.encrypt(json.dumps(made), context=f"placement:{placement.id}")
        equipped = placement._replace(sealed=sealed)
        tx.placements.save(equipped)
        return equipped

    def tokens(self, placement: Placement) -> tuple[str, ...]:
        """Those that it has so far."""
        if placement.sealed is None:
            return ()
        text = self.cipher.decrypt(placement.sealed, context=f"placement:{placement.id}")
        return tuple(json.loads(text))


def next_executor(wanted: Sequence[str], before: Sequence[Placement], usable: set[str]) -> str | None:
    """The one that lost the fewest placements of the run, in the order that the run names them. One that has
    refused it would say the same again."""
    refused = {placement.executor for placement in before if placement.was_refused}
    possible = [name for name in wanted if name in usable and name not in refused]
    lost = [placement.executor for placement in before if placement.lost]
    return min(possible, key=lost.count, default=None)


def in_turns(queues: Iterable[Iterator[T]]) -> Iterator[T]:
    """The first of each, then the second of each, until all are through."""
    left = [*queues]
    while left:
        still = []
        for queue in left:
            for one in islice(queue, 1):
                yield one
                still.append(queue)
        left = still


def coming_of(tx: Tx, board: Board, project: str) -> QuotaUse:
    """What executors are to bring up, or have, for runs of the project that have not begun: a quota that
    counted only what runs would let clusters hold any number of workers for runs that it then keeps back."""
    waiting = tx.placements.waiting(project)
    gpus = sum(ranks * board.shapes.get(tx, shape).gpus for ranks, shape in waiting)
    return QuotaUse(project, running=sum(ranks for ranks, _ in waiting), gpus=gpus)


def _open(tx: Tx, run_id: RunId) -> bool:
    return any(one.state is not PlacementState.CLOSED for one in tx.placements.of_run(run_id))


def _told(placement: Placement) -> dict[str, object]:
    told: dict[str, object] = {
        "executor": placement.executor,
        "placement": placement.id,
        "ranks": placement.ranks,
    }
    return told if placement.chosen is None else {**told, "chosen": placement.chosen}


def _is_placed_or_rests(tx: Tx, run_id: RunId, now: float) -> bool:
    return _open(tx, run_id) or rests_s(tx.placements.of_run(run_id), now, longest_s=LONGEST_BACKOFF_S) > 0


def _price(tx: Tx, executor: str, need: Requirements, ranks: int) -> float | None:
    record = tx.executors.get(executor)
    return None if record is None else price_of(read_price(json.loads(record.options)), need, ranks)
