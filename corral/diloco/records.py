"""The small objects by which replicas agree. Each is checked: others may write to the store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from corral.diloco.round_store import StoreError

R = TypeVar("R")


@dataclass(frozen=True)
class RoundOffer:
    """What a replica brings to a round: a payload with the digests of its pieces, and its tokens."""

    replica: str
    incarnation: str
    tokens: int
    payload: str
    compression: str
    # Where the blocks begin in the object.
    start: int
    pieces: Sequence[str]


@dataclass(frozen=True)
class ReplicaSeat:
    """Which process is a replica, and the newest round when it came."""

    incarnation: str
    since: int


@dataclass(frozen=True)
class Membership:
    """Whose offers make up a round; nobody joins or leaves it after this."""

    offers: Sequence[RoundOffer]


@dataclass(frozen=True)
class Shard:
    """A stretch of pieces after the outer step: first the weights, then the momentum, in one object."""

    first: int
    last: int
    key: str
    start: int
    # The digests of the pieces.
    weights: Sequence[str]
    momentum: Sequence[str]


@dataclass(frozen=True)
class Commit:
    """One round that has happened, and a whole checkpoint: weights and outer momentum are in its shards."""

    round: int
    members: Mapping[str, int]
    shards: Sequence[Shard]
    size: int

    @property
    def tokens(self) -> int:
        return sum(self.members.values())


def dump(record: Any) -> bytes:
    return json.dumps(asdict(record), sort_keys=True, separators=(",", ":")).encode()


def read_offer(data: bytes, key: str) -> RoundOffer:
    said = _table(data, key)
    return _made(RoundOffer, key, {**said, "pieces": tuple(said.get("pieces", ()))})


def read_seat(data: bytes, key: str) -> ReplicaSeat:
    return _made(ReplicaSeat, key, _table(data, key))


def read_membership(data: bytes, key: str) -> Membership:
    said = _table(data, key)
    offers = tuple(read_offer(json.dumps(one).encode(), key) for one in said.get("offers", ()))
    return _made(Membership, key, {**said, "offers": offers})


def read_shard(data: bytes, key: str) -> Shard:
    return _shard(_table(data, key), key)


def read_commit(data: bytes, key: str) -> Commit:
    said = _table(data, key)
    shards = tuple(_shard(one, key) for one in said.get("shards", ()))
    return _made(Commit, key, {**said, "shards": shards})


def _shard(said: Mapping[str, Any], key: str) -> Shard:
    digests = {name: tuple(said.get(name, ())) for name in ("weights", "momentum")}
    return _made(Shard, key, {**said, **digests})


def _table(data: bytes, key: str) -> dict[str, Any]:
    try:
        said = json.loads(data)
    except ValueError:
        raise _broken(key, "is not JSON") from None
    if not isinstance(said, dict):
        raise _broken(key, "is not a table")
    return said


def _made(kind: type[R], key: str, said: Mapping[str, Any]) -> R:
    try:
        made = kind(**said)
    except TypeError as error:
        raise _broken(key, str(error)) from None
    for name, value in said.items():
        if name in ("tokens", "start", "first", "last", "round", "size", "since"):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise _broken(key, f"{name} = {value!r} is no count")
        elif name in ("replica", "incarnation", "payload", "key") and not isinstance(value, str):
            raise _broken(key, f"{name} = {value!r} is no text")
    return made


def _broken(key: str, why: str) -> StoreError:
    return StoreError(
        f"{key} is not what Corral wrote there: {why}",
        hint="Something else writes to this store; give the run a prefix of its own.",
    )
