"""`app = corral.App("demo")`, and the decorators that make functions and classes of a program its members."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar, Unpack, dataclass_transform, overload

from corral.functions.classes import class_member, parameter
from corral.functions.decorator_options import ClassOptions, FunctionOptions, refuse_secrets, settings_of
from corral.functions.function import AsyncFunction, Function, Generator, handle_of
from corral.functions.member import AppMembers, Callee, Member, check_scheduled, is_async, kind_of
from corral.functions.options import Environment, FunctionResources, FunctionSettings, as_executors, as_names

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,40}[A-Za-z0-9])?")
_WEB_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")


class App(AppMembers):
    """A set of functions that belong together. What is said here holds for all of them unless they differ.

    `python` are requirements as pip takes them; without them and `python_version` a function runs with the
    Python of its host. `find_links` is a folder of wheels beside the index, `wheels` one instead of it.
    `include` are patterns of more files that travel with the code, as "data/*.json". `allow_pickle` lets
    results that are no plain data be unpickled where they are asked for: a host that runs the functions can
    run code there then. The rest is as in `corral.FunctionOptions`.
    """

    def __init__(
        self,
        name: str,
        *,
        python: Sequence[str] = (),
        python_version: str | None = None,
        find_links: str | None = None,
        wheels: str | None = None,
        system: Sequence[str] = (),
        gpu: str | int | Sequence[str] | None = None,
        memory: str | int | None = None,
        executors: Sequence[str] | Literal["cheapest"] = (),
        secrets: Sequence[str] = (),
        env: dict[str, str] | None = None,
        public_env: Sequence[str] = (),
        project: str | None = None,
        include: Sequence[str] = (),
        allow_pickle: bool = False,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for an app: letters, digits, `.`, `_` and `-`")
        if find_links and wheels:
            raise ValueError("find_links is beside the index, wheels instead of it; give one of them")
        super().__init__(name, project, tuple(include), allow_pickle=allow_pickle)
        self._settings = FunctionSettings(
            environment=Environment(as_names(python, "python"), python_version, find_links, wheels),
            resources=FunctionResources(gpu=gpu, memory=memory, system=as_names(system, "system")),
            secrets=as_names(secrets, "secrets"),
            env=tuple(sorted((env or {}).items())),
            public_env=as_names(public_env, "public_env"),
            executors=as_executors(executors),
        )
        refuse_secrets(self._settings)

    def __repr__(self) -> str:
        return f"corral.App({self.name!r})"

    def function(self, **options: Unpack[FunctionOptions]) -> FunctionDecorator:
        """Make a function one that can be called on the fleet. Called plainly it stays what it is.

        `corral.FunctionOptions` says what each option means.
        """
        return self._decorator(options)

    @dataclass_transform(kw_only_default=True, field_specifiers=(parameter,))
    def cls(self, **options: Unpack[ClassOptions]) -> Callable[[type[T]], type[T]]:
        """Make a class one whose instances live on the fleet, one process for each set of parameters.

        `corral.ClassOptions` says what each option means.
        """
        settings = settings_of(self._settings, options, known=ClassOptions.__optional_keys__)

        def decorate(cls: type[T]) -> type[T]:
            self.add(class_member(cls, self, settings, name=options.get("name")))
            return cls

        return decorate

    def web(
        self, path: str, *, method: str = "POST", **options: Unpack[FunctionOptions]
    ) -> FunctionDecorator:
        """Serve a function over HTTP: parameters from the path, the body or the query, typed; the result as
        JSON. `path` may have parameters: "/items/{id}", and "/files/{name:path}" for all the rest.

        The options are those of `function`.
        """
        if not path.startswith("/"):
            raise ValueError(f"a path begins with /, not {path!r}")
        if method.upper() not in _WEB_METHODS:
            raise ValueError(f"method must be one of {', '.join(_WEB_METHODS)}, not {method!r}")
        return self._decorator(options, path, method.upper())

    def _decorator(
        self, options: FunctionOptions, path: str | None = None, method: str | None = None
    ) -> FunctionDecorator:
        settings = settings_of(self._settings, options, known=FunctionOptions.__optional_keys__)
        return FunctionDecorator(self, settings, options, path, method)


@dataclass(frozen=True)
class FunctionDecorator:
    """What `@app.function(...)` gives; its overloads keep the function's own signature for type checkers."""

    app: App
    settings: FunctionSettings
    options: FunctionOptions
    path: str | None
    method: str | None

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> AsyncFunction[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, AsyncIterator[R]]) -> Generator[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Iterator[R]]) -> Generator[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R]) -> Function[P, R]: ...

    def __call__(self, fn: Callable[..., Any]) -> Any:
        if isinstance(fn, Function):
            raise TypeError(f"{fn.member.name} is decorated twice")
        if isinstance(fn, type):
            raise TypeError(f"{fn.__name__} is a class; decorate it with @app.cls()")
        if not callable(fn):
            raise TypeError(f"@app.function() decorates functions, not {fn!r}")
        batch = self.options.get("batch")
        if self.settings.schedule is not None:
            check_scheduled(fn, batch)
        plain = getattr(fn, "__name__", "function")
        called, name = ("function", "lambda") if plain == "<lambda>" else (plain, plain)
        member = Member(
            self.app,
            self.options.get("name") or name,
            fn,
            getattr(fn, "__module__", "__main__"),
            getattr(fn, "__qualname__", type(fn).__qualname__),
            self.settings,
            {called: Callee(called, kind_of(fn), is_async(fn), batch, self.path, self.method)},
        )
        self.app.add(member)
        return handle_of(fn)(member, fn)
