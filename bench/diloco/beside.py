"""What replicas could do instead of a round: move the same bytes and nothing else, add up over a network, or
let every replica write all and read all (composer-replication-framework's scheme, written anew)."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from bench.diloco.replicas import Party
from corral.diloco.codec import BLOCK, Codec, Compression, Vector
from corral.diloco.round_store import RoundStore

LR, MOMENTUM = 0.7, 0.9
# Theirs is 1 s.
POLL_S = 0.02


def raw(party: Party, store: RoundStore, size: int, compression: Compression) -> Callable[[int], None]:
    """The bytes of a round by the same client, and nothing else: the payload, a stretch of everybody's and of
    the old momentum, a shard of weights and momentum, and all weights."""
    codec, me, count = Codec(compression), party.number, party.count
    blocks = size // BLOCK
    bounds = [number * blocks // count for number in range(count + 1)]
    mine = bounds[me + 1] - bounds[me]
    payload = np.random.default_rng(me).bytes(blocks * codec.block_bytes)
    state = np.random.default_rng(me).bytes(2 * mine * BLOCK * 4)

    def move(number: int) -> None:
        store.put(f"raw/{number}/payload-{me}", payload)
        party.meet()
        part = bytearray(mine * codec.block_bytes)
        for other in range(count):
            _filled(store, f"raw/{number}/payload-{other}", part, bounds[me] * codec.block_bytes)
        if number:
            _filled(store, f"raw/{number - 1}/state-{me}", bytearray(len(state) // 2), len(state) // 2)
        store.put(f"raw/{number}/state-{me}", state)
        party.meet()
        for other in range(count):
            _filled(
                store,
                f"raw/{number}/state-{other}",
                bytearray((bounds[other + 1] - bounds[other]) * BLOCK * 4),
                0,
            )
        party.meet()
        if number:
            store.delete(f"raw/{number - 1}/payload-{me}")
            store.delete(f"raw/{number - 1}/state-{me}")

    return move


def _filled(store: RoundStore, key: str, buffer: bytearray, start: int) -> None:
    found = store.read_into(key, buffer, start)
    assert found == len(buffer), f"{key} has {found} bytes from {start} on, not {len(buffer)}"


class Outer:
    """The outer step by every replica for itself, on all of the vector."""

    def __init__(self, weights: Vector) -> None:
        self.weights = torch.nn.Parameter(torch.from_numpy(weights.copy()))
        self._sgd = torch.optim.SGD([self.weights], lr=LR, momentum=MOMENTUM, nesterov=True)

    def step(self, mean: torch.Tensor) -> None:
        self.weights.grad = mean
        self._sgd.step()


def whole_reduce(party: Party, store: RoundStore, weights: Vector, gradient: Vector) -> Callable[[int], None]:
    """Every replica writes its tensor whole, waits until all files are there, reads all, and takes the mean
    for itself. The payload is what torch saves."""
    outer = Outer(weights)

    def reduce(number: int) -> None:
        packed = io.BytesIO()
        torch.save(torch.from_numpy(gradient), packed)
        store.put(f"whole/round_{number}/rank_{party.number}.pt", packed.getbuffer())
        mean: torch.Tensor | None = None
        for rank in range(party.count):
            key = f"whole/round_{number}/rank_{rank}.pt"
            while (found := store.get(key)) is None:
                time.sleep(POLL_S)
            part = torch.load(io.BytesIO(found[0]), weights_only=True)
            mean = part if mean is None else mean.add_(part)
        assert mean is not None
        outer.step(mean.div_(party.count))

    return reduce


def all_reduce(party: Party, meeting: Path, weights: Vector, gradient: Vector) -> Callable[[int], None]:
    """Over loopback, by gloo: what replicas do that reach each other."""
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=party.number, world_size=party.count
    )
    outer = Outer(weights)

    def reduce(number: int) -> None:
        mean = torch.from_numpy(gradient.copy())
        dist.all_reduce(mean)
        outer.step(mean.div_(party.count))

    return reduce
