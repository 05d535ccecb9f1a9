"""How things look: tables on a terminal, plain columns elsewhere, JSON when asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from corral.durations import format_duration

# Wide enough that nothing is cut where no terminal sets the width.
_UNBOUNDED = 4096
_STYLES = {
    "succeeded": "green",
    "done": "green",
    "failed": "red",
    "ended": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "stopping": "yellow",
    "halting": "yellow",
    "yielding": "yellow",
    "held": "magenta",
}

Cell = str | Text | int | float | None


def console(*, stderr: bool = False) -> Console:
    """Colours only on a terminal; NO_COLOR and TERM=dumb are honoured by Rich."""
    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=False)
    if not made.is_terminal:
        made.width = _UNBOUNDED
    return made


def show_json(value: object) -> None:
    """A model, or plain values that may hold models."""
    if isinstance(value, BaseModel):
        typer.echo(value.model_dump_json(indent=2))
    else:
        typer.echo(json.dumps(value, indent=2, default=lambda model: model.model_dump(mode="json")))


def show_json_line(value: BaseModel) -> None:
    typer.echo(value.model_dump_json())


def note(text: str) -> None:
    """A word from corral itself; stdout is for results."""
    typer.echo(text, err=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, empty: str) -> None:
    """`empty` is said, on stderr, when there are no rows."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=False)
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    if table.row_count == 0:
        note(empty)
        return
    out = console()
    with out.capture() as captured:
        out.print(table)
    # Rich fills the last column with spaces, which a program that reads this would have to strip.
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def show_list(
    items: object,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    as_json: bool,
    empty: str,
    footer: str | None = None,
) -> None:
    """The items as JSON if asked, or else as the rows of a table, with a note below it."""
    if as_json:
        show_json(items)
        return
    show_table(columns, rows, empty=empty)
    if footer:
        note(footer)


def show_one(item: object, pairs: Iterable[tuple[str, Cell]], *, as_json: bool) -> None:
    """The item as JSON if asked, or else as names and values."""
    if as_json:
        show_json(item)
    else:
        show_pairs(*pairs)


def show_line(item: BaseModel, line: str, *, as_json: bool) -> None:
    """The item as JSON if asked, or else one line that says what was done."""
    if as_json:
        show_json(item)
    else:
        typer.echo(line)


def show_pairs(*pairs: tuple[str, Cell]) -> None:
    """Names and values; what is not known is left out."""
    out = console()
    kept = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        out.print(Text(f"{name:<{width}}  ", style="bold").append_text(_cell(value)))


def _cell(value: Cell) -> Text:
    if isinstance(value, Text):
        return value
    return Text("" if value is None else str(value))


def state(name: str) -> Text:
    return Text(name, style=_STYLES.get(name, ""))


def age(at: float | None) -> str | None:
    return None if at is None else format_duration(time.time() - at)


def moment(at: float | None) -> str | None:
    return None if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def size(count: int | None) -> str | None:
    if count is None:
        return None
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return None


def count(number: int, thing: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def number(value: float) -> str:
    return f"{value:.6g}"
