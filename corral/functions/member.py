"""One function or class of an app, and what is to be known of it on both sides of a call."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from corral.functions import serialize as codec
from corral.functions.options import Batch, FunctionSettings
from corral.functions.program import ModuleHome, attribute

_BY_VALUE = ("<locals>", "<lambda>")


def endpoint_name(text: str) -> str:
    """What `app.function` is deployed as: names end in a letter or a digit."""
    return text[:64].rstrip("._-")


@dataclass(frozen=True)
class Callee:
    """One thing that can be called: the function itself, or a method."""

    name: str
    kind: str
    is_async: bool
    batch: Batch | None = None
    path: str | None = None
    method: str | None = None
    # A method may have its own instead of its class's.
    settings: FunctionSettings | None = None

    def table(self, base: FunctionSettings) -> dict[str, Any]:
        found: dict[str, Any] = {
            "kind": "web" if self.path else self.kind,
            "is_async": self.is_async,
            "options": (self.settings or base).call_options(),
        }
        if self.batch is not None:
            found |= self.batch.table()
        if base.schedule is not None:
            form, data = codec.encode([[], {}])
            args = {"format": form, "body": codec.as_text(data), "size": len(data)}
            found |= {"schedule": base.schedule.table(), "schedule_args": args}
        if self.path is not None:
            found |= {"path": self.path, "method": self.method, "streams": self.kind == "generator"}
        return found


@dataclass(frozen=True, eq=False)
class Member:
    """`target` is the function or class as the user wrote it, with what else decorates it."""

    app: AppMembers
    name: str
    target: Any
    module: str
    qualname: str
    settings: FunctionSettings
    callees: dict[str, Callee] = field(default_factory=dict)
    is_class: bool = False

    @property
    def endpoint(self) -> str:
        return endpoint_name(f"{self.app.name}.{self.name}")

    def home(self) -> ModuleHome | None:
        """The module that an instance imports to find it; None if it cannot be imported, and is pickled."""
        home = ModuleHome.of(self.module)
        unnamed = any(part in self.qualname for part in _BY_VALUE)
        return None if home is None or unnamed or not self._is_there() else home

    def _is_there(self) -> bool:
        """Whether importing the module and walking the name leads to it, or to what decorates it."""
        found = attribute(sys.modules.get(self.module), self.qualname)
        own = getattr(found, "member", None) or getattr(found, "_corral_member", None)
        # While the module is still being imported, the name is not bound yet.
        return found is None or own is self or found is self.target

    def functions(self) -> dict[str, Any]:
        return {name: callee.table(self.settings) for name, callee in self.callees.items()}


@dataclass(eq=False)
class AppMembers:
    """An app as its members know it: its name and project, the files that travel with it, and the others."""

    name: str
    project: str | None = None
    include: tuple[str, ...] = ()
    members: dict[str, Member] = field(default_factory=dict)
    # Whether results that are no plain data may be unpickled where they are asked for.
    allow_pickle: bool = False

    def add(self, member: Member) -> None:
        earlier = self.members.get(member.name)
        if earlier is not None and earlier.qualname != member.qualname:
            raise ValueError(f"{self.name} has two members named {member.name!r}; give one another `name`")
        for other in self.members.values():
            if other.name != member.name and other.endpoint == member.endpoint:
                raise ValueError(
                    f"{other.name} and {member.name} would both be deployed as {member.endpoint};"
                    " give one another `name`"
                )
        self.members[member.name] = member


def check_scheduled(fn: Callable[..., Any], batch: Batch | None) -> None:
    """A clock gives no arguments."""
    needs = [
        one.name
        for one in inspect.signature(fn).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needs or batch is not None:
        name = getattr(fn, "__name__", "the function")
        raise TypeError(
            f"{name}() has a schedule, which calls it without arguments, and needs "
            f"{', '.join(needs) or 'items of a batch'}; give its parameters defaults"
        )


def is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)


def kind_of(fn: Callable[..., Any]) -> str:
    is_generator = inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)
    return "generator" if is_generator else "function"
