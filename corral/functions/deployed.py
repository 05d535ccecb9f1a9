"""Functions that are deployed already, found by name: `corral.function("demo.embed")`."""

from __future__ import annotations

from typing import Any, NoReturn

from corral.errors import FunctionError
from corral.functions.app import App
from corral.functions.backend import EndpointTarget, backend
from corral.functions.classes import encoded_parameters
from corral.functions.function import Function, Generator
from corral.functions.member import Callee, Member
from corral.functions.options import FunctionSettings
from corral.functions.pickle_names import pickle_as
from corral.functions.pickling import pickled, pickled_by_name
from corral.functions.program import main_name


class DeployedFunction(Function[..., Any]):
    """Runs wherever it is deployed; there is nothing of it here."""

    target: EndpointTarget

    def _target(self) -> EndpointTarget:
        return self.target

    def _pickled(self, value: Any, what: str) -> bytes:
        same = self.target.module is not None and self.target.module == main_name()
        return (pickled_by_name if same else pickled)(value, what)


class DeployedGenerator(DeployedFunction, Generator[..., Any]):
    """Has `stream` instead of `remote`."""


pickle_as("corral.functions.lookup", Deployed=DeployedFunction, DeployedGenerator=DeployedGenerator)


def function(
    name: str, *, project: str | None = None, allow_pickle: bool = False, **params: Any
) -> Function[..., Any]:
    """The function of an endpoint, `"demo.embed"`, or a method of a class with these parameters,
    `"demo.Model.predict"`. Calls go to whichever version serves. `allow_pickle` is as of `App`."""
    target, tables, own = backend().look_up(project, name)
    if not own and len(tables) > 1:
        raise FunctionError(
            f"{name} is a class; name a method: {', '.join(f'{name}.{one}' for one in tables)}"
        )
    called = own or next(iter(tables))
    if called not in tables:
        raise FunctionError(f"{target.endpoint} has no {called}; it has: {', '.join(tables)}")
    table = tables[called]
    if table["kind"] == "web":
        raise FunctionError(f"{name} is served over HTTP at {table['path']}, and takes no other calls")

    def nowhere(*_: Any, **__: Any) -> NoReturn:
        raise FunctionError(f"{name} is deployed, and not here: call it with .remote(...)")

    nowhere.__name__ = nowhere.__qualname__ = called
    callee = Callee(called, table["kind"], table["is_async"])
    app, _, member_name = target.endpoint.partition(".")
    own_app = App(app, allow_pickle=allow_pickle)
    member = Member(own_app, member_name, nowhere, "", called, FunctionSettings(), {called: callee})
    packed = encoded_parameters(params, f"a parameter of {name}")
    kind = DeployedGenerator if table["kind"] == "generator" else DeployedFunction
    made = kind(member, nowhere, function=called, params=packed, changes={"options": table["options"]})
    made.target = target
    return made
