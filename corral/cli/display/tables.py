"""Lays out a table for the width of a terminal: no id is ever broken, and nothing is cut.

Where the columns do not fit beside each other, those that say the same in every row may go, one with long
text is wrapped in its place, and what is still too wide is written under its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

_GAP = 2
_INDENT = 4
# A column is wrapped in its place only where it stays readable: not too narrow, and not too many lines.
_LEAST_WRAPPED = 24
_MOST_LINES = 3
_PLAIN = Console(width=80)

Row = Sequence[Text]


@dataclass
class TableLayout:
    """Which columns stand beside each other and how wide they are, and which stand below their row."""

    names: Sequence[str]
    rows: Sequence[Row]
    width: int
    beside: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.beside = list(range(len(self.names)))
        self.widths = [
            max([len(name), *(_widest(row[index]) for row in self.rows)])
            for index, name in enumerate(self.names)
        ]

    @property
    def excess(self) -> int:
        """By how much the columns are wider than the terminal."""
        return sum(self.widths[index] + _GAP for index in self.beside) - _GAP - self.width

    def fit(self, spare: Iterable[str]) -> None:
        """`spare` are columns that may go where they say the same in every row, the first one first."""
        for name in spare:
            if self.excess > 0 and name in self.names:
                self._leave_out(self.names.index(name))
        while self.excess > 0 and len(self.beside) > 1:
            # The first column says what the row is about.
            widest = max(self.beside[1:], key=lambda index: self.widths[index])
            if self._wrap(widest):
                return
            self.beside.remove(widest)
            self.below.append(widest)
        self.below.sort()

    def _leave_out(self, index: int) -> None:
        if len({row[index].plain for row in self.rows}) == 1:
            self.beside.remove(index)

    def _wrap(self, index: int) -> bool:
        room = self.widths[index] - self.excess
        cells = [row[index] for row in self.rows]
        words = max((len(word) for cell in cells for word in cell.plain.split()), default=0)
        if room < max(_LEAST_WRAPPED, words) or any(_widest(cell) > room * _MOST_LINES for cell in cells):
            return False
        self.widths[index] = room
        return True

    def lines(self) -> Iterator[Text]:
        yield from self._beside([Text(name, style="bold") for name in self.names])
        for row in self.rows:
            yield from self._beside(row)
            for index in self.below:
                if row[index].plain:
                    yield from _hanging(self._title(index), row[index], self.width)

    def _beside(self, row: Row) -> Iterator[Text]:
        cells = [folded(row[index], self.widths[index]) for index in self.beside]
        for number in range(max(map(len, cells))):
            line = Text()
            for index, cell in zip(self.beside, cells, strict=True):
                piece = cell[number] if number < len(cell) else Text()
                line.append_text(piece).append(" " * (self.widths[index] - piece.cell_len + _GAP))
            line.rstrip()
            yield line

    def _title(self, index: int) -> Text:
        name = self.names[index]
        return Text(" " * _INDENT + (f"{name.lower()}: " if name else ""))


def table_lines(names: Sequence[str], rows: Sequence[Row], *, width: int, spare: Iterable[str]) -> list[Text]:
    layout = TableLayout(names, rows, width)
    layout.fit(spare)
    return list(layout.lines())


def left_beside(names: Sequence[str], rows: Sequence[Row], *, width: int) -> int:
    """How much of the width one column more could have."""
    return -TableLayout(names, rows, width).excess - _GAP


def pair_lines(name: str, value: Text, *, margin: int, width: int) -> list[Text]:
    """A name and its value, whose further lines stand under its first: none of them passes for a name."""
    first, *rest = folded(value, max(width - margin, _LEAST_WRAPPED)) or [Text()]
    head = Text().append(f"{name:<{margin}}", style="bold")
    return [head.append_text(first), *(Text(" " * margin).append_text(line) for line in rest)]


def folded(text: Text, width: int) -> list[Text]:
    """The lines of a text, broken between words where they are longer than the width."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        # Most cells fit; wrapping is what takes long in a long table.
        lines += [line] if line.cell_len <= width else line.wrap(_PLAIN, width)
    for line in lines:
        line.rstrip()
    return lines


def hanging_lines(text: Text, width: int) -> list[Text]:
    """One line that is too long for the terminal goes on below, indented."""
    return list(_hanging(Text(), text, width))


def _hanging(title: Text, value: Text, width: int) -> Iterator[Text]:
    # The further lines are indented, so all are folded to what is left for them.
    margin = max(len(title), _INDENT + _GAP)
    first, *rest = folded(value, max(width - margin, _LEAST_WRAPPED))
    yield title.append_text(first)
    for line in rest:
        yield Text(" " * (_INDENT + _GAP)).append_text(line)


def _widest(cell: Text) -> int:
    return max((line.cell_len for line in cell.split("\n")), default=0)
