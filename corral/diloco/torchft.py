"""A manager of torchft's shape, so that `torchft.local_sgd` runs on rounds in a store: no lighthouse, no
process group, no network. torchft is not needed here; torch is loaded by whoever has tensors."""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from corral.diloco import snapshot
from corral.diloco.codec import Vector
from corral.diloco.outer import OuterOptimizer
from corral.diloco.records import Commit
from corral.diloco.round_store import RoundStore, StoreError
from corral.diloco.rounds import ReplicaReplaced, RoundRules, Rounds
from corral.diloco.snapshot import SavedState
from corral.diloco.store import check_store, open_store
from corral.durations import parse_duration

# What torchft's own manager is told about its network, of which there is none here.
_NETWORK = frozenset(
    (
        *("timeout", "quorum_timeout", "connect_timeout", "quorum_retries", "use_async_quorum"),
        *("rank", "world_size", "world_size_mode", "store_addr", "store_port", "lighthouse_addr"),
        *("port", "hostname", "heartbeat_interval", "checkpoint_transport"),
    )
)
# What the user's program gives the constructor, by torchft's name.
_OWN_STATE = "default"
_log = logging.getLogger("corral.diloco")


class Work:
    """One tensor that is averaged. `wait` begins the round of all tensors that were given until then."""

    def __init__(self, tensor: Any, finish: Callable[[], None]) -> None:
        self.tensor, self._finish = tensor, finish
        self._future = sys.modules["torch"].futures.Future()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """It ends when the round does: a quorum is waited for as long as it takes."""
        self._finish()
        return True

    def get_future(self) -> Any:
        return self._future

    def end(self) -> None:
        if not self._future.done():
            self._future.set_result(self.tensor)


@dataclass
class _Window:
    """What is averaged in one step: all tensors are one vector, and the round has few objects."""

    works: list[Work]
    thread: threading.Thread | None = None
    commit: Commit | None = None
    mean: Vector | None = None
    done: bool = False


