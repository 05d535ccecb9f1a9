"""Calls users' functions with what they ask for: arguments are chosen by their names."""

from __future__ import annotations

import difflib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from corral.engine.environments.protocol import EnvironmentProblem

_HERE = str(Path(__file__).parent)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_LONGEST = 500


async def call(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """The result, awaited if it has to be. A function with `**anything` is given all that is offered."""
    return await awaited(function(**chosen(function, offered)))


async def awaited(value: Any) -> Any:
    """The value, awaited if it has to be."""
    return await value if inspect.isawaitable(value) else value


def attribute(given: object, name: str) -> Any:
    """What a dict or an object has by this name; None if it has not."""
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def chosen(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the offered arguments that the function names."""
    parameters = _parameters(function)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        positional = {p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY}
        return {name: value for name, value in offered.items() if name not in positional}
    return {p.name: offered[p.name] for p in parameters if p.kind in _BY_NAME and p.name in offered}


def check(function: Callable[..., Any], offered: Iterable[str], *, what: str) -> None:
    """Raise EnvironmentProblem if the function needs an argument that there is not."""
    names = list(offered)
    for parameter in _parameters(function):
        optional = parameter.default is not parameter.empty or parameter.kind in (
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.VAR_POSITIONAL,
        )
        if optional or (parameter.kind in _BY_NAME and parameter.name in names):
            continue
        raise EnvironmentProblem(
            f"{where(function)}{what} asks for an argument `{parameter.name}`, which there is not"
            f"{nearest(parameter.name, names)}",
            hint=f"Name its arguments after what it needs, of: {', '.join(names)}.",
        )


def nearest(name: str, names: Iterable[str]) -> str:
    """' (did you mean `x`?)' where one of the names is close, else nothing."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""


def warn(text: str) -> None:
    """In the run's log, which has what the environment's processes print."""
    sys.stderr.write(f"warning: {text}\n")
    sys.stderr.flush()


def awaits(function: object) -> bool:
    """Whether calling it gives something to await."""
    call_method = getattr(function, "__call__", None)  # noqa: B004 - an instance may have an async one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call_method)


def where(function: object) -> str:
    """'file.py:12: ' of a function, or nothing if that is unknown."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}: "


def described(error: BaseException) -> str:
    """An exception in one line, with the place in the user's code that it came from."""
    said = last_line(error)[:_LONGEST]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_HERE)]
    own = [f for f in frames if "/lib/python" not in f.filename and not f.filename.startswith("<")]
    if not (own or frames):
        return said
    frame = (own or frames)[-1]
    return f"{said} ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"


def last_line(error: BaseException) -> str:
    """The last line of a traceback, which says what was raised."""
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return text[-1] if text else type(error).__name__


def name_of(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def names(function: Callable[..., Any]) -> list[str]:
    return [parameter.name for parameter in _parameters(function)]


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # A function in C without a signature: nothing can be chosen for it.
        return []
