"""Lays token sequences end to end in packs, so that no pass computes padding.

A pack is one row of tokens. The sequences in it do not see each other: token t attends to s <= t only if
`segment[s] == segment[t]` or `segment[s] == prefix[t]`. The completions of one prompt may share it: the
prompt then stands once, in a segment of its own, and each completion is a branch that names it as `prefix`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat
from typing import NamedTuple

import torch
from torch import Tensor

from corral.engine.data.sequences import Example
from corral.engine.errors import EngineError
from corral.recipes.speed import GROUP_CUTS

# What these hold counts only where a weight does, so inside a shared prefix they may be anything.
UNWEIGHTED = frozenset({"advantage", "old", "ref", "sampled"})


class PackingError(EngineError, ValueError):
    """An example that cannot be packed as asked. `hint` says what to do."""


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Some examples as one row of T tokens. All tensors are on the CPU.

    - `tokens`, `positions`: int64[T]. Positions count from 0 in each example, through its shared prefix.
    - `targets`: int64[T], the token that is predicted at t; 0 where none is (the last token of an example
      and padding).
    - `streams`: float32[T] each. The value at t belongs to the prediction of `targets[t]`.
    - `example`: int32[T], the place in `index` of the example that t belongs to; -1 for padding and for
      tokens of a shared prefix.
    - `segment`, `prefix`: int32[T], who sees whom (see the module); `prefix` is -1 where nothing is shared.
    - `index`: the examples inside, as places in what was packed.
    - `spans`: for each of them the half-open range of t at which its own tokens are predicted. It ends at
      the last one, so `targets[start:end]` are the last `end - start` tokens of the example.
    - `real`: how many of the T tokens are not padding.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor
    streams: dict[str, Tensor]
    example: Tensor
    segment: Tensor
    prefix: Tensor
    index: list[int]
    real: int
    spans: list[tuple[int, int]]


def plan(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Which sequences lie together so that no pack holds more than `capacity`: best-fit decreasing.

    The longest is placed first, each in the fullest pack that still has room. Equal input, equal plan.
    """
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free, pack), sorted: the first that is large enough fits best
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        if length > capacity:
            raise PackingError(
                f"sequence {index} has {length} tokens; a pack holds {capacity}",
                "Raise micro_tokens, or lower max_length.",
            )
        place = bisect_left(room, (length, -1))
        if place == len(room):
            room.append((capacity, len(packs)))
            packs.append([])
            place = bisect_left(room, (capacity, len(packs) - 1))
        free, pack = room.pop(place)
        packs[pack].append(index)
        insort(room, (free - length, pack))
    return [sorted(pack) for pack in packs]


@dataclass(frozen=True, slots=True)
class _Unit:
    """Examples that lie side by side. The first `shared` tokens, if any, stand once before them all."""

    members: list[int]
    shared: int
    size: int


def pack(examples: Sequence[Example], capacity: int, *, share_prefix: bool, multiple: int = 1) -> list[Pack]:
    """Every example in exactly one pack of at most `capacity` tokens, then padded to a `multiple`.

    With `share_prefix`, the members of a group lie in one pack behind one copy of their prefix; a group that
    is too large is split over packs, each with its own copy. PackingError names an example that is too long,
    empty, has a stream of another length, or that does not agree with its group.
    """
    if capacity < 1 or multiple < 1:
        raise ValueError(f"capacity and multiple must be at least 1, not {capacity} and {multiple}")
    for index, example in enumerate(examples):
        _check(index, example, capacity)
    packs = _shared_packs(examples, capacity) if share_prefix else _plain_packs(examples, capacity)
    layout = _Layout()
    for members in packs:
        layout.add(members, examples, multiple)
    return layout.build(examples)


def _check(index: int, example: Example, capacity: int) -> None:
    length = len(example.tokens)
    if length > capacity:
        raise PackingError(
            f"example {index} has {length} tokens; a pack holds {capacity}",
            "Raise micro_tokens, or lower max_length.",
        )
    if length == 0:
        raise PackingError(f"example {index} has no tokens")
    if not 0 <= example.prefix <= length:
        raise PackingError(f"example {index} has {length} tokens and a prefix of {example.prefix}")
    for name, values in example.streams.items():
        if len(values) != length:
            raise PackingError(
                f"example {index} has {length} tokens and {len(values)} values of stream {name!r}"
            )


def _plain_packs(examples: Sequence[Example], capacity: int) -> list[list[_Unit]]:
    return _planned(_singles(examples, range(len(examples))), capacity)


