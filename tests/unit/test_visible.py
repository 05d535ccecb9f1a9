"""Text that others wrote does nothing to a terminal."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import TextIO

import pytest
from rich.text import Text

import corral.cli
from corral.cli.display import render
from corral.cli.display.run_output import GroupOutput, RunOutput
from corral.cli.display.visible import visible, visible_json, visible_line
from corral.wire.logs import LogLine

CLI = Path(corral.cli.__file__).parent
# Clears the screen; sets the title in the form with one byte; writes backwards.
NASTY = "a\x1b[2J\x9d2;owned\x07\u202eb"


def test_what_a_terminal_obeys_is_shown_and_the_rest_stays() -> None:
    assert visible(NASTY) == "a\\x1b[2J\\x9d2;owned\\x07\\u202eb"
    assert visible("a\r\nb\tc 😀 é\rd") == "a\nb\tc 😀 é\\rd"
    assert visible_line("a\nb\tc") == "a\\nb\\tc"


def test_json_stays_the_same_value() -> None:
    text = json.dumps({NASTY: NASTY}, ensure_ascii=False)

    shown = visible_json(text)

    assert json.loads(shown) == {NASTY: NASTY}
    assert shown.isprintable()


def test_every_way_of_printing_makes_text_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """SEC-20: in tables, pairs, lines, notes and JSON; also where the text has a colour."""
    render.say(NASTY)
    render.note(NASTY)
    render.show_table((NASTY,), [(NASTY,), (Text(NASTY, style="red"),), (render.state(NASTY),)], empty="")
    render.show_pairs((NASTY, NASTY), ("coloured", Text(NASTY)))
    render.show_lines([Text(NASTY)])
    render.show_json({"x": NASTY})
    render.show_json_line({"x": NASTY})
    RunOutput(quiet=False).say(NASTY)
    RunOutput(quiet=False).write(LogLine(at=0, stream="corral", text=NASTY))

    said = capsys.readouterr()

    assert (said.out + said.err).replace("\n", "").isprintable()


def test_a_value_of_several_lines_cannot_pass_for_another_line(capsys: pytest.CaptureFixture[str]) -> None:
    """SEC-20: a detail could say `state  succeeded` in a line of its own."""
    render.show_pairs(("state", "failed"), ("detail", "x\nstate  succeeded"))

    assert capsys.readouterr().out.splitlines()[-1].startswith("        state")


def test_what_a_users_own_program_prints_goes_out_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    RunOutput(quiet=False).write(LogLine(at=0, stream="stdout", text=NASTY))

    assert capsys.readouterr().out == f"{NASTY}\n"


def test_only_the_display_prints() -> None:
    """SEC-20: `render.say`, `note` and `show_...` make text harmless, `pass_on` is for the user's own."""
    printing = {
        f"{path.relative_to(CLI)}:{node.lineno}"
        for path in CLI.rglob("*.py")
        if path.relative_to(CLI).parts[0] not in ("display", "main.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _PRINTERS
    }

    assert printing == set()


_PRINTERS = {"print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write", "Console"}


PROGRAM = "\x1b[1;31mred\x1b[0m 5%\r\x1b[K6%\td \x1b]0;PWNED\x07\x1b[2J\x9b2J\x1b[5n\x08\u202e"
ON_A_TERMINAL = "\x1b[1;31mred\x1b[0m 5%\r\x1b[K6%\td \\x1b]0;PWNED\\x07\\x1b[2J\\x9b2J\\x1b[5n\\x08\\u202e"


@pytest.mark.parametrize("by", ["one run", "several runs", "a call"])
def test_what_a_run_prints_sets_colours_on_a_terminal_and_nothing_else(
    by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ATK-18: it cannot set a title, clear the screen or make the terminal answer; a file gets every byte."""
    line = LogLine(at=1, stream="stdout", text=PROGRAM)

    def write(stream: TextIO) -> None:
        if by == "one run":
            RunOutput(quiet=True, out=stream).write(line)
        elif by == "several runs":
            GroupOutput(quiet=True, out=stream).write("r-1", line)
        else:
            monkeypatch.setattr("sys.stdout", stream)
            render.pass_on(line.text)

    controller, terminal = os.openpty()
    with open(terminal, "w", encoding="utf-8") as stream:
        write(stream)
        shown = os.read(controller, 4096).decode()
    os.close(controller)
    with (tmp_path / "piped").open("w", encoding="utf-8", newline="") as stream:
        write(stream)

    assert shown.removeprefix("r-1  ").rstrip("\r\n") == ON_A_TERMINAL
    piped = (tmp_path / "piped").read_bytes().decode()
    assert piped.removeprefix("r-1  ") == PROGRAM + "\n"
