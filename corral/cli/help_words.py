"""How `--help` names what an option takes: in words, and not as Python's types."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

_LIST = re.compile(r"<list\[(.*)\]>")
_WORDS = {
    "<str>": "TEXT",
    "<int>": "NUMBER",
    "<float>": "NUMBER",
    "<int range>": "NUMBER",
    "<float range>": "NUMBER",
    "<path>": "PATH",
    "<file>": "PATH",
    "<directory>": "PATH",
}


def in_words(command: Any) -> Any:
    """The same command; older versions of Typer use words of their own."""
    for below in getattr(command, "commands", {}).values():
        in_words(below)
    for param in command.params:
        show = getattr(param, "display_type_rich", None)
        if show is not None:
            is_argument = param.param_type_name == "argument"
            param.display_type_rich = _no_type if is_argument else partial(_shown, show)
    return command


def _no_type(ctx: Any = None) -> None:
    """An argument's name says what it is."""


def _shown(show: Any, ctx: Any = None) -> str | None:
    found: str | None = show(ctx=ctx)
    if found is None:
        return None
    one = _LIST.sub(r"<\1>", found)
    return _WORDS.get(one, one.strip("<>") if "|" in one else one)
