"""One replica's part in the rounds of one vector of weights, by objects in a store alone.

A round goes: every replica puts its payload and then creates its offer; whoever sees enough offers creates
the membership, which names those that count; each member does the outer step on a shard of the vector and
creates its record; when all shards are there, somebody creates the commit. RoundOffer, membership, record and
commit are each created once by one conditional write, so all replicas go by the same ones, and whoever dies
is replaced by any other. Nothing is read that such an object does not name.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from corral.diloco import blocks, records
from corral.diloco.blocks import Cut, Missing
from corral.diloco.codec import BLOCK, Codec, Compression, Vector, padded
from corral.diloco.outer import OuterOptimizer, weighted_mean
from corral.diloco.records import Commit, Membership, ReplicaSeat, RoundOffer, Shard
from corral.diloco.round_store import RoundStore, StoreError

Fate = Literal["committed", "late"]
State = Literal["weights", "momentum"]
# The store is asked again after this, and ever later up to `poll_s`.
_FIRST_POLL_S = 0.02
# Where a round stands, for those who watch it or break it on purpose.
Point = Literal["before payload", "after payload", "after offer", "reducing", "applying"]


class ReplicaReplaced(StoreError):
    """Another process is this replica by now; this one must end."""

    code = "replica_replaced"
    hint = "Start it as another replica, or end the other process first."


class NotFinite(StoreError):
    """The replica's weights are no numbers any more; what it would bring would spoil everybody's."""

    code = "replica_diverged"
    hint = "Restart it: it begins with the weights of the last round. Lower the inner learning rate."


@dataclass(frozen=True)
class RoundRules:
    """What all replicas of a run have in common. A round waits for `quorum` offers, then `grace_s` more for
    those who took part in the round before."""

    quorum: int = 1
    grace_s: float = 30.0
    compression: Compression = "none"
    outer: OuterOptimizer = field(default_factory=OuterOptimizer)
    poll_s: float = 1.0
    # Rounds whose objects stay after the newest, for those who are still reading them.
    keep: int = 2


class Outcome(NamedTuple):
    """What became of a round. `weights` are those that every replica has after `commit`; `error` is what
    compression left out of this replica's part."""

    commit: Commit
    weights: Vector
    fate: Fate
    error: Vector


