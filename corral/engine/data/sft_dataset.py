"""What is trained on: for each row its tokens and how much the prediction of each counts.

Every row is rendered once when the set is made, so that a row that is too long or whose mask is not certain
is known before training begins. What fits in memory is kept; the rest is rendered again when it is needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean, pstdev
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from corral.engine.data.chat import RefusedRow, RenderedSequence, Renderer
from corral.engine.data.rows import BadRows, RowSet
from corral.engine.errors import DataError
from corral.recipes.rows.check import RowProblems
from corral.recipes.rows.formats import ChatRow
from corral.recipes.train_tables import DataFacts, Train

KEPT_BYTES = 512 << 20
_CHUNK = 256  # rows that go through the tokenizer together
_BYTES_PER_TOKEN = 8  # an int32 and a float32


class MaskedSequence(NamedTuple):
    """A sequence and, for each token, the weight of predicting it; 0 for the first."""

    tokens: Sequence[int]
    weights: Sequence[float]


@dataclass(slots=True)
class RowCounts:
    """What became of the rows. `refused` had no certain mask, `too_long` were left out, `cut` lost their
    end, `split` became several samples because the chat template rewrites earlier turns."""

    rows: int = 0
    refused: int = 0
    too_long: int = 0
    cut: int = 0
    split: int = 0
    problems: RowProblems = field(default_factory=RowProblems)


class SftDataset(Sequence[MaskedSequence]):
    """The samples of a set of rows, in the order of the rows. `lengths` are their tokens."""

    def __init__(self, rows: RowSet, renderer: Renderer, max_length: int, kept_bytes: int) -> None:
        self._rows = rows
        self._renderer = renderer
        self._max_length = max_length
        self._row = array("q")
        self._part = array("q")
        self._kept: dict[int, MaskedSequence] = {}
        self._room = kept_bytes
        self._trained = 0
        self.lengths = array("q")
        self.counts = RowCounts()

    def __len__(self) -> int:
        return len(self._row)

    def __getitem__(self, index: int) -> MaskedSequence:  # type: ignore[override]
        index = range(len(self))[index]
        sample = self._kept.get(index)
        if sample is None:
            rendered = self._renderer.row(self._rows[self._row[index]])[self._part[index]]
            sample = _compact(rendered, self._max_length)
        return sample

    def row(self, index: int) -> int:
        """Which row of the set a sample was made of."""
        return self._row[index]

    @property
    def facts(self) -> DataFacts:
        """What the forecast needs to know."""
        return DataFacts(
            rows=len(self),
            tokens=sum(self.lengths),
            longest=max(self.lengths),
            trained=self._trained,
            spread=pstdev(self.lengths) / fmean(self.lengths),
        )

    def _add(self, row: int, part: int, sample: RenderedSequence) -> None:
        size = len(sample.tokens) * _BYTES_PER_TOKEN
        if size <= self._room:
            self._room -= size
            self._kept[len(self)] = _compact(sample, self._max_length)
        self._trained += sum(map(bool, sample.mask))
        self._row.append(row)
        self._part.append(part)
        self.lengths.append(len(sample.tokens))


def _compact(sample: RenderedSequence, max_length: int) -> MaskedSequence:
    # A sample that is kept and one that is rendered again must be equal to the bit.
    return MaskedSequence(array("i", sample.tokens[:max_length]), array("f", sample.mask[:max_length]))


def build_dataset(
    rows: RowSet,
    tokenizer: PreTrainedTokenizerBase,
    train: Train,
    *,
    kept_bytes: int = KEPT_BYTES,
) -> SftDataset:
    """The samples of `rows` under the settings of `train`.

    BadRows names the rows that are too long or have no certain mask, where the settings say refuse.
    """
    if train.system is not None and not isinstance(rows[0], ChatRow):
        raise DataError(
            f"`system` is set, but the rows are {rows.format}, which has no system message",
            "Remove `system`, or give rows of `messages`.",
        )
    renderer = Renderer(tokenizer, thinking=train.thinking, system=train.system, loss_on=train.loss_on)
    made = SftDataset(rows, renderer, train.max_length, kept_bytes)
    for row, outcome in enumerate(_outcomes(rows, renderer)):
        _take(made, row, outcome, train)
    _judge(made, train)
    return made


def _outcomes(rows: RowSet, renderer: Renderer) -> Iterator[list[RenderedSequence] | RefusedRow]:
    remaining = iter(rows)
    while chunk := list(islice(remaining, _CHUNK)):
        yield from renderer.rows(chunk)


def _take(made: SftDataset, row: int, outcome: list[RenderedSequence] | RefusedRow, train: Train) -> None:
    counts = made.counts
    counts.rows += 1
    if isinstance(outcome, RefusedRow):
        counts.refused += 1
        counts.problems.add(made._rows.where(row), str(outcome))
        return
    counts.split += len(outcome) > 1
    for part, sample in enumerate(outcome):
        length = len(sample.tokens)
        if length <= train.max_length:
            made._add(row, part, sample)
            continue
        short = RenderedSequence(sample.tokens[: train.max_length], sample.mask[: train.max_length])
        if train.too_long == "cut" and any(short.mask):
            counts.cut += 1
            made._add(row, part, short)
            continue
        counts.too_long += 1
        why = ", and what is trained begins after that" if train.too_long == "cut" else ""
        message = f"{length} tokens; max_length is {train.max_length}{why}"
        counts.problems.add(made._rows.where(row), message)


def _judge(made: SftDataset, train: Train) -> None:
    counts = made.counts
    ways = []
    if counts.refused and train.bad_rows == "refuse":
        ways.append('set bad_rows = "skip" to leave out rows whose mask is not certain')
    if counts.too_long and train.too_long == "refuse":
        ways.append('raise max_length, or set too_long to "skip" or "cut"')
    left_out = counts.refused + counts.too_long
    if ways or (left_out and not len(made)):
        hint = "; or ".join(ways) or "give rows that can be trained"
        raise BadRows(counts.problems.kinds, left_out, counts.rows, f"Correct them; {hint}.")


def split(rows: RowSet, fraction: float) -> tuple[RowSet, RowSet | None]:
    """The rows to train on and those held out: about `fraction` of them, at least one.

    Which is decided by the text of a row, so it is the same for every seed and after a restart, and copies of
    a row are never on both sides. Nothing is held out of a single row; `notes` of the first say so.
    """
    if fraction <= 0:
        return rows, None
    size = len(rows)
    ranked = sorted(range(size), key=lambda index: (rows.key(index), index))
    count = max(1, round(size * fraction))
    while count < size and rows.key(ranked[count]) == rows.key(ranked[count - 1]):
        count += 1
    if count >= size:
        rows.notes.append(f"nothing is held out: there is too little of {size} rows to divide")
        return rows, None
    train = rows.subset(sorted(ranked[count:]))
    train.notes, train.problems, train.skipped = rows.notes, rows.problems, rows.skipped
    return train, rows.subset(sorted(ranked[:count]))