class Manager:
    """Averages by rounds in a store, and heals who comes from there.

    A step is a round. Its mean is of the replicas whose gradients the commit names; every replica applies it,
    so that all keep the same weights. After each step one of them saves the registered state; a replica that
    comes, or comes back, loads it, and brings zeros of no weight until its next window begins.
    """

    def __init__(
        self,
        pg: object = None,
        load_state_dict: Callable[[Any], None] | None = None,
        state_dict: Callable[[], object] | None = None,
        min_replica_size: int = 1,
        *,
        store: str | RoundStore,
        run: str,
        replica_id: str | None = None,
        grace: str | float = "30s",
        poll_s: float = 1.0,
        init_sync: bool = True,
        max_retries: int | None = None,
        **network: object,
    ) -> None:
        """`pg` and what torchft's manager is told of its network are taken and not used."""
        if unknown := sorted(set(network) - _NETWORK):
            raise TypeError(f"the manager takes no {', '.join(unknown)}")
        if network.get("world_size") not in (None, 1):
            raise StoreError("a replica of several ranks cannot meet others in a store by this manager")
        self._use_async_quorum = False
        opened = open_store(store) if isinstance(store, str) else store
        check_store(opened)
        grace_s = parse_duration(grace) if isinstance(grace, str) else grace
        rules = RoundRules(min_replica_size, grace_s, outer=OuterOptimizer(1.0, 0.0), poll_s=poll_s)
        self._rounds = Rounds(opened, run, replica_id or secrets.token_hex(8), 0, rules)
        self._init_sync, self._max_retries = init_sync, max_retries
        self._states: dict[str, tuple[Callable[[Any], None], Callable[[], object]]] = {}
        self._step, self._failures, self._batches = 0, 0, 0
        self._last: Commit | None = None
        self._errored: Exception | None = None
        self._window = _Window([])
        self._joined = self._unsaved = False
        # Windows in which this replica brings nothing: its weights were not those of the others before.
        self._idle_windows = 0
        self._saving: threading.Thread | None = None
        if load_state_dict is not None and state_dict is not None:
            self.register_state_dict_fn(_OWN_STATE, load_state_dict, state_dict)

    # -- what torchft calls -----------------------------------------------------------------------------

    def register_state_dict_fn(
        self, key: str, load_state_dict: Callable[[Any], None], state_dict: Callable[[], object]
    ) -> None:
        """Part of what is saved after each step, and loaded by who comes."""
        if key in self._states:
            raise StoreError(f"the state {key!r} is registered twice")
        self._states[key] = (load_state_dict, state_dict)

    def allow_state_dict_read(self) -> None:
        """States are read by the thread that trains, so there is nobody to keep out."""

    def disallow_state_dict_read(self) -> None:
        """Before each inner step. Before the first after a step, the state is still that of the step."""
        if not self._joined:
            self._try(self._join)
        if self._window.works and self._window.thread is None:
            # All tensors of this step were given: the round goes on beside the training.
            self._begin()
        if self._unsaved:
            self._unsaved = False
            if self._is_my_turn():
                self._save_beside()

    def start_quorum(
        self, allow_heal: bool = True, shrink_only: bool = False, timeout: timedelta | None = None
    ) -> None:
        """Before the tensors of a step: whoever is behind takes up the state of the others."""
        self._finish()
        self._errored, self._window = None, _Window([])
        self._try(self._catch_up if self._joined else self._join)

    def allreduce(self, tensor: Any, should_quantize: bool = False) -> Work:
        """The tensor becomes the mean once the work was waited for. It never raises: an error is kept for
        `should_commit`."""
        work = Work(tensor, self._finish)
        if self._errored is not None:
            work.end()
        else:
            self._window.works.append(work)
        return work

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        """Whether the outer step is to be done. A False discards the window, and never the run."""
        self._finish()
        window, self._window = self._window, _Window([])
        self._idle_windows = max(0, self._idle_windows - 1)
        if isinstance(self._errored, ReplicaReplaced):
            raise self._errored
        if self._errored is None and window.commit is not None:
            self._step, self._last, self._unsaved = window.commit.round, window.commit, True
            self._batches += self.num_participants()
            self._failures = 0
            return True
        self._failures += 1
        _log.warning("step %d is not committed by this replica: %s", self._step, self._errored)
        if self._max_retries is not None and self._failures > self._max_retries:
            raise self._errored or StoreError("no tensor was given to be averaged")
        return False

    def current_step(self) -> int:
        return self._step

    def batches_committed(self) -> int:
        return self._batches

    def num_participants(self) -> int:
        """Those whose gradients the last step is the mean of."""
        return 0 if self._last is None else sum(count > 0 for count in self._last.members.values())

    def is_participating(self) -> bool:
        return self._idle_windows == 0

    def errored(self) -> Exception | None:
        return self._errored

    def report_error(self, error: Exception) -> None:
        """The step will not be committed by this replica."""
        self._errored = error

    def state_dict(self) -> dict[str, int]:
        return {"step": self._step, "batches_committed": self._batches}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """The store knows the step; what a checkpoint says of it is not believed."""
        self._batches = state_dict["batches_committed"]

    def shutdown(self, wait: bool = True) -> None:
        """The last state is saved, so that the run can go on from here."""
        self._finish()
        if self._unsaved:
            self._unsaved = False
            self._save_beside()
        if wait:
            self._wait_until_saved()

    # -- a round ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        window = self._window
        vectors = [_numbers(work.tensor) for work in window.works]
        gradient = np.concatenate(vectors)
        if not self.is_participating():
            gradient = np.zeros_like(gradient)
        rounds, tokens = self._rounds, int(self.is_participating())
        rounds.size = len(gradient)
        members = {} if self._last is None else self._last.members
        base = Commit(self._step, members, (), rounds.size)

        def work() -> None:
            try:
                commit, error = rounds.take_part(base, np.zeros_like(gradient), gradient, tokens)
                # Every weight of the round is zero before it, so the mean is what was taken from it.
                window.mean = -rounds.weights(commit)
                window.commit = commit
                if rounds.replica == min(commit.members):
                    self._collect(commit.round)
                if error is None:
                    rounds.wait_for_me(commit.round)
            # Kept for the thread that trains.
            except Exception as error:  # noqa: BLE001
                self.report_error(error)

        window.thread = threading.Thread(target=work, name="corral-torchft", daemon=True)
        window.thread.start()

    def _finish(self) -> None:
        """The tensors are the mean, or as they were if something failed."""
        window = self._window
        if window.done or not window.works:
            return
        if window.thread is None:
            self._begin()
        assert window.thread is not None
        window.thread.join()
        window.done = True
        at = 0
        for work in window.works:
            if window.mean is not None:
                size = work.tensor.numel()
                _put(work.tensor, window.mean[at : at + size])
                at += size
            work.end()

    def _collect(self, number: int) -> None:
        self._rounds.collect(number)
        prefix, oldest = self._rounds.prefix, f"{max(0, number - self._rounds.rules.keep):08d}"
        for folder in ("snapshots", "states"):
            for one in list(self._rounds.store.list(f"{prefix}/{folder}")):
                if one.key.rpartition("/")[2] < oldest:
                    self._rounds.store.delete(one.key)

    # -- state ------------------------------------------------------------------------------------------

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StoreError as error:
            self.report_error(error)

    def _join(self) -> None:
        newest = self._rounds.newest()
        self._rounds.take_seat(0 if newest is None else newest.round)
        if newest is None:
            own = self._taken()
            if not snapshot.save(self._rounds.store, self._rounds.prefix, 0, own) and self._init_sync:
                first = snapshot.load(self._rounds.store, self._rounds.prefix, 0)
                if first is not None and not first.equals(own):
                    self._take(0, first)
        else:
            self._wait_for_state(newest.round)
        self._joined = True

    def _wait_for_state(self, newest: int) -> None:
        """Of the newest step, which is saved at the first inner step after it; where its writer is gone, an
        older one, and the rounds that followed are gone through one by one."""
        began, grace_s = self._rounds.store.now(), self._rounds.rules.grace_s
        oldest = self._step + 1 if self._joined else 0
        while True:
            saved = self._rounds.numbers(f"{self._rounds.prefix}/snapshots")
            best = max(saved, default=-1)
            over = self._rounds.store.now() - began >= grace_s
            if best >= newest or (best >= oldest and over):
                found = snapshot.load(self._rounds.store, self._rounds.prefix, best)
                if found is not None:
                    return self._take(best, found)
            if over:
                raise StoreError(f"no state of {self._rounds.prefix} after step {self._step} was saved")
            time.sleep(self._rounds.rules.poll_s)

    def _catch_up(self) -> None:
        newest = self._rounds.newest()
        if newest is not None and newest.round > self._step + 1:
            self._wait_for_state(newest.round)
        elif newest is None or newest.round == self._step:
            # Its writer may have died first.
            key = snapshot.record_key(self._rounds.prefix, self._step)
            self._wait_until_saved()
            if self._rounds.store.get(key) is None:
                self._save_beside()

    def _is_my_turn(self) -> bool:
        assert self._last is not None
        names = sorted(self._last.members)
        return names[self._step % len(names)] == self._rounds.replica

    def _save_beside(self) -> None:
        taken, step = self._taken(), self._step
        self._wait_until_saved()

        def save() -> None:
            # Another replica saves it at the next step.
            with suppress(StoreError):
                snapshot.save(self._rounds.store, self._rounds.prefix, step, taken)

        self._saving = threading.Thread(target=save, name="corral-torchft-state", daemon=True)
        self._saving.start()

    def _wait_until_saved(self) -> None:
        if self._saving is not None:
            self._saving.join()

    def _taken(self) -> SavedState:
        return snapshot.taken({key: save() for key, (_, save) in self._states.items()})

    def _take(self, step: int, found: SavedState) -> None:
        state = snapshot.restored(found)
        if set(state) != set(self._states):
            raise StoreError(
                f"the run in {self._rounds.prefix} has the states {sorted(state)}, "
                f"this replica {sorted(self._states)}",
                hint="Start all replicas with the same program, or give this run a name of its own.",
            )
        for key, (load, _) in self._states.items():
            load(state[key])
        self._step, self._last = step, self._rounds.commit(step)
        # `torchft.local_sgd.DiLoCo` registers a state for each fragment, and synchronises one in each window.
        self._idle_windows = max(1, len(set(self._states) - {_OWN_STATE}))
        self._rounds.wait_for_me(step)


def _numbers(tensor: Any) -> Vector:
    found: Vector = tensor.detach().float().cpu().numpy().reshape(-1)
    return found.copy()


def _put(tensor: Any, numbers: Vector) -> None:
    torch = sys.modules["torch"]
    with torch.no_grad():
        tensor.copy_(torch.from_numpy(np.ascontiguousarray(numbers)).view(tensor.shape))
