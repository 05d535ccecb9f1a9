"""DiLoCo around a training loop of one's own: `step()` after each inner step, in any framework."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from corral.diloco.codec import Compression, Vector
from corral.diloco.outer import OuterOptimizer
from corral.diloco.parallel import each, stretches
from corral.diloco.records import Commit
from corral.diloco.round_store import RoundStore, StoreError
from corral.diloco.rounds import Fate, Outcome, Point, RoundRules, Rounds
from corral.diloco.store import check_store, open_store
from corral.durations import parse_duration

_NOTHING = np.float32(0)
_ARGUMENT = "Correct this argument of OuterLoop."
# So often `waiting` is called.
_LOOK_S = 0.5
# A tensor of torch or an array of numpy.
Params = Mapping[str, Any]


@dataclass(frozen=True)
class RoundReport:
    """One round of one fragment, as this replica saw it. For `waited_s` its training stood still."""

    fragment: int
    round: int
    members: Mapping[str, int]
    fate: Fate
    tokens: int
    waited_s: float


@dataclass
class _Fragment:
    """Some of the parameters, which are synchronised together: `at` is the inner step of a cycle after which
    they are."""

    number: int
    names: list[str]
    at: int
    rounds: Rounds
    commit: Commit
    weights: Vector
    # None while a round has it.
    error: Vector | None
    tokens: int = 0
    pending: _Pending | None = None


@dataclass
class _Pending:
    """A round that goes on beside the training."""

    tokens: int
    steps_left: int
    gradient: list[Vector]
    thread: threading.Thread | None = None
    outcome: Outcome | None = None
    problem: BaseException | None = None


class OuterLoop:
    """Replicas train apart for `inner_steps` and then meet in the store; nothing else joins them.

    The parameters are changed in place. With `fragments` they are synchronised a part at a time, spread over
    the inner steps. With `delay` a round goes on for so many further steps beside the training; when it
    is taken over, `blend` is the share of the replica's own weights that remains in them.

    `total` is how many inner steps the whole run has. `finish` after them lets every parameter meet once
    more, so that all replicas end with the same weights. While the training stands still for a round,
    `waiting` is called now and then.
    """

    def __init__(
        self,
        params: Params,
        *,
        store: str | RoundStore,
        run: str,
        replica: str | int,
        inner_steps: int = 100,
        lr: float = 0.7,
        momentum: float = 0.9,
        quorum: int = 1,
        grace: str | float = "30s",
        compress: Compression = "none",
        fragments: int = 1,
        delay: int = 0,
        blend: float = 0.0,
        poll_s: float = 1.0,
        total: int | None = None,
        waiting: Callable[[float], None] = lambda waited_s: None,
        reached: Callable[[Point], None] = lambda point: None,
    ) -> None:
        grace_s = _seconds(grace)
        known = get_args(Compression)
        checks = [
            (1 <= fragments <= len(params), f"fragments = {fragments} of {len(params)} parameters"),
            (fragments <= inner_steps, f"fragments = {fragments} within {inner_steps} inner steps"),
            (
                0 <= delay < max(1, inner_steps),
                f"delay = {delay}: it ends before {inner_steps} inner steps do",
            ),
            (compress in known, f"compress = {compress!r}: it is one of {', '.join(known)}"),
            (0 <= grace_s < math.inf, f"grace = {grace!r}: it is no time that can be waited"),
            (quorum >= 1, f"quorum = {quorum}: a round needs one replica at least"),
            (0 < lr < math.inf, f"lr = {lr}: it is above 0"),
            (0 <= momentum < 1, f"momentum = {momentum}: it is from 0 to below 1"),
            (0 <= blend < 1, f"blend = {blend}: it is from 0 to below 1"),
        ]
        if wrong := [words for holds, words in checks if not holds]:
            raise StoreError(wrong[0], hint=_ARGUMENT)
        self._params, self._inner_steps, self._delay = params, inner_steps, delay
        self._blend, self._total, self._waiting = np.float32(blend), total, waiting
        rules = RoundRules(
            quorum=quorum,
            grace_s=grace_s,
            compression=compress,
            outer=OuterOptimizer(lr, momentum),
            poll_s=poll_s,
        )
        opened = open_store(store) if isinstance(store, str) else store
        check_store(opened)
        self._fragments = [
            self._join(number, names, at, opened, f"{run}/f{number}", str(replica), rules)
            for number, (names, at) in enumerate(_schedule(sorted(params), fragments, inner_steps))
        ]
        for fragment in self._fragments:
            fragment.rounds.reached = reached
        # Who comes late, or starts again, is where the others are.
        self._steps = max(self._due(fragment, fragment.commit.round) for fragment in self._fragments)

    def _join(
        self,
        number: int,
        names: list[str],
        at: int,
        store: RoundStore,
        prefix: str,
        replica: str,
        rules: RoundRules,
    ) -> _Fragment:
        own = self._read(names)
        rounds = Rounds(store, prefix, replica, len(own), rules)
        commit, weights = rounds.begin(own)
        self._write(names, weights)
        return _Fragment(number, names, at, rounds, commit, weights, np.zeros(len(weights), np.float32))

    @property
    def rounds(self) -> list[int]:
        """The last committed round of each fragment."""
        return [fragment.commit.round for fragment in self._fragments]

    @property
    def steps(self) -> int:
        """How many inner steps of the run are done. It follows from the rounds: a replica that finds that the
        others have gone on without it is where they are."""
        return self._steps

    @property
    def last_rounds(self) -> list[int]:
        """The last round that each fragment has; `total` must be known."""
        return [self._last(fragment) for fragment in self._fragments]

    def step(self, tokens: int = 1) -> list[RoundReport]:
        """After each inner step, with the tokens that it learned from. Tells of the rounds that ended."""
        self._steps += 1
        reports = []
        for fragment in self._fragments:
            fragment.tokens += tokens
            if fragment.pending is not None:
                fragment.pending.steps_left -= 1
                if fragment.pending.steps_left <= 0:
                    reports.append(self._finish(fragment))
            if self._steps % self._inner_steps == fragment.at % self._inner_steps:
                self._begin(fragment)
                if not self._delay:
                    reports.append(self._finish(fragment))
        return reports

    def close(self) -> list[RoundReport]:
        """Wait for rounds that are under way, and take them over."""
        return [self._finish(fragment) for fragment in self._fragments if fragment.pending is not None]

    def finish(self) -> list[RoundReport]:
        """After `total` steps: the last round of every fragment. All replicas have the same weights then."""
        reports = self.close()
        for fragment in self._fragments:
            while fragment.commit.round < self._last(fragment):
                self._begin(fragment)
                reports.append(self._finish(fragment))
            # Nothing of its own remains.
            self._write(fragment.names, fragment.weights)
        return reports

    def _due(self, fragment: _Fragment, number: int) -> int:
        """After which inner step of the run a round of the fragment begins."""
        if not number:
            return 0
        step = (number - 1) * self._inner_steps + fragment.at
        return step if self._total is None else min(step, self._total)

    def _last(self, fragment: _Fragment) -> int:
        """The first round that begins when all steps are done."""
        assert self._total is not None
        return max(1, -(-(self._total - fragment.at) // self._inner_steps) + 1)

    def _begin(self, fragment: _Fragment) -> None:
        pending = _Pending(fragment.tokens, self._delay, [self._gradient(fragment)])
        fragment.tokens, fragment.pending = 0, pending

        def work() -> None:
            try:
                # Nobody else holds the gradient, so that it is gone when the round has sent it.
                pending.outcome = fragment.rounds.run(
                    fragment.commit, fragment.weights, pending.gradient.pop(), pending.tokens
                )
            # Whatever it is, it is raised in the thread that trains.
            except BaseException as error:  # noqa: BLE001
                pending.problem = error

        pending.thread = threading.Thread(target=work, name="corral-diloco", daemon=True)
        pending.thread.start()

    def _finish(self, fragment: _Fragment) -> RoundReport:
        pending, fragment.pending = fragment.pending, None
        assert pending is not None
        assert pending.thread is not None
        began = time.monotonic()
        pending.thread.join(_LOOK_S)
        while pending.thread.is_alive():
            self._waiting(time.monotonic() - began)
            pending.thread.join(_LOOK_S)
        waited_s = time.monotonic() - began
        if pending.problem is not None:
            raise pending.problem
        assert pending.outcome is not None
        commit, expected = pending.outcome.commit, fragment.commit.round + 1
        self._apply(fragment, pending.outcome)
        if commit.round > expected:
            ahead = self._due(fragment, commit.round) + self._delay
            self._steps = max(self._steps, ahead if self._total is None else min(ahead, self._total))
        commit = pending.outcome.ended
        return RoundReport(
            fragment.number, commit.round, commit.members, pending.outcome.fate, pending.tokens, waited_s
        )

    def _apply(self, fragment: _Fragment, outcome: Outcome) -> None:
        fragment.commit, fragment.weights, fragment.error = outcome.commit, outcome.weights, outcome.error
        self._write(fragment.names, outcome.weights, self._blend)

    # -- parameters -----------------------------------------------------------------------------------

    def _places(self, names: list[str]) -> Iterator[tuple[str, slice]]:
        """Where each parameter lies in the vector of all."""
        at = 0
        for name in names:
            size = math.prod(self._params[name].shape)
            yield name, slice(at, at + size)
            at += size

    def _read(self, names: list[str]) -> Vector:
        places = list(self._places(names))
        vector = np.empty(places[-1][1].stop, np.float32)
        for name, place in places:
            vector[place] = _numbers(self._params[name])
        return vector

    def _gradient(self, fragment: _Fragment) -> Vector:
        """How far the replica's own weights lie before the common ones, with what compression left out so
        far. That is added up in place, and is the round's from now on."""
        gradient, fragment.error = fragment.error, None
        if gradient is None:
            # The last round failed, and took it along.
            gradient = np.zeros(len(fragment.weights), np.float32)
        for name, place in self._places(fragment.names):
            own = _numbers(self._params[name])

            def work(part: slice, place: slice = place, own: Vector = own) -> None:
                to = slice(place.start + part.start, place.start + part.stop)
                gradient[to] += fragment.weights[to] - own[part]

            each(work, stretches(len(own)))
        return gradient

    def _write(self, names: list[str], vector: Vector, own_share: np.float32 = _NOTHING) -> None:
        for name, place in self._places(names):
            taken = vector[place]
            if own_share:
                taken = _numbers(self._params[name]) * own_share + taken * (np.float32(1) - own_share)
            _put(self._params, name, taken)


def _seconds(grace: str | float) -> float:
    try:
        return parse_duration(grace) if isinstance(grace, str) else float(grace)
    except ValueError as error:
        raise StoreError(f"grace = {grace!r} {error}", hint=_ARGUMENT) from None


def _schedule(names: list[str], fragments: int, inner_steps: int) -> list[tuple[list[str], int]]:
    """Every so-many-th parameter, so that each fragment has some of every depth; spread over the steps."""
    return [
        (names[number::fragments], (number + 1) * inner_steps // fragments) for number in range(fragments)
    ]


def _numbers(param: Any) -> Vector:
    """Perhaps the parameter's own memory."""
    if hasattr(param, "detach"):
        # To the CPU as it is: half the bytes where it is narrow.
        param = param.detach().cpu().float().numpy()
    found: Vector = np.asarray(param, np.float32).reshape(-1)
    return found


def _put(params: Params | MutableMapping[str, Any], name: str, numbers: Vector) -> None:
    param = params[name]
    shaped = numbers.reshape(param.shape)
    if hasattr(param, "detach"):
        torch = sys.modules["torch"]
        with torch.no_grad():
            param.copy_(torch.from_numpy(np.ascontiguousarray(shaped)).to(param.dtype))
    else:
        param[...] = shaped
