"""What replicas that meet in a store send and fetch there, and what that costs: a closed formula.

It follows `corral/diloco/rounds.py` object by object. Of a round with all replicas in it, payloads and shards
are counted to the byte. Records (offers, memberships, shards, commits: JSON with a digest for each piece) are
counted as they are at most, and requests as they are where nobody waits: who waits asks again every `poll_s`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Compression = Literal["none", "bf16", "int8", "int4"]

# As `corral.diloco.codec` and `corral.diloco.blocks` have them.
BLOCK = 1024
MOST_PIECES = 256
_BLOCK_BYTES = {"none": 4 * BLOCK, "bf16": 2 * BLOCK, "int8": BLOCK + 4, "int4": BLOCK // 2 + 4}
# A digest in a record, with its quotes and comma; a record without its digests.
_DIGEST_BYTES = 67
_RECORD_BYTES = 400
# What a bucket's client sends in parts, and the requests that begin and end them.
_PART_BYTES = 16 << 20
_MULTIPART_CALLS = 2
GB = 10**9


@dataclass(frozen=True, slots=True)
class Traffic:
    """`up` and `down` are the bytes of payloads and state, `records` those of all else, both ways together.
    `puts` are requests that write or list, `gets` those that read, as buckets count them."""

    up: int = 0
    down: int = 0
    records: int = 0
    puts: int = 0
    gets: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.up + other.up,
            self.down + other.down,
            self.records + other.records,
            self.puts + other.puts,
            self.gets + other.gets,
        )

    def __mul__(self, times: int) -> Traffic:
        return Traffic(
            self.up * times, self.down * times, self.records * times, self.puts * times, self.gets * times
        )

    @property
    def total(self) -> int:
        return self.up + self.down + self.records

    @property
    def requests(self) -> int:
        return self.puts + self.gets


@dataclass(frozen=True, slots=True)
class TrafficPrices:
    """In dollars; None is not known. `source` says whose they are."""

    per_gb: float | None
    per_1000_puts: float | None
    per_1000_gets: float | None
    source: str

    def cost(self, traffic: Traffic) -> float | None:
        """Of what is fetched, and of the requests; None if a price is not known. Records count as fetched:
        each is read more often than it is written."""
        if self.per_gb is None or self.per_1000_puts is None or self.per_1000_gets is None:
            return None
        fetched = (traffic.down + traffic.records) / GB * self.per_gb
        return fetched + traffic.puts / 1000 * self.per_1000_puts + traffic.gets / 1000 * self.per_1000_gets

    def replaced(self, per_gb: float | None, per_1000_requests: float | None) -> TrafficPrices:
        """With those that the user gives. Where only bytes have a price, requests have none."""
        if per_gb is None and per_1000_requests is None:
            return self
        puts, gets = self.per_1000_puts or 0.0, self.per_1000_gets or 0.0
        if per_1000_requests is not None:
            puts = gets = per_1000_requests
        source = "the run file's prices" + ("" if self.per_gb is None else f", and {self.source}")
        return TrafficPrices(self.per_gb if per_gb is None else per_gb, puts, gets, source)


@dataclass(frozen=True, slots=True)
class RunTraffic:
    """Of all replicas together: how a run begins, one round of all fragments, and the whole run."""

    members: int
    rounds: int
    start: Traffic
    cycle: Traffic
    whole: Traffic


OWN = TrafficPrices(None, None, None, "no price is known of a store of your own")
S3 = TrafficPrices(0.09, 0.005, 0.0004, "S3's list price in us-east-1, out to the internet")
UNKNOWN = TrafficPrices(None, None, None, "the price of this store is not known")


def list_prices(store: str, *, has_endpoint: bool = False) -> TrafficPrices:
    """Of what is well known; a store that only speaks S3 (`has_endpoint`) has prices of its own."""
    if store.startswith("s3://"):
        return UNKNOWN if has_endpoint else S3
    return UNKNOWN if store.startswith(("gs://", "az://")) else OWN


def run_traffic(
    sizes: Sequence[int], *, steps: int, inner_steps: int, members: int, compression: Compression
) -> RunTraffic:
    """Of a run whose fragments have so many numbers each, with all replicas in every round."""
    start, cycle, whole, rounds = Traffic(), Traffic(), Traffic(), 0
    for number, size in enumerate(sizes):
        one = round_traffic(size, members, compression)
        begun = start_traffic(size, members)
        count = _rounds((number + 1) * inner_steps // len(sizes), steps, inner_steps)
        start, cycle, whole = start + begun, cycle + one, whole + begun + one * count
        rounds += count
    return RunTraffic(members, rounds, start, cycle, whole)


def even_sizes(numbers: int, fragments: int) -> list[int]:
    """As if parameters could be cut anywhere; how they really lie changes a round by little."""
    return [
        (number + 1) * numbers // fragments - number * numbers // fragments for number in range(fragments)
    ]


def round_traffic(size: int, members: int, compression: Compression) -> Traffic:
    """One round of a vector of so many numbers, of all its members together.

    Each puts its payload whole, reads a shard of everybody's and of the old momentum, puts the new weights
    and momentum of its shard, and reads all new weights.
    """
    blocks, pieces, shards = _cut(size, members)
    packed = _BLOCK_BYTES[compression]
    payload = _object_bytes({"data": [blocks, packed]})
    state = sum(_object_bytes({"weights": [4 * BLOCK * n], "momentum": [4 * BLOCK * n]}) for n in shards)
    weights = 4 * BLOCK * blocks
    read = members * blocks * packed + weights + members * weights
    offer, record = _RECORD_BYTES + _DIGEST_BYTES * pieces, _RECORD_BYTES + 2 * _DIGEST_BYTES * pieces
    filled = len(shards)
    membership, commit = _RECORD_BYTES + members * offer, _RECORD_BYTES + filled * _RECORD_BYTES + record
    shard_records = filled * _RECORD_BYTES + 2 * _DIGEST_BYTES * pieces
    # Written once: offers and shards. By all who see that it is time, at most: membership and commit.
    written = members * offer + shard_records + members * (membership + commit)
    # Read by each: all offers, the membership, the shards, and the commit twice.
    fetched = members * (members * offer + membership + shard_records + 2 * commit + 2 * _RECORD_BYTES)
    puts = members * _puts(payload) + sum(_puts(_object_bytes(_state(n))) for n in shards)
    # Offer, membership, commit, two lists for the membership and one of the shards; the time, which is a put;
    # the least member lists what is old; and the record of each shard.
    puts += members * 7 + filled + 1
    # The seat, three looks for the commit and two for the membership, the offers, the commit and the shards.
    gets = members * (8 + members + filled) + 1 * filled
    # Ranged reads ask for the size first: payloads and momentum of a shard, and all weights.
    gets += 2 * (filled * members + filled + members * filled) + members
    return Traffic(members * payload + state, read, written + fetched, puts, gets)


def start_traffic(size: int, members: int) -> Traffic:
    """All begin at once: each may put the first weights before it sees another's, and reads what counts."""
    blocks, pieces, _ = _cut(size, members)
    first = _object_bytes(_state(blocks))
    commit = 2 * _RECORD_BYTES + 2 * _DIGEST_BYTES * pieces
    puts, gets = _puts(first) + 9, 10
    each = Traffic(first, 4 * BLOCK * blocks, 3 * commit + 2 * _RECORD_BYTES, puts, gets)
    return each * members


