"""Rounds with the other replicas of a run, between its steps: what is trained here meets theirs in a store.

How far the run is follows from the rounds alone. So a replica that starts again, comes late or was left out
is where the others are, with their weights, and all end after the same step.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch

from corral.diloco.counted_store import CountedStore
from corral.diloco.loop import OuterLoop, RoundReport
from corral.diloco.round_store import RoundStore
from corral.diloco.store import OWN_STORE, open_store
from corral.engine.engine import Engine
from corral.engine.reports.events import EventWriter
from corral.recipes.diloco import Diloco, Outer

# So often the worker hears that a run that waits for a round is alive.
_ALIVE_EVERY_S = 10.0
# When nobody else has come to the first round for so long, the store may not be the same place everywhere.
_ALONE_S = 60.0
# Of the last rounds it is told who took part.
_RECENT = 3
_MOST_NAMES = 16


@dataclass(frozen=True)
class ReplicaPlace:
    """Which replica of which run this is."""

    run: str
    replica: int


@dataclass
class RoundTally:
    """What became of the rounds of one replica, over all its processes. It lies in the store, since nothing
    else outlives a process that is killed. `fragments` is how many parts a token is brought to rounds in."""

    done: int = 0
    of: int = 0
    taken: int = 0
    late: int = 0
    committed: int = 0
    dropped: int = 0
    up: int = 0
    down: int = 0
    waited_s: float = 0.0
    spent_s: float = 0.0
    fragments: int = 1
    recent: list[tuple[int, int, str]] = field(default_factory=list)

    def add(self, report: RoundReport, replica: str) -> None:
        """What is committed may have been brought by an earlier process of this replica."""
        if replica in report.members:
            self.taken += 1
            self.committed += report.members[replica]
        else:
            self.late += 1
        if report.fate == "late":
            self.dropped += report.tokens
        self.waited_s += report.waited_s
        self.recent = [*self.recent, (report.fragment, report.round, _names(report.members))][-_RECENT:]

    def told(self) -> dict[str, Any]:
        """For `corral show`. A token counts for each part of the weights by itself."""
        said = asdict(self)
        for name in ("committed", "dropped"):
            said[name] = round(said[name] / self.fragments)
        return {**said, "waited_s": round(self.waited_s, 3), "spent_s": round(self.spent_s, 3)}

    @classmethod
    def read(cls, data: bytes) -> RoundTally:
        """What an earlier process wrote; another version may have written less or more."""
        known = {one.name for one in fields(cls)}
        said = json.loads(data)
        kept = {key: value for key, value in said.items() if key in known}
        return cls(**{**kept, "recent": [tuple(one) for one in kept.get("recent", ())]})


class OuterRounds:
    """`join` first; then `step` after each step. Both give the step of the run that is done."""

    def __init__(
        self, settings: Diloco, place: ReplicaPlace, engine: Engine, events: EventWriter, *, total: int
    ) -> None:
        self.settings, self.place, self.total = settings, place, total
        self._engine, self._events = engine, events
        self._tally = RoundTally(fragments=settings.fragments)
        self._counted_at, self._told_at, self._told_alone = time.monotonic(), 0.0, False
        self.changed = False

    def join(self) -> int:
        """Take this replica's seat, and the weights of the last round. `changed` says whether those are
        others than it had."""
        self._events.phase("joining the other replicas")
        self._store = CountedStore(self._open())
        before = digest(self._engine.weights)
        settings, outer = self.settings, self.settings.outer
        assert isinstance(outer, Outer)
        assert settings.quorum is not None
        self._loop = OuterLoop(
            self._engine.weights,
            store=self._store,
            run=self.place.run,
            replica=self.place.replica,
            inner_steps=settings.inner_steps,
            lr=outer.lr,
            momentum=outer.momentum,
            quorum=settings.quorum,
            grace=settings.grace_s,
            compress=settings.compress,
            fragments=settings.fragments,
            delay=settings.delay,
            blend=settings.blend,
            total=self.total,
            waiting=self._waiting,
        )
        if (found := self._store.get(self._tally_key)) is not None:
            self._tally = RoundTally.read(found[0])
        self._engine.weights_written()
        self._counted_at = time.monotonic()
        self._after(self._loop.finish() if self._loop.steps >= self.total else [])
        self.changed = digest(self._engine.weights) != before
        return self._loop.steps

    def step(self, tokens: int) -> int:
        """A step was done, over so many tokens."""
        reports = self._loop.step(tokens)
        if self._loop.steps >= self.total:
            reports += self._loop.finish()
        if reports or self._loop.steps >= self.total:
            self._engine.weights_written()
            self._after(reports)
        return self._loop.steps

    def _open(self) -> RoundStore:
        return open_store(self.settings.store or OWN_STORE)

    # -- telling --------------------------------------------------------------------------------------

    def _after(self, reports: Sequence[RoundReport]) -> None:
        tally, step = self._tally, self._loop.steps
        tally.done, tally.of = sum(self._loop.rounds), sum(self._loop.last_rounds)
        up, down, now = self._store.bytes_up, self._store.bytes_down, time.monotonic()
        self._store.bytes_up = self._store.bytes_down = 0
        tally.up, tally.down = tally.up + up, tally.down + down
        tally.spent_s, self._counted_at = tally.spent_s + now - self._counted_at, now
        for number, report in enumerate(reports):
            tally.add(report, str(self.place.replica))
            # What several rounds sent is told of the first.
            sent = (up, down) if number == 0 else (0, 0)
            self._events.metrics(step, _metrics(report, *sent))
            self._events.say(self._line(report, *sent))
        if reports:
            self._store.put(self._tally_key, json.dumps(asdict(tally)).encode())
        self._events.rounds(tally.told())

    def _line(self, report: RoundReport, up: int, down: int) -> str:
        part = f" of part {report.fragment + 1}" if self.settings.fragments > 1 else ""
        last = self._loop.last_rounds[report.fragment]
        waited = f"waited {report.waited_s:.1f} s, {_size(up)} up, {_size(down)} down"
        dropped = ""
        if report.fate == "late":
            # Either it was not waited for, or a process that was this replica before has brought its part.
            left_out = str(self.place.replica) not in report.members
            dropped = f"; {'left out' if left_out else 'started again'}, {report.tokens} tokens are dropped"
        return f"round {report.round}/{last}{part}: replicas {_names(report.members)}{dropped}; {waited}"

    def _waiting(self, waited_s: float) -> None:
        now = time.monotonic()
        if now - self._told_at >= _ALIVE_EVERY_S:
            self._told_at = now
            self._events.doing("waiting for the other replicas")
        if waited_s >= _ALONE_S and not any(self._loop.rounds) and not self._told_alone:
            self._told_alone = True
            self._events.note(
                f"The first round has waited {_ALONE_S:.0f} s for {self.settings.quorum} replicas. Is "
                f"{self.settings.store} the same place for all of them?"
            )

    @property
    def _tally_key(self) -> str:
        return f"{self.place.run}/tallies/{self.place.replica}.json"


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Of every bit."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(weights[name].detach().cpu().contiguous().numpy().data)
    return found.hexdigest()


def _metrics(report: RoundReport, up: int, down: int) -> dict[str, float]:
    return {
        "round": report.round,
        "round/members": len(report.members),
        "round/late": float(report.fate == "late"),
        "round/tokens": report.tokens,
        "round/waited_s": report.waited_s,
        "round/bytes_up": up,
        "round/bytes_down": down,
    }


def _names(members: Mapping[str, int]) -> str:
    names = sorted(members, key=lambda name: (len(name), name))
    more = len(names) - _MOST_NAMES
    return " ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"
