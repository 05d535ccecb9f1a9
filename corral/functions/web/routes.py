"""What a web function cannot do, found before it is deployed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from corral.domain import web_paths
from corral.functions.member import Callee, Member
from corral.functions.web.types import is_known, is_simple, parameter_hints


def route_problems(member: Member) -> list[str]:
    """A sentence for each thing that no request could ever do right; none for what is no web function."""
    routes = [callee for callee in member.callees.values() if callee.path is not None]
    return [f"{member.name}: {problem}" for callee in routes for problem in _problems(member, callee)]


def _problems(member: Member, callee: Callee) -> Iterator[str]:
    owner = member.qualname.rpartition(".")[0]
    if owner and not owner.endswith("<locals>"):
        yield f"@app.web serves functions, and this is a method of {owner}; write a function that calls it"
        return
    if callee.batch is not None:
        yield "a request is answered by itself, so it cannot be gathered into a batch"
    try:
        in_path = web_paths.parameters(callee.path or "")
    except ValueError as error:
        yield str(error)
        return
    signature = inspect.signature(member.target).parameters
    for name in in_path:
        if name not in signature:
            yield f"its path has {{{name}}}, and the function has no parameter {name}"
    try:
        hints = parameter_hints(member.target)
    except Exception as error:  # noqa: BLE001 - hints are any code
        yield f"the types of its parameters cannot be read: {type(error).__name__}: {error}"
        return
    for name, one in signature.items():
        if why := _cannot_give(one, hints.get(name, Any), in_path=name in in_path):
            yield f"its parameter {name} {why}"


def _cannot_give(parameter: inspect.Parameter, kind: Any, *, in_path: bool) -> str:
    """Why no request gives this parameter."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        return "takes what has no name; a request gives parameters by name"
    named = getattr(kind, "__name__", str(kind))
    if in_path and not is_simple(kind):
        return f"is a {named}, which a part of a path cannot be"
    if not is_known(kind):
        return f"is a {named}, which a request cannot give; take plain data, a dataclass or a model"
    return ""
