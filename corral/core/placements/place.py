"""Deciding that an executor is to bring workers up for a run, written down before anything is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from corral.core.hosts.enroll import end_credentials
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.runs.dependencies import move
from corral.core.tokens import make_token
from corral.domain.hosts.capability import OWN_HOSTS, Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import HostPolicy, render_declared
from corral.domain.ids import RunId, new_placement_id
from corral.domain.placements.placements import Placement, PlacementState
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunEvent, RunState
from corral.domain.tokens import Scope
from corral.ports.secrets import Cipher
from corral.store.transaction import Tx

# So many runs of a lane are looked at in one round.
_PAGE = 50


@dataclass(frozen=True)
class Placing:
    """One round's look at the queue."""

    board: Board
    policy: ServerPolicy
    cipher: Cipher

    def due(self, tx: Tx, now: float) -> list[RunId]:
        """Queued runs that an executor is to bring workers up for now."""
        found: list[RunId] = []
        for lane, head in tx.runs.heads():
            need = self.board.shapes.get(tx, lane.shape)
            if not need.executors or self.board.over_quota(lane.project, need, keep_s=0.0) is not None:
                continue
            page = [named.ready for named in tx.runs.ready_names(lane, after=head, limit=_PAGE)]
            for ready in (head, *page):
                waited_s = now - ready.ready_at
                if waited_s >= self._own_hosts_first_s(need) and not _open(tx, ready.id):
                    found.append(ready.id)
        return found

    def _own_hosts_first_s(self, need: Requirements) -> float:
        return self.policy.own_hosts_first_s if need.executors[0] in OWN_HOSTS else 0.0

    def place(self, tx: Tx, run_id: RunId, now: float) -> Placement | None:
        """The intent, with the tokens of its workers; None if the run waits no longer."""
        run = tx.runs.lock(run_id)
        if run is None or run.state is not RunState.QUEUED or _open(tx, run_id):
            return None
        need = self.board.shapes.get(tx, run.shape)
        executor = next_executor(need.executors, tx.placements.of_run(run_id), set(_usable(tx)))
        if executor is None or self.board.held_back(tx, run, self.policy) is not None:
            return None
        placement_id = new_placement_id()
        key = f"corral-{placement_id.removeprefix('p-')}"
        tokens = [_worker_token(tx, run, key, rank, now) for rank in range(run.world_size)]
        placement = Placement(
            id=placement_id,
            run_id=run.id,
            project=run.project,
            executor=executor,
            ranks=run.world_size,
            launch_key=key,
            state=PlacementState.INTENDED,
            created_at=now,
            sealed=self.cipher.encrypt(json.dumps(tokens), context=f"placement:{placement_id}"),
        )
        tx.placements.insert(placement)
        data = {"executor": executor, "placement": placement_id, "ranks": run.world_size}
        move(tx, run, RunEvent.PLACE, at=now, actor="corral", data=data)
        return placement

    def tokens(self, placement: Placement) -> tuple[str, ...]:
        text = self.cipher.decrypt(placement.sealed or "", context=f"placement:{placement.id}")
        return tuple(json.loads(text))


def next_executor(wanted: Sequence[str], before: Sequence[Placement], usable: set[str]) -> str | None:
    """The one that lost the fewest placements of the run, in the order that the run names them."""
    possible = [name for name in wanted if name in usable]
    lost = [placement.executor for placement in before if placement.lost]
    return min(possible, key=lost.count, default=None)


def _usable(tx: Tx) -> list[str]:
    return [executor.name for executor in tx.executors.all() if executor.removed_at is None]


def _open(tx: Tx, run_id: RunId) -> bool:
    return any(one.state is not PlacementState.CLOSED for one in tx.placements.of_run(run_id))


def _worker_token(tx: Tx, run: Run, key: str, rank: int, now: float) -> str:
    """For the worker of one rank: a host of its own that may take this run and no other."""
    name = f"run-{run.id.removeprefix('r-')}-{rank}"
    host = tx.hosts.by_name(name)
    if host is None:
        policy = HostPolicy(slots=1, allow=(f"name:{run.name}",), projects=(run.project,))
        host = Host.new(name, now)._replace(declared=render_declared(policy), declared_digest=policy.digest)
        tx.hosts.insert(host)
    else:
        # Of an earlier placement, whose workers must not take the run beside the new ones.
        end_credentials(tx, host.id, now=now)
        tx.hosts.save(host._replace(revoked_at=None, strikes=0, set_aside_until=None))
    made = make_token(
        tx,
        Scope.RUN,
        f"{key}-{rank:04d}",
        now=now,
        project=run.project,
        host_id=host.id,
        run_id=run.id,
    )
    return made.text
