"""Numbers in objects of the store: safetensors whose stretches are read alone, each checked by its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from corral.diloco.codec import BLOCK, Bytes, Vector
from corral.diloco.round_store import RoundStore, StoreError

# A vector is cut into so many pieces at most; a reducer has some of them.
_MOST_PIECES = 256


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

    def shards(self, members: int) -> list[tuple[int, int]]:
        """The pieces of each member; none has fewer than the next by more than one."""
        bounds = [number * self.pieces // members for number in range(members + 1)]
        return list(pairwise(bounds))


def write(store: RoundStore, key: str, tensors: Mapping[str, Bytes]) -> int:
    """As safetensors; where the bytes of the first tensor begin."""
    table, at = {}, 0
    for name, data in tensors.items():
        table[name] = {"dtype": "U8", "shape": list(data.shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    parts = [np.ascontiguousarray(data).data.cast("B") for data in tensors.values() if data.nbytes]
    store.put(key, [len(header).to_bytes(8, "little") + header, *parts])
    return 8 + len(header)


def read_pieces(
    store: RoundStore, key: str, start: int, size: int, digests: Sequence[str], each: int
) -> Bytes:
    """So many bytes from `start` on: pieces of `each` bytes, the last of which may be shorter, each with a
    digest of its own."""
    data = bytearray(size)
    found = store.read_into(key, data, start)
    if found is None:
        raise Missing(f"{key} is not in the store", hint="Objects of a round were removed while it went on.")
    if found != size or len(digests) != -(-size // max(each, 1)):
        raise Corrupt(f"{key} has {found} bytes from {start} on instead of {size}", hint=_HINT)
    for number, digest in enumerate(digests):
        if sha256(memoryview(data)[number * each : (number + 1) * each]) != digest:
            raise Corrupt(f"{key} is not what its record says", hint=_HINT)
    return np.frombuffer(data, np.uint8)


def sha256(data: Bytes | Vector | memoryview | bytes) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).data).hexdigest()


_HINT = "Something else wrote to this store, or it lost bytes; give the run a prefix of its own."


class Missing(StoreError):
    """An object that a record names is gone."""

    code = "round_object_missing"


class Corrupt(StoreError):
    """An object is not what the record of it says: a byte was changed, or it is torn."""

    code = "round_object_corrupt"
