"""Numbers in objects of the store: safetensors whose stretches are read alone, each checked by its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from corral.diloco import parallel
from corral.diloco.codec import BLOCK, Bytes, Vector
from corral.diloco.round_store import RoundStore, StoreError

# A vector is cut into so many pieces at most; a reducer has some of them.
_MOST_PIECES = 256
# So many numbers or a piece are read at once.
_AT_ONCE = 1 << 20


class Cut(NamedTuple):
    """How a vector of whole blocks lies in pieces."""

    blocks: int

    @classmethod
    def of(cls, size: int) -> Cut:
        return cls(-(-size // BLOCK))

    @property
    def piece_blocks(self) -> int:
        return max(1, -(-self.blocks // _MOST_PIECES))

    @property
    def pieces(self) -> int:
        return -(-self.blocks // self.piece_blocks)

    def stretch(self, first: int, last: int) -> slice:
        """The blocks of the pieces from `first` up to `last`, which is not among them."""
        return slice(first * self.piece_blocks, min(last * self.piece_blocks, self.blocks))

    def numbers(self, first: int, last: int) -> slice:
        """Those of the same pieces."""
        blocks = self.stretch(first, last)
        return slice(blocks.start * BLOCK, blocks.stop * BLOCK)

    def runs(self, first: int, last: int) -> list[tuple[int, int]]:
        """The pieces from `first` up to `last`, as many together as one read takes."""
        some = max(1, _AT_ONCE // (self.piece_blocks * BLOCK))
        return [(at, min(at + some, last)) for at in range(first, last, some)]

    def shards(self, members: int) -> list[tuple[int, int]]:
        """The pieces of each member; none has fewer than the next by more than one."""
        bounds = [number * self.pieces // members for number in range(members + 1)]
        return list(pairwise(bounds))


class Written(NamedTuple):
    """Where the bytes of the first tensor begin, and digests of the pieces of each tensor."""

    start: int
    digests: Sequence[tuple[str, ...]]


def write(store: RoundStore, key: str, tensors: Mapping[str, Bytes], each: int) -> Written:
    """As safetensors. A piece is `each` bytes of a tensor; it is hashed while the object is on its way."""
    table, at = {}, 0
    for name, data in tensors.items():
        table[name] = {"dtype": "U8", "shape": list(data.shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    parts = [np.ascontiguousarray(data).data.cast("B") for data in tensors.values() if data.nbytes]
    digests: list[tuple[str, ...]] = []

    def work(hashing: bool) -> None:
        if hashing:
            digests.extend(_digests(part, each) for part in parts)
        else:
            store.put(key, [len(header).to_bytes(8, "little") + header, *parts])

    parallel.each(work, (True, False), threads=2)
    return Written(8 + len(header), digests)


def _digests(data: memoryview, each: int) -> tuple[str, ...]:
    return tuple(parallel.each(lambda part: sha256(data[part]), parallel.stretches(len(data), each)))


def read_pieces(
    store: RoundStore, key: str, start: int, into: Bytes, digests: Sequence[str], each: int
) -> None:
    """Fill `into` from `start` on: pieces of `each` bytes, the last of which may be shorter, each with a
    digest of its own."""
    view = into.data.cast("B")
    found = store.read_into(key, view, start)
    if found is None:
        raise Missing(f"{key} is not in the store", hint="Objects of a round were removed while it went on.")
    if found != len(view) or len(digests) != -(-len(view) // max(each, 1)):
        raise Corrupt(f"{key} has {found} bytes from {start} on instead of {len(view)}", hint=_HINT)
    for number, digest in enumerate(digests):
        if sha256(view[number * each : (number + 1) * each]) != digest:
            raise Corrupt(f"{key} is not what its record says", hint=_HINT)


def sha256(data: Bytes | Vector | memoryview | bytes) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).data).hexdigest()


_HINT = "Something else wrote to this store, or it lost bytes; give the run a prefix of its own."


class Missing(StoreError):
    """An object that a record names is gone."""

    code = "round_object_missing"


class Corrupt(StoreError):
    """An object is not what the record of it says: a byte was changed, or it is torn."""

    code = "round_object_corrupt"
