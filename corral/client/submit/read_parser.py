"""Run as a program of its own: says what a script's argparse parser takes, at the moment it would parse.

    python -P read_parser.py SCRIPT OUT

The script runs as far as its first parse, and ends there. What it prints goes where the caller sends it.
It uses the standard library alone, and nothing of Corral: it runs beside the script's own modules.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import runpy
import signal
import sys
from typing import Any, NoReturn

_TYPES: dict[Any, str] = {None: "str", str: "str", int: "int", float: "float", bool: "bool"}
_MOST_CHOICES = 1000


def describe(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The fields of a `ScriptParser` and of its `ScriptArgument`s."""
    arguments = []
    commands: dict[str, Any] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = {str(name): describe(below) for name, below in action.choices.items()}
            continue
        # `type` may be something that cannot be a key of a table.
        kind = _TYPES.get(action.type, "other") if isinstance(action.type, type | None) else "other"
        arguments.append(
            {
                "flags": list(action.option_strings),
                "dest": str(action.dest),
                "kind": kind,
                "nargs": action.nargs if isinstance(action.nargs, int | str) else None,
                "choices": _choices(action.choices),
                "required": bool(action.required),
            }
        )
    return {"arguments": arguments, "commands": commands}


def _choices(given: Any) -> list[Any] | None:
    if given is None:
        return None
    found: list[Any] = []
    for value in given:
        if len(found) == _MOST_CHOICES or not isinstance(value, str | int | float):
            return None
        found.append(value)
    return found


def _leave(out: str, said: dict[str, Any]) -> NoReturn:
    with open(out, "w", encoding="utf-8") as file:
        json.dump(said, file)
    # With whatever the script started; not by an exception, which it might catch.
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def main() -> None:
    script, out = sys.argv[1:]

    def stop(parser: argparse.ArgumentParser, *_: object, partial: bool, **__: object) -> NoReturn:
        _leave(out, {**describe(parser), "partial": partial})

    for name in ("args", "intermixed_args", "known_args", "known_intermixed_args"):
        # What a parser of known arguments does not know it leaves to somebody else.
        patched = functools.partialmethod(stop, partial=name.startswith("known"))
        setattr(argparse.ArgumentParser, f"parse_{name}", patched)
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    sys.argv = [script]
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:  # noqa: BLE001 - whatever the script raises is the answer.
        _leave(out, {"error": f"{type(error).__name__}: {error}"[:500]})
    _leave(out, {"error": "it ended without parsing its arguments"})


if __name__ == "__main__":
    main()
