"""Checks a run's parameters before anything is queued: against a JSON Schema, or the script's own parser.

Where either says that a parameter is a number, `1.0` is made `1`: both mean the same to whoever reads them,
and a run with either is the same run. Defaults are not filled in: what is not given is not sent.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from corral.client.submit import script_parser
from corral.client.submit.run_file import path_from, wrong_field
from corral.client.submit.script_parser import ScriptArgument, ScriptParser
from corral.domain.errors import PARAMS_HINT, FieldError, InvalidInput
from corral.domain.paths import printable
from corral.wire.base import did_you_mean
from corral.wire.spec.run_file import RunFile, Scalar

Params = Mapping[str, Scalar]
Once = Callable[[object, Callable[[], Any]], Any]
_HOLE = re.compile(r"\{params\.([A-Za-z0-9_.-]+?)\}")
# Beyond it a float does not hold every integer.
_EXACT = 1 << 53


class ParamChecker(Protocol):
    def problems(self, params: Params) -> Iterator[FieldError]: ...

    def is_number(self, name: str) -> bool: ...


class ParamChecks:
    """What the parameters of one run file are checked against."""

    def __init__(
        self, run_file: RunFile, base_dir: Path, environ: Mapping[str, str], once: Once | None = None
    ) -> None:
        once = once or (lambda _, make: make())
        self._against: list[ParamChecker] = []
        self.notes: list[str] = []
        if run_file.params_schema is not None:
            path = path_from(base_dir, run_file.params_schema)
            self._against.append(once(("schema", path), lambda: SchemaChecker.load(path)))
        if run_file.params_from is not None:
            path = path_from(base_dir, run_file.params_from)
            parser = once(("parser", path), lambda: _parser(path, environ))
            self._against.append(ScriptChecker(parser, run_file.argv))
            if parser.note:
                self.notes.append(parser.note)
        self.notes += _unused(run_file)

    def checked(self, variants: Sequence[Params]) -> list[dict[str, Scalar]]:
        return checked_params(self._against, variants)


def checked_params(checkers: Sequence[ParamChecker], variants: Sequence[Params]) -> list[dict[str, Scalar]]:
    """The parameters of each run, numbers in one form. InvalidInput names all that is wrong, once."""
    found: dict[FieldError, None] = {}
    for params in variants if checkers else ():
        for against in checkers:
            found.update(dict.fromkeys(against.problems(params)))
        if len(found) >= 100:
            break
    if found:
        lines = "; ".join(f"`{f.path}` {f.message}" for f in list(found)[:20])
        raise InvalidInput(
            f"the parameters are not valid: {lines}",
            hint=PARAMS_HINT,
            fields=list(found),
        )
    return [{name: _form(checkers, name, value) for name, value in params.items()} for params in variants]


def _form(checkers: Sequence[ParamChecker], name: str, value: Scalar) -> Scalar:
    whole = isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT
    if whole and any(against.is_number(name) for against in checkers):
        return int(value)
    return value


def _parser(path: Path, environ: Mapping[str, str]) -> ScriptParser:
    try:
        return script_parser.read(path, environ)
    except InvalidInput as error:
        raise wrong_field("params_from", error.message, hint=error.hint) from None


def _wrong_schema(message: str) -> InvalidInput:
    return wrong_field(
        "params_schema", message, hint="`params_schema` names a file that holds a JSON Schema of the params."
    )


def _unused(run_file: RunFile) -> Iterator[str]:
    """Parameters that the command does not name, although it names others."""
    used = {name for text in run_file.argv for name in _HOLE.findall(text)}
    for name in (*run_file.params, *run_file.sweep) if used else ():
        if name not in used and not name.startswith("train."):
            yield f"params.{name} is not in argv; the command finds it in CORRAL_SPEC alone"


class SchemaChecker:
    """A JSON Schema of the whole table of parameters."""

    def __init__(self, schema: dict[str, Any], validator: Any) -> None:
        self._schema = schema
        self._validator = validator

    @classmethod
    def load(cls, path: Path) -> SchemaChecker:
        shown = printable(str(path))
        try:
            return cls.parse(path.read_text(encoding="utf-8-sig"), shown)
        except (OSError, UnicodeDecodeError) as error:
            raise _wrong_schema(f"{shown} cannot be read: {error}") from None

    @classmethod
    def parse(cls, text: str, shown: str) -> SchemaChecker:
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _wrong_schema(f"{shown} cannot be read: {error}") from None
        if not isinstance(schema, dict):
            raise _wrong_schema(f"{shown} is not a JSON Schema: it is no object")
        try:
            library = importlib.import_module("jsonschema_rs")
        except ImportError:
            raise InvalidInput(
                "`params_schema` needs a validator of JSON Schemas, which is not installed",
                hint="Install it: `pip install 'corral[schema]'`.",
                fields=[FieldError("params_schema", "needs `pip install 'corral[schema]'`")],
            ) from None
        try:
            return cls(schema, library.validator_for(schema, retriever=_not_from_elsewhere))
        except ValueError as error:
            message = str(getattr(error, "message", error)).splitlines()[0]
            raise _wrong_schema(f"{shown} is not a JSON Schema: {message}") from None

    def problems(self, params: Params) -> Iterator[FieldError]:
        for error in self._validator.iter_errors(dict(params)):
            path = ".".join(["params", *map(str, error.instance_path)])
            unexpected = getattr(error.kind, "unexpected", None)
            if not unexpected:
                yield FieldError(path, error.message)
            for name in unexpected or ():
                near = did_you_mean(name, self._schema.get("properties", {}))
                yield FieldError(f"params.{name}", f"is not a parameter of the schema{near}")

    def is_number(self, name: str) -> bool:
        properties = self._schema.get("properties", {})
        return isinstance(properties, dict) and bool(_types(self._schema, properties.get(name)) & _NUMBERS)


_NUMBERS = {"number", "integer"}


def _types(root: dict[str, Any], part: Any, depth: int = 0) -> set[str]:
    """Every type that the part of a schema names, in any of its branches."""
    if not isinstance(part, dict) or depth > 20:
        return set()
    given = part.get("type", [])
    found = {given} if isinstance(given, str) else {text for text in given if isinstance(text, str)}
    for word in ("anyOf", "oneOf", "allOf"):
        for branch in part.get(word, []) if isinstance(part.get(word), list) else []:
            found |= _types(root, branch, depth + 1)
    if isinstance(ref := part.get("$ref"), str) and ref.startswith("#/"):
        inner: Any = root
        for key in ref[2:].split("/"):
            inner = inner.get(key) if isinstance(inner, dict) else None
        found |= _types(root, inner, depth + 1)
    return found


def _not_from_elsewhere(uri: str) -> Any:
    raise ValueError(f"{uri} is not in the file, and a schema is not fetched from elsewhere")


# By `nargs`; what is not here takes all that follow.
_TAKES = {None: 1, "?": 1}


class ScriptChecker:
    """The script's own parser, and the command line that it will be given."""

    def __init__(self, parser: ScriptParser, argv: Sequence[str]) -> None:
        self._parser = parser
        self._words = _words_after(parser.script, argv)
        self._known = parser.known(self._words or ())
        self._by_flag = {flag: argument for argument in self._known for flag in argument.flags}
        self._fed = self._feeding()

    def problems(self, params: Params) -> Iterator[FieldError]:
        for name, value in params.items():
            argument = self._argument(name)
            if argument is not None:
                yield from self._value(name, value, argument)
            elif not self._parser.partial:
                near = did_you_mean(name, [argument.dest for argument in self._known])
                yield FieldError(f"params.{name}", f"is not an argument of {self._parser.script}{near}")
        if self._words is not None:
            yield from self._flags()
            yield from self._lacking(params)

    def is_number(self, name: str) -> bool:
        argument = self._argument(name)
        return argument is not None and argument.kind == "float"

    def _argument(self, name: str) -> ScriptArgument | None:
        if name in self._fed:
            return self._fed[name]
        dest = name.replace("-", "_")
        return next((argument for argument in self._known if argument.dest == dest), None)

    def _feeding(self) -> dict[str, ScriptArgument]:
        """Which argument each parameter is given to: `--lr {params.x}` or `--lr={params.x}`."""
        fed: dict[str, ScriptArgument] = {}
        before = ""
        for word in self._words or ():
            flag = word.split("=", 1)[0] if word.startswith("--") and "=" in word else before
            for name in _HOLE.findall(word):
                if flag in self._by_flag:
                    fed[name] = self._by_flag[flag]
            before = word
        return fed

    def _value(self, name: str, value: Scalar, argument: ScriptArgument) -> Iterator[FieldError]:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        shown = argument.flags[0] if argument.flags else argument.dest
        path = f"params.{name}"
        if argument.nargs == 0:
            if name in self._fed:
                yield FieldError(path, f"is given to {shown}, which takes no value")
            return
        made: Any = text
        try:
            if argument.kind in ("int", "float"):
                made = int(text) if argument.kind == "int" else float(text)
        except ValueError:
            wanted = "an integer" if argument.kind == "int" else "a number"
            yield FieldError(path, f"is {text!r}; {shown} takes {wanted}")
            return
        if argument.choices is not None and argument.kind != "other" and made not in argument.choices:
            choices = ", ".join(map(str, argument.choices[:20]))
            near = did_you_mean(text, [str(choice) for choice in argument.choices])
            yield FieldError(path, f"is {text!r}; {shown} takes one of {choices}{near}")

    def _flags(self) -> Iterator[FieldError]:
        for word in self._words or ():
            flag = word.split("=", 1)[0]
            if not flag.startswith("--") or flag == "--" or self._parser.partial:
                continue
            # The parser itself takes the beginning of a flag for it.
            if not any(known.startswith(flag) for known in self._by_flag):
                near = did_you_mean(flag, self._by_flag)
                yield FieldError("argv", f"has {flag}, which {self._parser.script} does not take{near}")

    def _lacking(self, params: Params) -> Iterator[FieldError]:
        words = self._words or ()
        given = {word.split("=", 1)[0] for word in words}
        places = sum(1 for argument in self._known if not argument.flags and argument.required)
        for argument in self._known:
            if not argument.required:
                continue
            if argument.flags:
                there = any(
                    flag.startswith(word) for flag in argument.flags for word in given if len(word) > 1
                )
            else:
                there = len(self._free(words)) >= places
            if not there:
                shown = argument.flags[0] if argument.flags else argument.dest
                name = next((key for key in params if key.replace("-", "_") == argument.dest), None)
                add = f': add "{shown}", "{{params.{name}}}"' if name and argument.flags else ""
                yield FieldError("argv", f"lacks {shown}, which {self._parser.script} requires{add}")

    def _free(self, words: Sequence[str]) -> list[str]:
        """Words that belong to no flag."""
        free: list[str] = []
        left = 0
        for word in words:
            if word.startswith("-") and word.split("=", 1)[0] in self._by_flag:
                nargs = self._by_flag[word.split("=", 1)[0]].nargs
                many = nargs if isinstance(nargs, int) else _TAKES.get(nargs, len(words))
                left = 0 if "=" in word else many
            elif left and not word.startswith("--"):
                left -= 1
            elif word not in self._parser.commands:
                free.append(word)
        return free


def _words_after(script: str, argv: Sequence[str]) -> list[str] | None:
    """What the command gives to the script; None where the script is not in it."""
    for index, word in enumerate(argv):
        if word.rsplit("/", 1)[-1] == script:
            return list(argv[index + 1 :])
    return None