def _rounds(at: int, steps: int, inner_steps: int) -> int:
    """One after step `at` of each cycle, and one after the last step of the run."""
    return max(1, -(-(steps - at) // inner_steps) + 1)


def _cut(size: int, members: int) -> tuple[int, int, list[int]]:
    """Blocks, pieces, and the blocks of each shard that has any."""
    blocks = -(-size // BLOCK)
    each = max(1, -(-blocks // MOST_PIECES))
    pieces = -(-blocks // each)
    bounds = [min(number * pieces // members * each, blocks) for number in range(members + 1)]
    shards = [last - first for first, last in pairwise(bounds) if first < last]
    return blocks, pieces, shards


def _state(blocks: int) -> dict[str, list[int]]:
    return {"weights": [4 * BLOCK * blocks], "momentum": [4 * BLOCK * blocks]}


def _object_bytes(tensors: dict[str, list[int]]) -> int:
    """A safetensors file of bytes with these shapes."""
    table, at = {}, 0
    for name, shape in tensors.items():
        size = 1
        for length in shape:
            size *= length
        table[name] = {"dtype": "U8", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = len(json.dumps(table, separators=(",", ":")))
    return 8 + header + -header % 8 + at


def _puts(size: int) -> int:
    return 1 if size <= _PART_BYTES else -(-size // _PART_BYTES) + _MULTIPART_CALLS
