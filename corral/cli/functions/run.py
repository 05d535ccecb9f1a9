"""`corral fn run`: calls one function and prints what it returns."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import time
from typing import Annotated, Any

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.functions.app_file import backend_of, load_app
from corral.cli.options import AsJson
from corral.domain.errors import CorralError, InvalidInput, NotFound
from corral.errors import FunctionError
from corral.functions import backend as backends
from corral.functions.calls import Call
from corral.functions.deployed import function as lookup
from corral.functions.function import Function, Generator
from corral.functions.named_values import StandIn, stand_ins

_WATCH_S = 0.5
# How long to wait, after a call has ended, for its first output and for each more: a host sends output four
# times a second.
_FIRST_OUTPUT_S = 1.0
_MORE_OUTPUT_S = 0.5
# A caller that waits longer than this is told what for.
_PATIENCE_S = 3.0
_PARAM_HINT = "Parameters are of a class: `corral fn run demo.py::Model.predict --param size=13`."
PREPARING_WORDS = "building"


def run_function(
    file: Annotated[
        str,
        typer.Argument(
            help="A function of a file, `demo.py::embed`, or an endpoint.", autocompletion=complete.endpoints
        ),
    ],
    arg: Annotated[
        list[str] | None, typer.Option("--arg", "-a", help="A value, or NAME=VALUE; JSON or text.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", help="NAME=VALUE of the class, for `demo.py::Model.predict`; repeat."),
    ] = None,
    here: Annotated[
        bool, typer.Option("--local", help="Run it in this process instead of on the fleet.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Call one function, of a file or of an endpoint, and print what it returns."""
    args, kwargs = _arguments(arg or [])
    params = _params(param or [])
    if here:
        found: Any = _own(file, params)
        _check_arguments(found, args, kwargs)
        value = found(*args, **kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        _show(list(value) if isinstance(found, Generator) else value, as_json=as_json)
        return
    with connect() as corral:
        backends.set_backend(backend_of(corral))
        handle: Any = _own(file, params) if ".py" in file else _deployed_one(file, params)
        _check_arguments(handle, args, kwargs)
        if isinstance(handle, Generator):
            with stand_ins():
                for item in handle.stream(*args, **kwargs):
                    _show(item, as_json=as_json)
            return
        call = handle.spawn(*args, **kwargs)
        render.note(f"corral: call {call.id}")
        try:
            _tell_what_it_waits_for(call)
            # The shell has none of the program's classes loaded, and only shows the value.
            with stand_ins():
                value = call.result()
        except KeyboardInterrupt:
            call.cancel()
            render.note(f"corral: call {call.id} is cancelled")
            raise
        except Exception as error:  # noqa: BLE001 - what the function raised is shown, whatever it is
            _show_output(call)
            if error.__cause__ is not None:
                render.note(str(error.__cause__).strip())
            raise CorralError(
                f"{type(error).__name__}: {error}", hint=f"See `corral calls show {call.id}`."
            ) from None
        _show_output(call)
        _show(value, as_json=as_json)


def _check_arguments(handle: Function[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    try:
        handle.check(tuple(args), kwargs)
    except TypeError as error:
        hint = "Give arguments as `--arg VALUE` or `--arg NAME=VALUE`."
        raise InvalidInput(str(error), hint=hint) from None


def _show_output(call: Call[Any]) -> None:
    """Print what the call printed; the last of it may still be on its way from the host."""
    shown, wait_s, since = 0, _FIRST_OUTPUT_S, time.monotonic()
    while True:
        for line in itertools.islice(call.logs(), shown, None):
            render.note(line)
            shown, wait_s, since = shown + 1, _MORE_OUTPUT_S, time.monotonic()
        if time.monotonic() - since > wait_s:
            return
        time.sleep(0.05)


def _params(given: list[str]) -> dict[str, Any]:
    args, params = _arguments(given)
    if args:
        raise InvalidInput(f"--param {args[0]!r} is not NAME=VALUE", hint=_PARAM_HINT)
    return params


def _own(file: str, params: dict[str, Any]) -> Function[..., Any]:
    """A function of a file, or a method of a class with these parameters; the others are its defaults."""
    _, member = load_app(file)
    method = file.partition("::")[2].partition(".")[2]
    if member is None or (member.is_class and not method):
        raise InvalidInput("name one function: `corral fn run demo.py::embed`, or `demo.py::Model.predict`")
    if params and not member.is_class:
        raise InvalidInput(f"{member.name} is no class, and has no parameters", hint=_PARAM_HINT)
    if member.is_class:
        try:
            found: Function[..., Any] = getattr(member.target(**params), method)
        except TypeError as error:
            raise InvalidInput(str(error), hint="Give its parameters as `--param NAME=VALUE`.") from None
        return found
    kind = Generator if next(iter(member.callees.values())).kind == "generator" else Function
    return kind(member, getattr(member.target, "local", member.target))


def _deployed_one(name: str, params: dict[str, Any]) -> Function[..., Any]:
    try:
        return lookup(name, **params)
    except FunctionError as error:
        raise NotFound(
            str(error), hint="Name an endpoint, or a function of a file: `demo.py::embed`."
        ) from None


def _tell_what_it_waits_for(call: Call[Any]) -> None:
    """Say what the call waits for: a build may take minutes, and a host with room may never come."""
    told, began = "", time.monotonic()
    while not call.done():
        waiting = call.waiting()
        if waiting is None:
            return
        preparing = PREPARING_WORDS in waiting
        if waiting != told and (preparing or time.monotonic() - began > _PATIENCE_S):
            render.note(f"corral: {waiting}" if preparing else f"corral: it waits for {waiting}")
            told = waiting
        time.sleep(_WATCH_S)


def _arguments(given: list[str]) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if equals and key.isidentifier():
            kwargs[key] = _value(value)
        else:
            args.append(_value(text))
    return args, kwargs


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _show(value: Any, *, as_json: bool) -> None:
    render.pass_on(
        json.dumps(value, default=_as_json) if as_json else value if isinstance(value, str) else repr(value)
    )


def _as_json(value: Any) -> Any:
    return value.parts if isinstance(value, StandIn) else repr(value)
