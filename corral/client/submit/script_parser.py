"""What a script's argparse parser takes: asked of the parser itself, or read from the script's text."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.client.submit import read_parser
from corral.domain.errors import InvalidInput
from corral.domain.paths import printable

# Long enough to import a large library; what takes longer does its work before it parses.
LIMIT_S = 60.0
_SCRIPT_HINT = "`params_from` names a script; its path starts from the folder that the run file is in."
_NO_VALUE = ("store_true", "store_false", "store_const", "append_const", "count", "help", "version")


@dataclass(frozen=True)
class ScriptArgument:
    """One argument. `kind` is str, int, float, bool or other; `nargs` as argparse has it."""

    dest: str
    flags: tuple[str, ...] = ()
    kind: str = "str"
    nargs: int | str | None = None
    choices: tuple[Any, ...] | None = None
    required: bool = False


@dataclass(frozen=True)
class ScriptParser:
    """`partial` when there may be more arguments than these; `note` when it was read from the text alone."""

    script: str
    arguments: tuple[ScriptArgument, ...] = ()
    commands: Mapping[str, ScriptParser] = field(default_factory=dict)
    partial: bool = False
    note: str = ""

    def known(self, words: Sequence[str]) -> tuple[ScriptArgument, ...]:
        """With those of the subcommand that is among the words; of all of them if none is."""
        named = [self.commands[word] for word in words if word in self.commands]
        below = named[:1] or list(self.commands.values())
        return (*self.arguments, *(argument for parser in below for argument in parser.known(words)))


def read(script: Path, environ: Mapping[str, str], *, limit_s: float = LIMIT_S) -> ScriptParser:
    """InvalidInput where the script cannot be read, or neither way finds a parser."""
    shown = script.name
    try:
        text = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{printable(str(script))} cannot be read: {error}", hint=_SCRIPT_HINT) from None
    said = _ask(script, environ, limit_s)
    if "error" not in said:
        return _parser(said, shown)
    found = from_text(text, shown)
    if found is None:
        raise InvalidInput(
            f"no argparse parser was found in {printable(str(script))}: {said['error']}",
            hint="`params_from` names a script that uses argparse; `params_schema` takes a JSON Schema.",
        )
    note = f"the arguments of {shown} were read from its text, since it could not be run: {said['error']}"
    return ScriptParser(found.script, found.arguments, {}, found.partial, note)


def _ask(script: Path, environ: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    """What `read_parser` says of it. Killed with all it started when its time is over."""
    env = {key: value for key, value in environ.items() if not key.startswith("CORRAL_")}
    # It only parses: no GPU is taken, and nothing is left beside the script.
    env |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "said.json"
        child = subprocess.Popen(
            [sys.executable, "-P", read_parser.__file__, str(script), str(out)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=script.parent,
            env=env,
            process_group=None if sys.platform == "win32" else 0,
        )
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            _kill(child)
            return {"error": f"it did not come to parse within {limit_s:g} s"}
        except BaseException:
            _kill(child)
            raise
        try:
            said: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"error": f"it ended with code {code} before it parsed"}
    return said


def _kill(child: subprocess.Popen[bytes]) -> None:
    """With its group, which it leads: a script may have started others, which would outlive it."""
    if sys.platform != "win32":
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def _parser(said: Mapping[str, Any], script: str) -> ScriptParser:
    def as_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
        return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}

    arguments = tuple(ScriptArgument(**as_tuples(argument)) for argument in said["arguments"])
    commands = {name: _parser(below, script) for name, below in said["commands"].items()}
    return ScriptParser(script, arguments, commands, bool(said.get("partial")))


def from_text(text: str, script: str) -> ScriptParser | None:
    """What can be read without running it; None if no parser is found."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    added = [call for call in calls if _called(call) == "add_argument"]
    if not added:
        return None
    arguments = [argument for call in added if (argument := _argument(call)) is not None]
    # Subcommands and parents cannot be told apart here; names made in a loop cannot be read at all.
    partial = len(arguments) < len(added) or any(_called(call) == "add_subparsers" for call in calls)
    partial = partial or any(keyword.arg == "parents" for call in calls for keyword in call.keywords)
    return ScriptParser(script, tuple(arguments), partial=partial)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _argument(call: ast.Call) -> ScriptArgument | None:
    names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if not names or len(names) < len(call.args):
        return None
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    flags = tuple(name for name in names if name.startswith("-"))
    long = next((name for name in flags if name.startswith("--")), (flags or names)[0])
    # An action that is not a word is a class of its own, which may take anything.
    action = _literal(given.get("action"), "other" if "action" in given else "")
    nargs = 0 if action in _NO_VALUE else _literal(given.get("nargs"), None)
    choices = _literal(given.get("choices"), None)
    positional = not flags and nargs not in ("?", "*")
    return ScriptArgument(
        dest=_literal(given.get("dest"), long.lstrip("-").replace("-", "_")),
        flags=flags,
        kind=_kind(given.get("type")),
        nargs=nargs,
        choices=tuple(choices) if isinstance(choices, list | tuple | set) else None,
        required=bool(_literal(given.get("required"), positional)),
    )


def _kind(node: ast.expr | None) -> str:
    if node is None:
        return "str"
    return node.id if isinstance(node, ast.Name) and node.id in ("str", "int", "float", "bool") else "other"


def _literal(node: ast.expr | None, default: Any) -> Any:
    if node is None:
        return default
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return default
