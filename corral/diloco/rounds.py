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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from corral.diloco import blocks, records
from corral.diloco.blocks import Corrupt, Cut, Missing
from corral.diloco.codec import BLOCK, Codec, Compression, Vector, finite, padded
from corral.diloco.outer import OuterOptimizer, weighted_mean
from corral.diloco.parallel import READERS, each
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


class OtherSize(StoreError):
    """The store holds another number of weights than this replica has."""

    code = "replica_size"
    hint = "Give the run a prefix of its own, or start the replica with the same model."


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
    compression left out of this replica's part. `ended` is the round that it took part in: older than
    `commit` where the others have gone on since."""

    commit: Commit
    weights: Vector
    fate: Fate
    error: Vector
    ended: Commit


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
        self.take_seat(0 if newest is None else newest.round)
        if newest is None:
            start = padded(weights)
            shard = self._write_shard(0, 0, (0, self._cut.pieces), start, np.zeros_like(start))
            self.store.create(self._commit_key(0), records.dump(Commit(0, {}, (shard,), self.size)))
            newest = self.commit(0)
        assert newest is not None
        return self.heal(newest)

    def newest(self, known: int = 0) -> Commit | None:
        """The last commit; `known` is one that is there."""
        commit = self.commit(max([known, *self.numbers(f"{self.prefix}/commits")]))
        # A list may be older than what is read.
        while commit is not None and (later := self.commit(commit.round + 1)) is not None:
            commit = later
        return commit

    def heal(self, commit: Commit) -> tuple[Commit, Vector]:
        """The weights of a commit, or of a newer one where its objects are gone by now."""
        while True:
            try:
                return commit, self.weights(commit)
            except Missing:
                newest = self.newest(commit.round)
                if newest is None or newest.round <= commit.round:
                    raise
                commit = newest

    def weights(self, commit: Commit) -> Vector:
        if commit.size != self.size:
            raise OtherSize(
                f"the run in {self.prefix} trains {commit.size} weights, this replica {self.size}"
            )
        return self._state(commit, "weights")[: self.size]

    def momentum(self, commit: Commit) -> Vector:
        return self._state(commit, "momentum")[: self.size]

    def take_seat(self, since: int) -> None:
        """From whoever has it: of two processes that are the same replica, the one that came last goes on."""
        if "/" in self.replica:
            raise StoreError(f"{self.replica!r} is no name of a replica", hint="Leave out the slash.")
        key, mine = self._seat_key(self.replica), records.dump(ReplicaSeat(self.incarnation, since))
        while not self.store.create(key, mine):
            found = self.store.get(key)
            if found is not None and self.store.replace(key, mine, found[1]):
                return

    def _check_seat(self) -> None:
        seat = self._seat(self._seat_key(self.replica))
        if seat is not None and seat.incarnation != self.incarnation:
            raise ReplicaReplaced(f"another process is replica {self.replica} of {self.prefix} by now")

    def wait_for_me(self, since: int) -> None:
        """The next round expects this replica, as if it had come now: or it would be left out for ever."""
        key = self._seat_key(self.replica)
        while (found := self.store.get(key)) is not None:
            if records.read_seat(found[0], key).incarnation != self.incarnation:
                return
            if self.store.replace(key, records.dump(ReplicaSeat(self.incarnation, since)), found[1]):
                return

    def _seat(self, key: str) -> ReplicaSeat | None:
        found = self.store.get(key)
        return None if found is None else records.read_seat(found[0], key)

    # -- one round ------------------------------------------------------------------------------------

    def run(self, base: Commit, weights: Vector, gradient: Vector, tokens: int) -> Outcome:
        """The round after `base`, whose `weights` these are: `gradient` is how far this replica's own lie
        before them, and `tokens` how many it learned from. Where the others have gone on without it, what
        it learned since is dropped. The gradient is used up: its memory is the round's."""
        number = base.round + 1
        ended, error = self.take_part(base, weights, gradient, tokens)
        newest = ended if error is not None else self.newest(number)
        assert newest is not None
        self.reached("applying")
        commit, after = self.heal(newest)
        if self.replica == min(commit.members, default=self.replica):
            self.collect(number)
        if error is None or commit.round > number:
            self.wait_for_me(commit.round)
        if error is None:
            return Outcome(commit, after, "late", np.zeros(self.size, np.float32), commit)
        return Outcome(commit, after, "committed", error, ended)

    def take_part(
        self, base: Commit, weights: Vector, gradient: Vector, tokens: int
    ) -> tuple[Commit, Vector | None]:
        """The commit of the round after `base`, and what compression left out; None if this replica's
        gradient is not counted in it."""
        number = base.round + 1
        self._check_seat()
        if (ended := self.commit(number)) is not None:
            return ended, None
        payload, error = self._offer(number, gradient, tokens)
        membership = self._membership(number, base)
        ended = self.commit(number) if membership is None else self._end(number, membership, base, weights)
        assert ended is not None
        return ended, error if payload in ended.payloads else None

    def _end(self, number: int, membership: Membership, base: Commit, weights: Vector) -> Commit:
        """Do this replica's part of the round, and wait for the rest."""
        try:
            for place, one in enumerate(membership.offers):
                if one.replica == self.replica:
                    self.reached("reducing")
                    self._reduce(number, place, membership, base, weights)
            return self._conclude(number, membership, base, weights)
        except Missing:
            # The others have gone on meanwhile, and removed what the round was made of.
            if (commit := self.commit(number)) is None:
                raise
            return commit

    def _offer(self, number: int, gradient: Vector, tokens: int) -> tuple[str, Vector]:
        """Gives the key of the payload, and what compression left out, in the gradient's memory."""
        self.reached("before payload")
        codec = Codec(self.rules.compression)
        if not finite(gradient):
            raise NotFinite(f"the weights of replica {self.replica} are no numbers any more")
        data = codec.encode(gradient)
        if codec.compression != "none":
            codec.lose(gradient, data)
            if not finite(gradient):
                raise NotFinite(
                    f"the weights of replica {self.replica} are too large for {codec.compression}"
                )
        # A second try of the same round must not change what the first may have offered.
        name = f"{self.replica}-{self.incarnation}-{secrets.token_hex(4)}"
        payload = f"{self._round(number)}/payloads/{name}.safetensors"
        piece = self._cut.piece_blocks * codec.block_bytes
        start, [pieces] = blocks.write(self.store, payload, {"data": data}, piece)
        self.reached("after payload")
        who = (self.replica, self.incarnation)
        offer = RoundOffer(*who, tokens, self.size, payload, codec.compression, start, pieces)
        key = f"{self._round(number)}/offers/{self.replica}.json"
        if not self.store.create(key, records.dump(offer)):
            self._check_seat()
        self.reached("after offer")
        if codec.compression == "none":
            # The payload was the gradient itself, and it is sent.
            gradient.fill(0)
        return payload, gradient

    def _membership(self, number: int, base: Commit) -> Membership | None:
        """Decided by whoever sees first that it is time; None if the round is over already."""
        key = f"{self._round(number)}/members.json"
        for tries in itertools.count():
            if (found := self.store.get(key)) is not None:
                membership = records.read_membership(found[0], key)
                for offer in membership.offers:
                    self._check_offer(offer, number, key)
                return membership
            if self.commit(number) is not None:
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
        offers = []
        for one in sorted(there, key=lambda one: one.key):
            found = self.store.get(one.key)
            if found is None:
                return None
            offer = records.read_offer(found[0], one.key)
            if one.key != f"{self._round(number)}/offers/{offer.replica}.json":
                raise records.broken(one.key, f"it is of replica {offer.replica[:80]!r}")
            self._check_offer(offer, number, one.key)
            offers.append(offer)
        return offers

    def _check_offer(self, offer: RoundOffer, number: int, key: str) -> None:
        if offer.size != self.size:
            raise OtherSize(f"replica {offer.replica} has {offer.size} weights, {self.replica} {self.size}")
        if not offer.payload.startswith(f"{self._round(number)}/payloads/"):
            raise records.broken(key, f"its payload is {offer.payload[:80]!r}")
        if len(offer.pieces) != self._cut.pieces:
            raise records.broken(key, f"it has {len(offer.pieces)} pieces of {self._cut.pieces}")
        _known(offer.compression)

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
        """The outer step on one member's shard: a few runs of pieces at once, each of one member after the
        other."""
        cut = self._cut
        first, last = cut.shards(len(membership.offers))[place]
        if first == last or self.store.get(self._record_key(number, place)) is not None:
            return
        shard = cut.numbers(first, last)
        after, momentum = (np.empty(shard.stop - shard.start, np.float32) for _ in range(2))

        def work(run: tuple[int, int]) -> None:
            gradients = (self._part_of(offer, *run) for offer in membership.offers)
            mean = weighted_mean(gradients, [offer.tokens for offer in membership.offers])
            before = self._state(base, "momentum", *run) if self.rules.outer.momentum else np.zeros_like(mean)
            where = cut.numbers(*run)
            to = slice(where.start - shard.start, where.stop - shard.start)
            after[to], momentum[to] = self.rules.outer.step(padded(weights[where]), before, mean)
            if not np.isfinite(after[to]).all():
                raise NotFinite(f"round {number} of {self.prefix} would make weights that are no numbers")

        each(work, cut.runs(first, last), READERS)
        made = self._write_shard(number, place, (first, last), after, momentum)
        self.store.create(self._record_key(number, place), records.dump(made))

    def _part_of(self, offer: RoundOffer, first: int, last: int) -> Vector:
        codec, cut = Codec(_known(offer.compression)), self._cut
        stretch = cut.stretch(first, last)
        data = np.empty((stretch.stop - stretch.start, codec.block_bytes), np.uint8)
        at = offer.start + stretch.start * codec.block_bytes
        piece = cut.piece_blocks * codec.block_bytes
        blocks.read_pieces(self.store, offer.payload, at, data, offer.pieces[first:last], piece)
        numbers = codec.decode(data)
        if not np.isfinite(numbers).all():
            raise Corrupt(f"what replica {offer.replica} offers in {offer.payload} is no numbers")
        return numbers

    def _write_shard(
        self, number: int, place: int, pieces: tuple[int, int], weights: Vector, momentum: Vector
    ) -> Shard:
        key = f"{self._round(number)}/state/{place:04d}-{self.replica}-{self.incarnation}.safetensors"
        raw = {"weights": weights.view(np.uint8), "momentum": momentum.view(np.uint8)}
        start, digests = blocks.write(self.store, key, raw, 4 * BLOCK * self._cut.piece_blocks)
        return Shard(*pieces, key, start, *digests)

    def _state(self, commit: Commit, what: State, first: int = 0, last: int | None = None) -> Vector:
        """Of some pieces, from whichever shards they lie in."""
        cut = self._cut
        last = cut.pieces if last is None else last
        wanted = cut.numbers(first, last)
        found = np.empty(wanted.stop - wanted.start, np.float32)
        parts = [
            (shard, run)
            for shard in commit.shards
            for run in cut.runs(max(first, shard.first), min(last, shard.last))
        ]

        def work(part: tuple[Shard, tuple[int, int]]) -> None:
            where = cut.numbers(*part[1])
            into = found[where.start - wanted.start : where.stop - wanted.start]
            self._read_shard(*part, what, into)

        each(work, parts, READERS)
        return found

    def _read_shard(self, shard: Shard, run: tuple[int, int], what: State, into: Vector) -> None:
        whole, part = self._cut.numbers(shard.first, shard.last), self._cut.numbers(*run)
        start = shard.start + (part.start - whole.start) * 4
        if what == "momentum":
            start += (whole.stop - whole.start) * 4
        told = shard.weights if what == "weights" else shard.momentum
        digests = told[run[0] - shard.first : run[1] - shard.first]
        piece = 4 * BLOCK * self._cut.piece_blocks
        blocks.read_pieces(self.store, shard.key, start, into.view(np.uint8), digests, piece)

    # -- committing -----------------------------------------------------------------------------------

    def _conclude(self, number: int, membership: Membership, base: Commit, weights: Vector) -> Commit:
        """Wait until all shards are there, doing those whose members do not; then the round is committed."""
        began, stretches = self.store.now(), self._cut.shards(len(membership.offers))
        wanted = [place for place, (first, last) in enumerate(stretches) if first < last]
        shards: dict[int, Shard] = {}
        for tries in itertools.count():
            if (commit := self.commit(number)) is not None:
                return commit
            for place in self.numbers(f"{self._round(number)}/shards"):
                if place in wanted and place not in shards:
                    shards |= self._record(number, place, stretches[place])
            missing = [place for place in wanted if place not in shards]
            if not missing:
                members = {one.replica: one.tokens for one in membership.offers}
                there = tuple(shards[place] for place in wanted)
                payloads = tuple(one.payload for one in membership.offers)
                made = Commit(number, members, there, self.size, payloads)
                self.store.create(self._commit_key(number), records.dump(made))
                continue
            if self.store.now() - began >= self.rules.grace_s:
                self._reduce(number, missing[0], membership, base, weights)
                # It may be there though a list does not show it yet.
                shards |= self._record(number, missing[0], stretches[missing[0]])
                continue
            self.sleep(min(self.rules.poll_s, _FIRST_POLL_S * 1.5 ** min(tries, 20)))
        raise AssertionError("unreachable")

    def _record(self, number: int, place: int, stretch: tuple[int, int]) -> dict[int, Shard]:
        key = self._record_key(number, place)
        if (found := self.store.get(key)) is None:
            return {}
        shard = records.read_shard(found[0], key)
        if (shard.first, shard.last) != stretch or not shard.key.startswith(f"{self._round(number)}/state/"):
            raise records.broken(key, f"pieces {shard.first} to {shard.last} in {shard.key[:80]!r}")
        return {place: shard}

    def collect(self, number: int) -> None:
        """Remove the objects of rounds that nobody reads any more; the commits themselves stay."""
        before = f"{self._round(max(0, number - self.rules.keep))}/"
        for one in list(self.store.list(f"{self.prefix}/rounds")):
            if one.key < before:
                self.store.delete(one.key)

    def numbers(self, folder: str) -> list[int]:
        """Those that the objects below it have as names."""
        names = (one.key.removeprefix(f"{folder}/").removesuffix(".json") for one in self.store.list(folder))
        return [int(name) for name in names if name.isascii() and name.isdigit()]

    # -- keys -----------------------------------------------------------------------------------------

    def commit(self, number: int) -> Commit | None:
        """None if that round has not happened."""
        key = self._commit_key(number)
        if (found := self.store.get(key)) is None:
            return None
        commit = records.read_commit(found[0], key)
        ends = [0, *(shard.last for shard in commit.shards)]
        whole = all(a == one.first < one.last for a, one in zip(ends, commit.shards, strict=False))
        inside = all(one.key.startswith(f"{self.prefix}/rounds/") for one in commit.shards)
        if commit.round != number or not whole or not inside or ends[-1] != Cut.of(commit.size).pieces:
            raise records.broken(key, f"round {commit.round}, shards up to {ends} of {commit.size} weights")
        return commit

    def _commit_key(self, number: int) -> str:
        return f"{self.prefix}/commits/{number:08d}.json"

    def _record_key(self, number: int, place: int) -> str:
        return f"{self._round(number)}/shards/{place:04d}.json"

    def _seat_key(self, replica: str) -> str:
        return f"{self.prefix}/seats/{replica}.json"

    def _round(self, number: int) -> str:
        return f"{self.prefix}/rounds/{number:08d}"


def _known(compression: str) -> Compression:
    for known in ("none", "bf16", "int8", "int4"):
        if compression == known:
            return known
    raise StoreError(f"a payload is packed as {compression!r}", hint="Run the same Corral on all replicas.")