def _shared_packs(examples: Sequence[Example], capacity: int) -> list[list[_Unit]]:
    """Of several ways to cut the groups the one with the fewest packs: smaller parts leave less room unused,
    but each begins with a copy of the prefix."""
    ways = [_planned(_units(examples, capacity // parts), capacity) for parts in GROUP_CUTS]
    return min(ways, key=len)


def _planned(units: Sequence[_Unit], capacity: int) -> list[list[_Unit]]:
    return [[units[u] for u in members] for members in plan([unit.size for unit in units], capacity)]


def _singles(examples: Sequence[Example], members: Iterable[int]) -> list[_Unit]:
    return [_Unit([index], 0, len(examples[index].tokens)) for index in members]


def _units(examples: Sequence[Example], most: int) -> list[_Unit]:
    """Groups in parts of at most `most` tokens, where their sequences allow it."""
    groups: dict[int, list[int]] = {}
    alone = []
    for index, example in enumerate(examples):
        # A prefix of one token cannot be shared: each branch begins with the prefix's last token.
        if example.group >= 0 and example.prefix > 1:
            groups.setdefault(example.group, []).append(index)
        else:
            alone.append(index)
    units = _singles(examples, alone)
    for members in groups.values():
        units += _share(examples, members, most) if len(members) > 1 else _singles(examples, members)
    return units


def _share(examples: Sequence[Example], members: list[int], most: int) -> list[_Unit]:
    _check_group(examples, members)
    shared = examples[members[0]].prefix - 1
    own = [len(examples[index].tokens) - shared for index in members]
    units = []
    for places in plan(own, max(most - shared, *own)):
        together = [members[place] for place in places]
        if len(together) == 1:
            units += _singles(examples, together)
        else:
            units.append(_Unit(together, shared, shared + sum(own[place] for place in places)))
    return units


def _check_group(examples: Sequence[Example], members: list[int]) -> None:
    first = examples[members[0]]
    prompt = list(first.tokens[: first.prefix])
    for index in members:
        example = examples[index]
        if example.prefix != first.prefix or list(example.tokens[: example.prefix]) != prompt:
            raise PackingError(
                f"examples {members[0]} and {index} of group {example.group} begin with different prefixes"
            )
        for name, values in example.streams.items():
            # A shared token belongs to no example, so what one of them asks of it would be lost.
            if name not in UNWEIGHTED and any(values[: example.prefix]):
                raise PackingError(
                    f"example {index} has a non-zero {name!r} inside the prefix that its group shares",
                    "Pack without share_prefix, or end the prefix before the first trained token.",
                )


class _Piece(NamedTuple):
    """A stretch of an example, as it lies in a pack; `example`, `segment` and `prefix` are `Pack`'s."""

    source: int  # the example it is cut from; -1 is padding
    begin: int  # where in the example it begins, which is its position
    length: int
    example: int
    segment: int
    prefix: int


@dataclass(slots=True)
class _Layout:
    """Pieces of examples in the order in which they lie, over all packs."""

    pieces: list[_Piece] = field(default_factory=list)
    links: list[tuple[int, int]] = field(default_factory=list)  # (last of a prefix, first of a branch)
    packs: list[tuple[list[int], list[tuple[int, int]], int, int]] = field(default_factory=list)
    total: int = 0

    def add(self, units: Sequence[_Unit], examples: Sequence[Example], multiple: int) -> None:
        start, first = self.total, len(self.pieces)
        index: list[int] = []
        spans: list[tuple[int, int]] = []
        for unit in units:
            parent = -1
            if unit.shared:
                parent = len(self.pieces) - first
                self._add(_Piece(unit.members[0], 0, unit.shared, -1, parent, -1))
                self.links.append((self.total - 1, self.total))
            for member in unit.members:
                own = len(examples[member].tokens) - unit.shared
                spans.append((self.total - start, self.total - start + own - 1))
                self._add(_Piece(member, unit.shared, own, len(index), len(self.pieces) - first, parent))
                index.append(member)
        real = self.total - start
        padding = -real % multiple
        if padding:
            self._add(_Piece(-1, 0, padding, -1, len(self.pieces) - first, -1))
        self.packs.append((index, spans, real, self.total - start))

    def _add(self, piece: _Piece) -> None:
        self.pieces.append(piece)
        self.total += piece.length

    def build(self, examples: Sequence[Example]) -> list[Pack]:
        if not self.packs:
            return []
        _, begin, lengths, example, segment, prefix = map(torch.tensor, zip(*self.pieces, strict=True))
        ends = lengths.cumsum(0)

        def spread(values: Tensor) -> Tensor:
            return values.repeat_interleave(lengths, output_size=self.total)

        tokens = self._tokens(examples)
        columns: dict[str, Tensor] = {
            "tokens": tokens,
            "targets": self._targets(tokens, ends - 1),
            "positions": torch.arange(self.total) + spread(begin - (ends - lengths)),
            "example": spread(example.int()),
            "segment": spread(segment.int()),
            "prefix": spread(prefix.int()),
        }
        streams = {name: self._stream(name, examples, ends - 1) for name in _names(examples)}
        return self._cut(columns, streams)

    def _cut(self, columns: dict[str, Tensor], streams: dict[str, Tensor]) -> list[Pack]:
        ends = list(accumulate(size for *_, size in self.packs))
        places = [slice(end - size, end) for end, (*_, size) in zip(ends, self.packs, strict=True)]
        return [
            Pack(
                **{name: column[place] for name, column in columns.items()},
                streams={name: stream[place] for name, stream in streams.items()},
                index=index,
                real=real,
                spans=spans,
            )
            for place, (index, spans, real, _) in zip(places, self.packs, strict=True)
        ]

    def _tokens(self, examples: Sequence[Example]) -> Tensor:
        flat: list[int] = []
        for source, begin, length, _, _, _ in self.pieces:
            if source < 0:
                flat.extend(repeat(0, length))
            else:
                flat.extend(examples[source].tokens[begin : begin + length])
        # An array takes a list several times faster than a tensor does.
        return torch.frombuffer(array("q", flat), dtype=torch.int64)

    def _targets(self, tokens: Tensor, last: Tensor) -> Tensor:
        targets = torch.zeros_like(tokens)
        targets[:-1] = tokens[1:]
        targets[last] = 0
        if self.links:
            ends, firsts = torch.tensor(self.links).unbind(1)
            targets[ends] = tokens[firsts]
        return targets

    def _stream(self, name: str, examples: Sequence[Example], last: Tensor) -> Tensor:
        flat: list[float] = []
        for source, begin, length, example, _, _ in self.pieces:
            values = None if example < 0 else examples[source].streams.get(name)
            flat.extend(repeat(0.0, length) if values is None else values[begin : begin + length])
        shifted = torch.zeros(self.total)
        shifted[:-1] = torch.frombuffer(array("f", flat), dtype=torch.float32)[1:]
        shifted[last] = 0.0
        return shifted


def _names(examples: Sequence[Example]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(example.streams for example in examples)))
