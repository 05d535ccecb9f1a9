"""The small objects by which replicas agree. Each is checked: others may write to the store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from corral.diloco.round_store import StoreError

R = TypeVar("R")
# A membership of a thousand replicas has half of it.
_LARGEST_BYTES = 32 << 20


@dataclass(frozen=True)
class RoundOffer:
    """What a replica brings to a round: a payload with the digests of its pieces, and its tokens."""

    replica: str
    incarnation: str
    tokens: int
    # Of the vector.
    size: int
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
    # What was summed up: a replica knows by it whether it was counted.
    payloads: Sequence[str] = ()

    @property
    def tokens(self) -> int:
        return sum(self.members.values())


def dump(record: Any) -> bytes:
    return json.dumps(asdict(record), sort_keys=True, separators=(",", ":")).encode()


def read_offer(data: bytes, key: str) -> RoundOffer:
    return _offer(_table(data, key), key)


def read_seat(data: bytes, key: str) -> ReplicaSeat:
    return _made(ReplicaSeat, key, _table(data, key))


def read_membership(data: bytes, key: str) -> Membership:
    said = _table(data, key)
    offers = tuple(_offer(one, key) for one in _tables(said, "offers", key))
    names = [one.replica for one in offers]
    if not names or len(set(names)) != len(names):
        raise broken(key, f"the members are {names}")
    return _made(Membership, key, {**said, "offers": offers})


def read_shard(data: bytes, key: str) -> Shard:
    return _shard(_table(data, key), key)


def read_commit(data: bytes, key: str) -> Commit:
    said = _table(data, key)
    shards = tuple(_shard(one, key) for one in _tables(said, "shards", key))
    members = said.get("members")
    if not isinstance(members, dict) or not all(_is_count(tokens) for tokens in members.values()):
        raise broken(key, "its members have no counts of tokens")
    return _made(Commit, key, {**said, "shards": shards, "payloads": _texts(said, "payloads", key)})


def broken(key: str, why: str) -> StoreError:
    return StoreError(
        f"{key} is not what Corral wrote there: {why}",
        hint="Something else writes to this store; give the run a prefix of its own.",
    )


def _offer(said: Mapping[str, Any], key: str) -> RoundOffer:
    return _made(RoundOffer, key, {**said, "pieces": _texts(said, "pieces", key)})


def _shard(said: Mapping[str, Any], key: str) -> Shard:
    return _made(Shard, key, {**said, **{name: _texts(said, name, key) for name in ("weights", "momentum")}})


def _table(data: bytes, key: str) -> dict[str, Any]:
    if len(data) > _LARGEST_BYTES:
        raise broken(key, f"it has {len(data)} bytes")
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        raise broken(key, "is not JSON") from None
    if not isinstance(said, dict):
        raise broken(key, "is not a table")
    return said


def _tables(said: Mapping[str, Any], name: str, key: str) -> list[dict[str, Any]]:
    found = said.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise broken(key, f"{name} is no list of tables")
    return found


def _texts(said: Mapping[str, Any], name: str, key: str) -> tuple[str, ...]:
    found = said.get(name)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise broken(key, f"{name} is no list of texts")
    return tuple(found)


def _made(kind: type[R], key: str, said: Mapping[str, Any]) -> R:
    try:
        made = kind(**said)
    except TypeError as error:
        raise broken(key, str(error)) from None
    for name, value in said.items():
        if name in ("tokens", "start", "first", "last", "round", "size", "since"):
            if not _is_count(value):
                raise broken(key, f"{name} = {str(value)[:80]!r} is no count")
        elif name in (
            "replica",
            "incarnation",
            "payload",
            "key",
            "compression",
            "membership",
        ) and not isinstance(value, str):
            raise broken(key, f"{name} = {str(value)[:80]!r} is no text")
    return made


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
