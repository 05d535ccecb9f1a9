"""The small objects by which replicas agree. Each is checked: others may write to the store."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from corral.diloco.codec import Compression
from corral.diloco.round_store import StoreError

R = TypeVar("R")
# As a number of 64 bits; what is larger would be none of floats.
_MOST = 2**62
_NUMBERED = re.compile(r"/([0-9]{4,8})\.json\Z")


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
    return _offer(_table(data, key), key)


def read_seat(data: bytes, key: str) -> ReplicaSeat:
    return _made(ReplicaSeat, key, _table(data, key))


def read_membership(data: bytes, key: str) -> Membership:
    said = _table(data, key)
    offers = tuple(_offer(one, key) for one in _tables(said, "offers", key))
    if not offers or len({one.replica for one in offers}) < len(offers):
        raise broken(key, "it names no replica, or one twice")
    return _made(Membership, key, {**said, "offers": offers})


def read_shard(data: bytes, key: str) -> Shard:
    return _shard(_table(data, key), key)


def read_commit(data: bytes, key: str) -> Commit:
    said = _table(data, key)
    shards = tuple(_shard(one, key) for one in _tables(said, "shards", key))
    members = said.get("members")
    if not isinstance(members, dict) or not all(_is_count(tokens) for tokens in members.values()):
        raise broken(key, "its members are no counts by replica")
    return _made(Commit, key, {**said, "shards": shards})


def check_whole(commit: Commit, key: str, number: int, pieces: int) -> None:
    """StoreError unless it is of that round, and its shards are all pieces of the vector in their order: what
    no shard has would be whatever lay in memory."""
    bounds = [(shard.first, shard.last) for shard in commit.shards if shard.first < shard.last]
    ends = [0, *(last for _, last in bounds)]
    if commit.round != number or [first for first, _ in bounds] != ends[:-1] or ends[-1] != pieces:
        raise broken(key, "its shards are not the whole vector")


def number_of(key: str) -> int | None:
    """What a record is numbered; None for what others put beside them."""
    found = _NUMBERED.search(key)
    return None if found is None else int(found[1])


def _offer(said: Mapping[str, Any], key: str) -> RoundOffer:
    return _made(RoundOffer, key, {**said, "pieces": _digests(said, "pieces", key)})


def _shard(said: Mapping[str, Any], key: str) -> Shard:
    digests = {name: _digests(said, name, key) for name in ("weights", "momentum")}
    return _made(Shard, key, {**said, **digests})


def _digests(said: Mapping[str, Any], name: str, key: str) -> tuple[str, ...]:
    found = said.get(name)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise broken(key, f"{name} are no digests")
    return tuple(found)


def _tables(said: Mapping[str, Any], name: str, key: str) -> list[dict[str, Any]]:
    found = said.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise broken(key, f"{name} are no tables")
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _table(data: bytes, key: str) -> dict[str, Any]:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        raise broken(key, "is not JSON") from None
    if not isinstance(said, dict):
        raise broken(key, "is not a table")
    return said


def _made(kind: type[R], key: str, said: Mapping[str, Any]) -> R:
    try:
        made = kind(**said)
    except TypeError as error:
        raise broken(key, str(error)) from None
    for name, value in said.items():
        if name in ("tokens", "start", "first", "last", "round", "size", "since"):
            if not _is_count(value):
                raise broken(key, f"{name} = {value!r} is no count")
        elif name in ("replica", "incarnation", "payload", "compression", "key") and not isinstance(
            value, str
        ):
            raise broken(key, f"{name} = {value!r} is no text")
    return made


def broken(key: str, why: str) -> StoreError:
    return StoreError(
        f"{key} is not what Corral wrote there: {why}",
        hint="Something else writes to this store; give the run a prefix of its own.",
    )


def known_compression(compression: str) -> Compression:
    for known in ("none", "bf16", "int8", "int4"):
        if compression == known:
            return known
    raise StoreError(f"a payload is packed as {compression!r}", hint="Run the same Corral on all replicas.")
