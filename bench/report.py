"""Results as plain tables: printed, and kept as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Only the machine that measures needs psutil, not the one that reads or merges results.
    from bench.machine import Machine

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Table:
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class Figure:
    """One answer. `met` is None where the issue sets no target or it could not be measured."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None
    rival: str = ""
    ratio: str = ""

    def row(self) -> list[str]:
        met = "" if self.met is None else ("yes" if self.met else "NO")
        return [self.what, self.measured, self.rival, self.ratio, self.target, met]


FIGURE_HEADERS = ("figure", "Corral", "rival", "ratio", "target", "met")


@dataclass
class Result:
    """What one script found. `method` is two lines: how the load was made, and who was durable how."""

    name: str
    title: str
    method: tuple[str, str]
    figures: list[Figure] = field(default_factory=list)
    details: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: dict[str, object] = field(default_factory=dict)

    def tables(self) -> list[Table]:
        return [Table(FIGURE_HEADERS, [figure.row() for figure in self.figures]), *self.details]


def show(result: Result) -> str:
    parts = [f"== {result.title} =="]
    for table in result.tables():
        parts.append(plain(table))
    parts += [f"method: {result.method[0]}", f"        {result.method[1]}"]
    parts += [f"note: {note}" for note in result.notes]
    return "\n".join(parts) + "\n"


def write(result: Result, machine: Machine, commit: str | None, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result.name}.md").write_text(_markdown(result, machine, commit), encoding="utf-8")
    kept = {"machine": asdict(machine), "commit": commit, **asdict(result)}
    text = json.dumps(kept, indent=2, ensure_ascii=False)
    (folder / f"{result.name}.json").write_text(text + "\n", encoding="utf-8")


def write_summary(results: Sequence[Result], machine: Machine, commit: str | None, folder: Path) -> None:
    rows = [figure.row() for result in results for figure in result.figures]
    lines = ["# Corral measured: all figures of one run", "", *_facts(machine, commit), ""]
    lines += [_markdown_table(Table(FIGURE_HEADERS, rows)), ""]
    lines += ["How each was measured, and its details, are in the file of its name beside this one:", ""]
    lines += [f"- [{result.title}]({result.name}.md)" for result in results]
    (folder / "summary.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _markdown(result: Result, machine: Machine, commit: str | None) -> str:
    lines = [f"# {result.title}", "", *_facts(machine, commit), ""]
    for table in result.tables():
        if table.title:
            lines += [f"## {table.title}", ""]
        lines += [_markdown_table(table), ""]
    lines += ["Method: " + result.method[0], result.method[1]]
    if result.notes:
        lines += ["", *_bullets(result.notes)]
    return "\n".join(lines) + "\n"


def _facts(machine: Machine, commit: str | None) -> list[str]:
    return _bullets([*machine.lines(), f"measured at commit {commit or 'unknown'}"])


def _bullets(lines: Sequence[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _markdown_table(table: Table) -> str:
    rows = [table.headers, ["---"] * len(table.headers), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def plain(table: Table) -> str:
    rows = [table.headers, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.headers))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(([f"-- {table.title}"] if table.title else []) + [line.rstrip() for line in lines])


def percentile(values: Sequence[float], fraction: float) -> float:
    """0 of nothing: a table may have a call that was never made."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else 0.0
