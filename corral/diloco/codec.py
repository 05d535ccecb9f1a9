"""Pseudo-gradients as bytes: whole, as bf16, or as int8 or int4 with one scale for each block of numbers.

The bytes of a block lie together, so any run of blocks is one stretch of an object and can be read alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Compression = Literal["none", "bf16", "int8", "int4"]

# Numbers that share a scale.
BLOCK = 1024
_SCALE_BYTES = 4
_LARGEST = {"int8": 127, "int4": 7}


@dataclass(frozen=True)
class Codec:
    """How blocks of BLOCK numbers become bytes. Decoding is exact: what was lost was lost by encoding."""

    compression: Compression = "none"

    @property
    def block_bytes(self) -> int:
        each = {"none": 4 * BLOCK, "bf16": 2 * BLOCK, "int8": BLOCK, "int4": BLOCK // 2}[self.compression]
        return each + (_SCALE_BYTES if self.compression in _LARGEST else 0)

    def encode(self, numbers: Vector) -> Bytes:
        """Bytes [blocks, block_bytes] of numbers that are whole blocks."""
        blocks = numbers.reshape(-1, BLOCK)
        if self.compression == "none":
            return np.ascontiguousarray(blocks).view(np.uint8).reshape(len(blocks), -1)
        if self.compression == "bf16":
            return _to_bf16(blocks).view(np.uint8).reshape(len(blocks), -1)
        most = _LARGEST[self.compression]
        scale = (np.abs(blocks).max(axis=1) / np.float32(most)).astype(np.float32)
        # A block of zeros has no scale; any will do.
        safe = np.where(scale > 0, scale, np.float32(1))
        whole = np.clip(np.rint(blocks / safe[:, None]), -most, most).astype(np.int8)
        packed = whole.view(np.uint8) if self.compression == "int8" else _nibbles(whole)
        return np.concatenate((scale[:, None].view(np.uint8), packed), axis=1)

    def decode(self, data: Bytes) -> Vector:
        """The numbers of bytes [blocks, block_bytes], in order."""
        rows = data.reshape(-1, self.block_bytes)
        if self.compression == "none":
            return np.ascontiguousarray(rows).view(np.float32).reshape(-1)
        if self.compression == "bf16":
            wide = np.ascontiguousarray(rows).view(np.uint16).astype(np.uint32) << np.uint32(16)
            return wide.view(np.float32).reshape(-1)
        scale = np.ascontiguousarray(rows[:, :_SCALE_BYTES]).view(np.float32)
        rest = np.ascontiguousarray(rows[:, _SCALE_BYTES:])
        whole = rest.view(np.int8) if self.compression == "int8" else _from_nibbles(rest)
        numbers: Vector = whole.astype(np.float32) * scale
        return numbers.reshape(-1)


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
