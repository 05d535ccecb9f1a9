"""How things look: tables on a terminal, plain columns elsewhere, JSON when asked."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from corral.cli.display.tables import hanging_lines, left_beside, pair_lines, table_lines
from corral.cli.display.visible import for_stream, visible, visible_json
from corral.durations import format_duration
from corral.files.sizes import format_size

# Wide enough that nothing is cut where no terminal sets the width.
_UNBOUNDED = 4096
_LEAST_CURVE, _MOST_CURVE = 8, 40
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


def say(text: str = "") -> None:
    """A line of a result, on stdout."""
    typer.echo(visible(text))


def say_long(text: str) -> None:
    """The same; on a terminal it is broken between words where it is too long, and goes on indented."""
    show_lines(hanging_lines(Text(visible(text)), console().width))


def note(text: str) -> None:
    """A word from corral itself, on stderr; stdout is for results."""
    typer.echo(visible(text), err=True)


def pass_on(text: str, *, ends: bool = True, err: bool = False) -> None:
    """What a user's own program wrote, or a value that a script reads: it goes out as it is, but for what a
    terminal would obey."""
    stream = sys.stderr if err else sys.stdout
    # With `color` nothing is taken out of it on the way to a file.
    typer.echo(for_stream(text, stream), nl=ends, err=err, color=True)


def show_json(value: object) -> None:
    """A model, or plain values that may hold models."""
    if isinstance(value, BaseModel):
        text = value.model_dump_json(indent=2)
    else:
        text = json.dumps(value, indent=2, default=lambda model: model.model_dump(mode="json"))
    typer.echo(visible_json(text))


def show_json_line(value: object) -> None:
    text = value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)
    typer.echo(visible_json(text))


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, empty: str, spare: Sequence[str] = ()
) -> None:
    """`empty` is said, on stderr, when there are no rows. `spare` are columns that a narrow terminal does
    without where they say the same in every row."""
    cells = [[_cell(value) for value in row] for row in rows]
    if cells:
        show_lines(table_lines(columns, cells, width=console().width, spare=spare))
    else:
        note(empty)


def room_beside(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> int:
    """How wide a curve beside these columns may be: readable, and within the terminal if that is possible."""
    cells = [[_cell(value) for value in row] for row in rows]
    return max(_LEAST_CURVE, min(_MOST_CURVE, left_beside(columns, cells, width=console().width)))


def show_lines(lines: Iterable[Text]) -> None:
    """Lines that were laid out already, in their colours."""
    out = console()
    with out.capture() as captured:
        for line in lines:
            out.print(_harmless(line), soft_wrap=True)
    typer.echo(captured.get(), nl=False)


def begin_screen() -> None:
    """What follows is drawn anew from the top of the terminal; elsewhere a blank line parts it."""
    out = console()
    if out.is_terminal:
        out.clear()
    else:
        typer.echo()


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
        say(line)


def show_pairs(*pairs: tuple[str, Cell]) -> None:
    """Names and values; what is not known is left out."""
    kept = [(name, value) for name, value in pairs if value is not None and value != ""]
    margin = max((len(name) for name, _ in kept), default=0) + 2
    width = console().width
    show_lines(
        line for name, value in kept for line in pair_lines(name, _cell(value), margin=margin, width=width)
    )


def _cell(value: Cell) -> Text:
    return _harmless(value) if isinstance(value, Text) else Text("" if value is None else visible(str(value)))


def _harmless(text: Text) -> Text:
    safe = visible(text.plain)
    return text if safe == text.plain else Text(safe, style=text.style)


def state(name: str) -> Text:
    return Text(name, style=_STYLES.get(name, ""))


def age(at: float | None) -> str | None:
    return None if at is None else format_duration(time.time() - at)


def moment(at: float | None) -> str | None:
    return None if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def size(count: int | None) -> str | None:
    return None if count is None else format_size(count)


def count(number: int, thing: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def dollars(amount: float | None) -> str | None:
    """`$12.34`, and of small amounts two digits more: `$0.0042`."""
    if amount is None:
        return None
    if 0 < amount < 0.0001:
        return "less than $0.0001"
    return f"${amount:.2f}" if amount >= 1 or amount == 0 else f"${amount:.4f}"


def number(value: float) -> str:
    return f"{value:.6g}"
