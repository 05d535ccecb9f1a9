"""Pseudo-gradients as bytes: whole, as bf16, or as int8 or int4 with one scale for each block of numbers.

The bytes of a block lie together, so any run of blocks is one stretch of an object and can be read alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from corral.diloco.parallel import STRETCH, each, stretches

Vector = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Compression = Literal["none", "bf16", "int8", "int4"]

# Numbers that share a scale.
BLOCK = 1024
_SCALE_BYTES = 4
_LARGEST = {"int8": 127, "int4": 7}
# Blocks that a thread works on.
_AT_ONCE = STRETCH // BLOCK


@dataclass(frozen=True)
class Codec:
    """How blocks of BLOCK numbers become bytes. Decoding is exact: what was lost was lost by encoding."""

    compression: Compression = "none"

    @property
    def block_bytes(self) -> int:
        each = {"none": 4 * BLOCK, "bf16": 2 * BLOCK, "int8": BLOCK, "int4": BLOCK // 2}[self.compression]
        return each + (_SCALE_BYTES if self.compression in _LARGEST else 0)

    def encode(self, numbers: Vector) -> Bytes:
        """Bytes [blocks, block_bytes] of the numbers, with zeros at the end of the last block. Where nothing
        has to change, they are the numbers' own memory."""
        if self.compression == "none" and len(numbers) % BLOCK == 0:
            return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, self.block_bytes)
        data = np.empty((-(-len(numbers) // BLOCK), self.block_bytes), np.uint8)

        def work(part: slice) -> None:
            whole = padded(numbers[part.start * BLOCK : part.stop * BLOCK])
            data[part] = self._encoded(whole.reshape(-1, BLOCK))

        each(work, stretches(len(data), _AT_ONCE))
        return data

    def decode(self, data: Bytes) -> Vector:
        """The numbers of bytes [blocks, block_bytes], in order."""
        rows = data.reshape(-1, self.block_bytes)
        if self.compression == "none":
            return np.ascontiguousarray(rows).view(np.float32).reshape(-1)
        numbers = np.empty((len(rows), BLOCK), np.float32)

        def work(part: slice) -> None:
            numbers[part] = self._decoded(rows[part])

        each(work, stretches(len(rows), _AT_ONCE))
        return numbers.reshape(-1)

    def lose(self, numbers: Vector, data: Bytes) -> None:
        """Leave in the numbers what encoding them as `data` has lost."""

        def work(part: slice) -> None:
            mine = numbers[part.start * BLOCK : part.stop * BLOCK]
            mine -= self.decode(data[part])[: len(mine)]

        each(work, stretches(len(data), _AT_ONCE))

    def _encoded(self, blocks: Vector) -> Bytes:
        if self.compression == "none":
            return blocks.view(np.uint8)
        if self.compression == "bf16":
            return _to_bf16(blocks).view(np.uint8)
        most = _LARGEST[self.compression]
        scale = (np.abs(blocks).max(axis=1) / np.float32(most)).astype(np.float32)
        # A block of zeros has no scale; any will do.
        safe = np.where(scale > 0, scale, np.float32(1))
        scaled = blocks / safe[:, None]
        whole = np.clip(np.rint(scaled, out=scaled), -most, most, out=scaled).astype(np.int8)
        packed = whole.view(np.uint8) if self.compression == "int8" else _nibbles(whole)
        return np.concatenate((scale[:, None].view(np.uint8), packed), axis=1)

    def _decoded(self, rows: Bytes) -> Vector:
        if self.compression == "bf16":
            wide = np.ascontiguousarray(rows).view(np.uint16).astype(np.uint32)
            wide <<= np.uint32(16)
            return wide.view(np.float32)
        scale = np.ascontiguousarray(rows[:, :_SCALE_BYTES]).view(np.float32)
        rest = np.ascontiguousarray(rows[:, _SCALE_BYTES:])
        whole = rest.view(np.int8) if self.compression == "int8" else _from_nibbles(rest)
        numbers: Vector = whole.astype(np.float32)
        numbers *= scale
        return numbers


def finite(numbers: Vector) -> bool:
    return all(each(lambda part: bool(np.isfinite(numbers[part]).all()), stretches(len(numbers))))


def padded(numbers: Vector) -> Vector:
    """Filled up to whole blocks."""
    missing = -len(numbers) % BLOCK
    return np.concatenate((numbers, np.zeros(missing, np.float32))) if missing else numbers


def _to_bf16(numbers: Vector) -> NDArray[np.uint16]:
    """Rounded to the nearest, and to even where two are as near."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def _nibbles(whole: NDArray[np.int8]) -> Bytes:
    shifted = (whole + 8).astype(np.uint8)
    low, high = shifted[:, 0::2], shifted[:, 1::2]
    packed: Bytes = low | (high << np.uint8(4))
    return packed


def _from_nibbles(packed: Bytes) -> NDArray[np.int8]:
    whole = np.empty((len(packed), 2 * packed.shape[1]), np.int8)
    whole[:, 0::2] = (packed & np.uint8(15)).astype(np.int8) - 8
    whole[:, 1::2] = (packed >> np.uint8(4)).astype(np.int8) - 8
    return whole
