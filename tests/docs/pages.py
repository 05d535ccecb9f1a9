"""What a page of the documentation tells its reader to do, as steps that can be done.

    ```console              lines that begin with `$ ` are commands, the others what they print
    ```sh                   a script
    ```toml title="a.toml"  a file to be saved under that name; of any language

A comment in the line above a block changes what is expected of it: `<!-- expect: 1 -->` the exit code of
its last command, `<!-- not run: why -->` that the test leaves it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_EXPECT = re.compile(r"<!-- expect: (\d+) -->")
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    title: str | None
    expect: int
    not_run: str | None
    text: str


@dataclass(frozen=True)
class Save:
    name: str
    text: str


@dataclass(frozen=True)
class Command:
    line: int
    text: str
    expect: int
    shown: tuple[str, ...]


Step = Save | Command


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
        above = lines[at - 1] if at else ""
        info, indent = fence["info"].strip(), len(fence["indent"])
        title, expect, not_run = _TITLE.search(info), _EXPECT.search(above), _NOT_RUN.search(above)
        yield Block(
            page=page,
            line=at + 1,
            language=info.split(" ")[0],
            title=title[1] if title else None,
            expect=int(expect[1]) if expect else 0,
            not_run=not_run[1] if not_run else None,
            text="".join(f"{line[indent:]}\n" for line in lines[at + 1 : end]),
        )
        at = end + 1


def steps(page: Path) -> list[Step]:
    found: list[Step] = []
    for block in blocks(page):
        if block.not_run:
            continue
        if block.title:
            found.append(Save(block.title, block.text))
        elif block.language == "console":
            found += _commands(block)
        elif block.language == "sh":
            found.append(Command(block.line, block.text, block.expect, ()))
    return found


def _commands(block: Block) -> list[Command]:
    made: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            made.append(Command(number, line[2:], 0, ()))
        elif line.startswith("> ") and made and not made[-1].shown:
            last = made.pop()
            made.append(Command(last.line, f"{last.text}\n{line[2:]}", 0, ()))
        else:
            last = made.pop()
            made.append(Command(last.line, last.text, 0, (*last.shown, line)))
    last = made.pop()
    return [*made, Command(last.line, last.text, block.expect, last.shown)]


# What differs from one reader to the next: ids, times, ports, processes, digests.
_VARYING = (
    (re.compile(r"\b([rlhgats])-[bcdfghjkmnpqrstvwxz2-9]{12}\b"), r"\1-ID"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "WHEN"),
    (re.compile(r"(?<![\w.])(\d+d|\d+h|\d+m|\d+(\.\d+)?s)( (\d+h|\d+m|\d+s))?(?![\w.])"), "TIME"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"\bpid \d+"), "pid PID"),
    (re.compile(r"\s+"), " "),
)


def plain(text: str) -> str:
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return text.strip()


def missing(shown: tuple[str, ...], printed: str) -> str | None:
    """The first shown line that was not printed, in order; `...` stands for anything."""
    actual = iter([plain(line) for line in printed.splitlines()])
    for line in shown:
        if not plain(line) or plain(line) == "...":
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in plain(line).split("...")))
        if not any(pattern.fullmatch(found) for found in actual):
            return line
    return None
