"""The state of a program of torch as an object and a small record: dicts, lists and tensors, no pickle."""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from corral.diloco import blocks
from corral.diloco.codec import Bytes
from corral.diloco.records import broken
from corral.diloco.round_store import RoundStore, StoreError

_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class SavedState:
    """`tree` is the state, with each tensor as its place in `data`."""

    tree: Any
    data: Bytes

    def equals(self, other: SavedState) -> bool:
        return bool(self.tree == other.tree and np.array_equal(self.data, other.data))


def taken(state: object) -> SavedState:
    """A copy: the state may change at once."""
    parts: list[Bytes] = []
    tree = _packed(state, parts, [0])
    return SavedState(tree, np.concatenate(parts) if parts else np.zeros(0, np.uint8))


def restored(snapshot: SavedState) -> Any:
    return _unpacked(snapshot.tree, snapshot.data)


def save(store: RoundStore, prefix: str, step: int, snapshot: SavedState) -> bool:
    """False if somebody else has saved that step: all who are at a step have the same state."""
    key = f"{prefix}/states/{step:08d}-{secrets.token_hex(8)}.safetensors"
    size = snapshot.data.nbytes
    written = blocks.write(store, key, {"state": snapshot.data}, size)
    digest = written.digests[0][0] if size else ""
    said = {"key": key, "start": written.start, "size": size, "digest": digest, "tree": snapshot.tree}
    return store.create(record_key(prefix, step), json.dumps(said).encode())


def load(store: RoundStore, prefix: str, step: int) -> SavedState | None:
    if (found := store.get(record_key(prefix, step))) is None:
        return None
    key = record_key(prefix, step)
    try:
        said = json.loads(found[0])
        start, size, digest = int(said["start"]), int(said["size"]), str(said["digest"])
        where, tree = str(said["key"]), said["tree"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise broken(key, "it is no record of a state") from None
    if not where.startswith(f"{prefix}/states/{step:08d}-") or start < 0 or size < 0:
        raise broken(key, f"it is of {where[:80]!r}")
    data = np.empty(size, np.uint8)
    blocks.read_pieces(store, where, start, data, [digest] if size else [], size)
    return SavedState(tree, data)


def record_key(prefix: str, step: int) -> str:
    return f"{prefix}/snapshots/{step:08d}.json"


def _packed(value: object, parts: list[Bytes], at: list[int]) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        if not all(isinstance(key, _PLAIN) for key in value):
            raise StoreError("a state has a key that is neither text nor number")
        return {"dict": [[key, _packed(one, parts, at)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_packed(one, parts, at) for one in value]}
    if hasattr(value, "detach"):
        torch = sys.modules["torch"]
        tensor = value.detach().cpu().contiguous()
        # A copy, where the tensor is in this memory already.
        data = (
            tensor.reshape(-1).view(torch.uint8).numpy().copy() if tensor.numel() else np.zeros(0, np.uint8)
        )
        parts.append(data)
        at[0] += data.nbytes
        name = str(tensor.dtype).removeprefix("torch.")
        return {"tensor": [name, list(tensor.shape), at[0] - data.nbytes, data.nbytes]}
    raise StoreError(
        f"a state holds a {type(value).__name__}, which is not put in the store",
        hint="Give the manager dicts, lists, tensors, texts and numbers.",
    )


def _unpacked(tree: Any, data: Bytes) -> Any:
    if not isinstance(tree, dict):
        return tree
    [(kind, said)] = tree.items()
    if kind == "dict":
        return {key: _unpacked(one, data) for key, one in said}
    if kind in ("list", "tuple"):
        found = [_unpacked(one, data) for one in said]
        return found if kind == "list" else tuple(found)
    torch = sys.modules["torch"]
    name, shape, start, size = said
    dtype = getattr(torch, name, None)
    if kind != "tensor" or not isinstance(dtype, torch.dtype) or start + size > data.nbytes:
        raise StoreError(f"a state holds {str(tree)[:80]}, which is unknown")
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data[start : start + size].copy()).view(dtype).reshape(shape)