@dataclass
class Rounds:
    store: RoundStore
    prefix: str
    replica: str
    # Of the vector.
    size: int
    rules: RoundRules
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))
    reached: Callable[[Point], None] = lambda point: None
    sleep: Callable[[float], None] = time.sleep

    @property
    def _cut(self) -> Cut:
        return Cut.of(self.size)

    # -- joining --------------------------------------------------------------------------------------

    def begin(self, weights: Vector) -> tuple[Commit, Vector]:
        """Take this replica's seat; the newest commit and its weights. The first of all replicas makes its
        own weights the beginning."""
        newest = self.newest()
        self._take_seat(0 if newest is None else newest.round)
        if newest is None:
            start = padded(weights)
            shard = self._write_shard(0, 0, (0, self._cut.pieces), start, np.zeros_like(start))
            self.store.create(self._commit_key(0), records.dump(Commit(0, {}, (shard,), self.size)))
            newest = self._commit(0)
        if newest is None or newest.size != self.size:
            there = 0 if newest is None else newest.size
            raise StoreError(
                f"the run in {self.prefix} trains {there} weights, this replica {self.size}",
                hint="Give the run a prefix of its own, or start the replica with the same model.",
            )
        return self.heal(newest)

    def newest(self) -> Commit | None:
        listed = self.store.list(f"{self.prefix}/commits")
        numbers = [number for one in listed if (number := records.number_of(one.key)) is not None]
        return self._commit(max(numbers)) if numbers else None

    def heal(self, commit: Commit) -> tuple[Commit, Vector]:
        """The weights of a commit, or of a newer one where its objects are gone by now."""
        while True:
            try:
                return commit, self.weights(commit)
            except Missing:
                newest = self.newest()
                if newest is None or newest.round <= commit.round:
                    raise
                commit = newest

    def weights(self, commit: Commit) -> Vector:
        return self._state(commit, "weights")[: self.size]

    def momentum(self, commit: Commit) -> Vector:
        return self._state(commit, "momentum")[: self.size]

    def _take_seat(self, since: int) -> None:
        """From whoever has it: of two processes that are the same replica, the one that came last goes on."""
        key, mine = self._seat_key(self.replica), records.dump(ReplicaSeat(self.incarnation, since))
        while not self.store.create(key, mine):
            found = self.store.get(key)
            if found is not None and self.store.replace(key, mine, found[1]):
                return

    def _check_seat(self) -> None:
        seat = self._seat(self._seat_key(self.replica))
        if seat is not None and seat.incarnation != self.incarnation:
            raise ReplicaReplaced(f"another process is replica {self.replica} of {self.prefix} by now")

    def _wait_for_me(self, since: int) -> None:
        """The next round expects this replica, as if it had come now: or it would be left out for ever."""
        key = self._seat_key(self.replica)
        found = self.store.get(key)
        if found is not None and records.read_seat(found[0], key).incarnation == self.incarnation:
            self.store.replace(key, records.dump(ReplicaSeat(self.incarnation, since)), found[1])

    def _seat(self, key: str) -> ReplicaSeat | None:
        found = self.store.get(key)
        return None if found is None else records.read_seat(found[0], key)

    # -- one round ------------------------------------------------------------------------------------

    def run(self, base: Commit, weights: Vector, gradient: Vector, tokens: int) -> Outcome:
        """The round after `base`, whose `weights` these are: `gradient` is how far this replica's own lie
        before them, and `tokens` how many it learned from. Where the others have gone on without it, what
        it learned since is dropped."""
        number = base.round + 1
        self._check_seat()
        if self._commit(number) is not None:
            return self._left_out(gradient)
        error = self._offer(number, gradient, tokens)
        membership = self._membership(number, base)
        if membership is None:
            return self._left_out(gradient)
        mine = [place for place, one in enumerate(membership.offers) if one.replica == self.replica]
        if mine:
            self.reached("reducing")
            self._reduce(number, mine[0], membership, base, weights)
        commit = self._conclude(number, membership, base, weights)
        self.reached("applying")
        commit, after = self.heal(commit)
        if self.replica == min(commit.members, default=self.replica):
            self._collect(number)
        counted = mine and membership.offers[mine[0]].incarnation == self.incarnation
        if not counted:
            self._wait_for_me(commit.round)
            return Outcome(commit, after, "late", np.zeros_like(gradient))
        return Outcome(commit, after, "committed", error)

    def _left_out(self, gradient: Vector) -> Outcome:
        newest = self.newest()
        assert newest is not None
        commit, weights = self.heal(newest)
        self._wait_for_me(commit.round)
        return Outcome(commit, weights, "late", np.zeros_like(gradient))

    def _offer(self, number: int, gradient: Vector, tokens: int) -> Vector:
        """Gives what compression left out."""
        if not np.isfinite(gradient).all():
            raise NotFinite(f"the weights of replica {self.replica} are no numbers any more")
        self.reached("before payload")
        codec, whole, cut = Codec(self.rules.compression), padded(gradient), self._cut
        data = codec.encode(whole)
        payload = f"{self._round(number)}/payloads/{self.replica}-{self.incarnation}.safetensors"
        start = blocks.write(self.store, payload, {"data": data})
        self.reached("after payload")
        pieces = tuple(blocks.sha256(data[cut.stretch(n, n + 1)]) for n in range(cut.pieces))
        offer = RoundOffer(self.replica, self.incarnation, tokens, payload, codec.compression, start, pieces)
        key = f"{self._round(number)}/offers/{self.replica}.json"
        if not self.store.create(key, records.dump(offer)):
            found = self.store.get(key)
            if found is not None and records.read_offer(found[0], key).incarnation != self.incarnation:
                self._check_seat()
        self.reached("after offer")
        return (whole - codec.decode(data))[: len(gradient)]

    def _membership(self, number: int, base: Commit) -> Membership | None:
        """Decided by whoever sees first that it is time; None if the round is over already."""
        key = f"{self._round(number)}/members.json"
        for tries in itertools.count():
            if (found := self.store.get(key)) is not None:
                membership = records.read_membership(found[0], key)
                if not all(self._fits(offer) for offer in membership.offers):
                    raise records.broken(key, "an offer in it is of another vector")
                return membership
            if self._commit(number) is not None:
                return None
            if (offers := self._ready(number, base)) is not None:
                self.store.create(key, records.dump(Membership(offers)))
                continue
            self.sleep(min(self.rules.poll_s, _FIRST_POLL_S * 1.5 ** min(tries, 20)))
        raise AssertionError("unreachable")

    def _ready(self, number: int, base: Commit) -> list[RoundOffer] | None:
        """The offers, if nobody else is waited for."""
        there = sorted(self.store.list(f"{self._round(number)}/offers"), key=lambda one: one.modified)
        if len(there) < max(1, self.rules.quorum):
            return None
        names = {one.key.rpartition("/")[2].removesuffix(".json") for one in there}
        since = there[self.rules.quorum - 1].modified
        if not self._expected(base) <= names and self.store.now() - since < self.rules.grace_s:
            return None
        offers = (self._offer_at(key) for key in sorted(one.key for one in there))
        good = [one for one in offers if one is not None]
        return good if len(good) >= max(1, self.rules.quorum) else None

    def _offer_at(self, key: str) -> RoundOffer | None:
        """None for one that cannot count: what somebody else put there keeps nobody from the round."""
        try:
            found = self.store.get(key)
            offer = None if found is None else records.read_offer(found[0], key)
        except StoreError:
            return None
        name = key.rpartition("/")[2].removesuffix(".json")
        return offer if offer is not None and offer.replica == name and self._fits(offer) else None

    def _fits(self, offer: RoundOffer) -> bool:
        return len(offer.pieces) == self._cut.pieces and offer.payload.startswith(f"{self.prefix}/")

    def _expected(self, base: Commit) -> set[str]:
        """Those of the round before, and those who came since."""
        expected = set(base.members)
        for one in self.store.list(f"{self.prefix}/seats"):
            name = one.key.rpartition("/")[2].removesuffix(".json")
            if name in expected:
                continue
            seat = self._seat(one.key)
            if seat is not None and seat.since >= base.round:
                expected.add(name)
        return expected

    # -- reducing -------------------------------------------------------------------------------------

    def _reduce(self, number: int, place: int, membership: Membership, base: Commit, weights: Vector) -> None:
        """The outer step on one member's shard, streamed over the members one after the other."""
        cut = self._cut
        first, last = cut.shards(len(membership.offers))[place]
        if first == last or self.store.get(self._record_key(number, place)) is not None:
            return
        stretch = cut.stretch(first, last)
        mean = self._mean(membership.offers, first, last)
        numbers = slice(stretch.start * BLOCK, stretch.stop * BLOCK)
        before = self._state(base, "momentum", first, last)
        after, momentum = self.rules.outer.step(padded(weights)[numbers], before, mean)
        shard = self._write_shard(number, place, (first, last), after, momentum)
        self.store.create(self._record_key(number, place), records.dump(shard))

    def _mean(self, offers: Sequence[RoundOffer], first: int, last: int) -> Vector:
        """Of those whose parts are numbers: one that brings others spoils nothing. Whoever does it, the same
        parts count."""
        parts = (self._part_of(offer, self._cut, first, last) for offer in offers)
        mean = weighted_mean(parts, [offer.tokens for offer in offers])
        if np.isfinite(mean).all():
            return mean
        good = [one for one in offers if np.isfinite(self._part_of(one, self._cut, first, last)).all()]
        is_better = 0 < len(good) < len(offers)
        return self._mean(good, first, last) if is_better else np.zeros_like(mean)

    def _part_of(self, offer: RoundOffer, cut: Cut, first: int, last: int) -> Vector:
        codec, stretch = Codec(records.known_compression(offer.compression)), cut.stretch(first, last)
        size = (stretch.stop - stretch.start) * codec.block_bytes
        at = offer.start + stretch.start * codec.block_bytes
        each = cut.piece_blocks * codec.block_bytes
        data = blocks.read_pieces(self.store, offer.payload, at, size, offer.pieces[first:last], each)
        return codec.decode(data)

    def _write_shard(
        self, number: int, place: int, pieces: tuple[int, int], weights: Vector, momentum: Vector
    ) -> Shard:
        key = f"{self._round(number)}/state/{place:04d}-{self.replica}-{self.incarnation}.safetensors"
        raw = {"weights": weights.view(np.uint8), "momentum": momentum.view(np.uint8)}
        start = blocks.write(self.store, key, raw)
        each = 4 * BLOCK * self._cut.piece_blocks
        told = (
            [blocks.sha256(one[at : at + each]) for at in range(0, len(one), each)] for one in raw.values()
        )
        return Shard(*pieces, key, start, *(tuple(digests) for digests in told))

    def _state(self, commit: Commit, what: State, first: int = 0, last: int | None = None) -> Vector:
        """Of some pieces, from whichever shards they lie in."""
        cut = self._cut
        last = cut.pieces if last is None else last
        wanted = cut.stretch(first, last)
        found = np.empty((wanted.stop - wanted.start) * BLOCK, np.float32)
        for shard in commit.shards:
            low, high = max(first, shard.first), min(last, shard.last)
            if low < high:
                part = cut.stretch(low, high)
                at = (part.start - wanted.start) * BLOCK
                found[at : at + (part.stop - part.start) * BLOCK] = self._read_shard(shard, what, low, high)
        return found

    def _read_shard(self, shard: Shard, what: State, first: int, last: int) -> Vector:
        whole, part = self._cut.stretch(shard.first, shard.last), self._cut.stretch(first, last)
        number = 4 * BLOCK
        start = shard.start + (part.start - whole.start) * number
        if what == "momentum":
            start += (whole.stop - whole.start) * number
        digests = (shard.weights if what == "weights" else shard.momentum)[
            first - shard.first : last - shard.first
        ]
        size, each = (part.stop - part.start) * number, self._cut.piece_blocks * number
        return blocks.read_pieces(self.store, shard.key, start, size, digests, each).view(np.float32)

    # -- committing -----------------------------------------------------------------------------------

    def _conclude(self, number: int, membership: Membership, base: Commit, weights: Vector) -> Commit:
        """Wait until all shards are there, doing those whose members do not; then the round is committed."""
        cut, began = self._cut, self.store.now()
        wanted = [n for n, (first, last) in enumerate(cut.shards(len(membership.offers))) if first < last]
        for tries in itertools.count():
            if (commit := self._commit(number)) is not None:
                return commit
            shards = dict(self._records(number, cut.shards(len(membership.offers))))
            missing = [place for place in wanted if place not in shards]
            if not missing:
                members = {one.replica: one.tokens for one in membership.offers}
                made = Commit(number, members, tuple(shards[place] for place in wanted), base.size)
                self.store.create(self._commit_key(number), records.dump(made))
                continue
            if self.store.now() - began >= self.rules.grace_s:
                self._reduce(number, missing[0], membership, base, weights)
                continue
            self.sleep(min(self.rules.poll_s, _FIRST_POLL_S * 1.5 ** min(tries, 20)))
        raise AssertionError("unreachable")

    def _records(self, number: int, cuts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Shard]]:
        for one in self.store.list(f"{self._round(number)}/shards"):
            place = records.number_of(one.key)
            if place is None or place >= len(cuts) or (found := self.store.get(one.key)) is None:
                continue
            shard = records.read_shard(found[0], one.key)
            if (shard.first, shard.last) != cuts[place]:
                raise records.broken(one.key, "it is another part of the vector than its name says")
            yield place, shard

    def _collect(self, number: int) -> None:
        """Remove the objects of rounds that nobody reads any more; the commits themselves stay."""
        before = f"{self._round(max(0, number - self.rules.keep))}/"
        for one in list(self.store.list(f"{self.prefix}/rounds")):
            if one.key < before:
                self.store.delete(one.key)

    # -- keys -----------------------------------------------------------------------------------------

    def _commit(self, number: int) -> Commit | None:
        key = self._commit_key(number)
        found = self.store.get(key)
        if found is None:
            return None
        commit = records.read_commit(found[0], key)
        records.check_whole(commit, key, number, Cut.of(commit.size).pieces)
        return commit

    def _commit_key(self, number: int) -> str:
        return f"{self.prefix}/commits/{number:08d}.json"

    def _record_key(self, number: int, place: int) -> str:
        return f"{self._round(number)}/shards/{place:04d}.json"

    def _seat_key(self, replica: str) -> str:
        return f"{self.prefix}/seats/{replica}.json"

    def _round(self, number: int) -> str:
        return f"{self.prefix}/rounds/{number:08d}"
