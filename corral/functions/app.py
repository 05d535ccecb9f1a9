"""`app = corral.App("demo")`, and the decorators that make functions and classes of a program its members."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, dataclass_transform, overload

from corral.functions.classes import Class, parameter
from corral.functions.handles import AsyncFunction, Function, Generator
from corral.functions.member import Member
from corral.functions.options import (
    Batch,
    Cron,
    Environment,
    FunctionResources,
    FunctionSettings,
    Period,
    Retries,
    Scale,
)
from corral.functions.volumes import Volume, mounts

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,40}[A-Za-z0-9])?")
_WEB_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")


class App:
    """A set of functions that belong together. What is said here holds for all of them unless they differ.

    `python` are requirements as pip takes them; none of it means the Python of the host. `find_links` is a
    folder of wheels beside the index, `wheels` one instead of it. `system` are programs or packages that a
    host must have already.
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
        secrets: Sequence[str] = (),
        env: dict[str, str] | None = None,
        project: str | None = None,
        include: Sequence[str] = (),
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for an app: letters, digits, `.`, `_` and `-`")
        if isinstance(python, str):
            raise TypeError('python takes a list of requirements, as ["numpy==2.2.*"]')
        if find_links and wheels:
            raise ValueError("find_links is beside the index, wheels instead of it; give one of them")
        self.name = name
        self.project = project
        self.include = tuple(include)
        self.members: dict[str, Member] = {}
        self._settings = FunctionSettings(
            environment=Environment(tuple(python), python_version, find_links, wheels),
            resources=FunctionResources(gpu=gpu, memory=memory, system=_names(system)),
            secrets=tuple(secrets),
            env=tuple(sorted((env or {}).items())),
        )

    def __repr__(self) -> str:
        return f"corral.App({self.name!r})"

    def function(
        self,
        *,
        name: str | None = None,
        python: Sequence[str] | None = None,
        gpu: str | int | Sequence[str] | None = None,
        memory: str | int | None = None,
        cores: int | None = None,
        labels: Sequence[str] = (),
        hosts: Sequence[str] = (),
        system: Sequence[str] = (),
        retries: Retries | int | None = None,
        timeout: float | str | None = None,
        secrets: Sequence[str] = (),
        env: dict[str, str] | None = None,
        min_instances: int = 0,
        max_instances: int = 1,
        idle: float | str = "60s",
        concurrency: int = 1,
        queue_delay: float | str | None = "4s",
        per_instance: int | None = None,
        max_memory: str | int | None = None,
        batch: Batch | None = None,
        keep: float | str = "7d",
        ttl: float | str | None = None,
        volumes: Mapping[str, Volume] | None = None,
        schedule: Cron | Period | None = None,
    ) -> _Decorator:
        """Make a function one that can be called on the fleet. Called plainly it stays what it is."""
        settings = self._with(
            python=python,
            resources=FunctionResources(gpu, memory, cores, tuple(labels), tuple(hosts), _names(system)),
            scale=Scale(min_instances, max_instances, idle, concurrency, queue_delay, per_instance),
            retries=Retries(retries) if isinstance(retries, int) else retries,
            timeout=timeout,
            secrets=secrets,
            env=env,
            keep=keep,
            ttl=ttl,
            volumes=mounts(volumes or {}),
            max_memory=max_memory,
            schedule=schedule,
        )
        return _Decorator(self, settings, name=name, batch=batch)

    @dataclass_transform(kw_only_default=True, field_specifiers=(parameter,))
    def cls(
        self,
        *,
        name: str | None = None,
        python: Sequence[str] | None = None,
        gpu: str | int | Sequence[str] | None = None,
        memory: str | int | None = None,
        cores: int | None = None,
        labels: Sequence[str] = (),
        hosts: Sequence[str] = (),
        system: Sequence[str] = (),
        retries: Retries | int | None = None,
        timeout: float | str | None = None,
        secrets: Sequence[str] = (),
        env: dict[str, str] | None = None,
        min_instances: int = 0,
        max_instances: int = 1,
        idle: float | str = "60s",
        concurrency: int = 1,
        queue_delay: float | str | None = "4s",
        per_instance: int | None = None,
        max_memory: str | int | None = None,
        keep: float | str = "7d",
        ttl: float | str | None = None,
        volumes: Mapping[str, Volume] | None = None,
    ) -> Callable[[type[T]], type[T]]:
        """Make a class one whose instances live on the fleet, one process for each set of parameters."""
        settings = self._with(
            python=python,
            resources=FunctionResources(gpu, memory, cores, tuple(labels), tuple(hosts), _names(system)),
            scale=Scale(min_instances, max_instances, idle, concurrency, queue_delay, per_instance),
            retries=Retries(retries) if isinstance(retries, int) else retries,
            timeout=timeout,
            secrets=secrets,
            env=env,
            keep=keep,
            ttl=ttl,
            volumes=mounts(volumes or {}),
            max_memory=max_memory,
        )

        def decorate(cls: type[T]) -> type[T]:
            self.add(Class.of(cls, self, settings, name=name).member)
            return cls

        return decorate

    def web(
        self, path: str, *, method: str = "POST", **settings: Any
    ) -> Callable[[Callable[P, R]], Function[P, R]]:
        """Serve a function over HTTP: parameters from the body or the query, typed; the result as JSON."""
        if not path.startswith("/"):
            raise ValueError(f"a path begins with /, not {path!r}")
        if method.upper() not in _WEB_METHODS:
            raise ValueError(f"method must be one of {', '.join(_WEB_METHODS)}, not {method!r}")
        decorator = self.function(**settings)
        return decorator.on_the_web(path, method.upper())

    def add(self, member: Member) -> None:
        earlier = self.members.get(member.name)
        if earlier is not None and earlier.qualname != member.qualname:
            raise ValueError(f"{self.name} has two members named {member.name!r}; give one another `name`")
        self.members[member.name] = member

    def _with(
        self,
        *,
        python: Sequence[str] | None,
        resources: FunctionResources,
        secrets: Sequence[str],
        env: dict[str, str] | None,
        **rest: Any,
    ) -> FunctionSettings:
        base = self._settings
        environment = base.environment if python is None else replace(base.environment, python=tuple(python))
        mixed = FunctionResources(
            gpu=base.resources.gpu if resources.gpu is None else resources.gpu,
            memory=base.resources.memory if resources.memory is None else resources.memory,
            cores=resources.cores,
            labels=resources.labels,
            hosts=resources.hosts,
            system=tuple(dict.fromkeys([*base.resources.system, *resources.system])),
        )
        # Told here and not when the first call is made.
        mixed.table()
        made = replace(
            base,
            environment=environment,
            resources=mixed,
            secrets=tuple(dict.fromkeys([*base.secrets, *secrets])),
            env=tuple(sorted({**dict(base.env), **(env or {})}.items())),
            **rest,
        )
        made.call_options()
        made.scale.table()
        return made


class _Decorator:
    """What `@app.function(...)` gives; its overloads keep the function's own signature for type checkers."""

    def __init__(
        self, app: App, settings: FunctionSettings, *, name: str | None, batch: Batch | None
    ) -> None:
        self._app, self._settings, self._name = app, settings, name
        self._batch = batch

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> AsyncFunction[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, AsyncIterator[R]]) -> Generator[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Iterator[R]]) -> Generator[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R]) -> Function[P, R]: ...

    def __call__(self, fn: Callable[..., Any]) -> Any:
        return self._made(fn, path=None, method=None)

    def on_the_web(self, path: str, method: str) -> Callable[[Callable[P, R]], Function[P, R]]:
        def decorate(fn: Callable[P, R]) -> Function[P, R]:
            made: Function[P, R] = self._made(fn, path=path, method=method)
            return made

        return decorate

    def _made(self, fn: Callable[..., Any], *, path: str | None, method: str | None) -> Any:
        if isinstance(fn, Function):
            raise TypeError(f"{fn.member.name} is decorated twice")
        if isinstance(fn, type):
            raise TypeError(f"{fn.__name__} is a class; decorate it with @app.cls()")
        if not callable(fn):
            raise TypeError(f"@app.function() decorates functions, not {fn!r}")
        member = Member.of_function(
            self._app,
            fn,
            self._settings,
            name=self._name,
            batch=self._batch,
            path=path,
            method=method,
        )
        self._app.add(member)
        kind: type[Function[..., Any]] = Function
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            kind = Generator
        elif inspect.iscoroutinefunction(fn):
            kind = AsyncFunction
        return kind(member, fn)


def _names(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError('system takes a list of names, as ["ffmpeg"]')
    return tuple(given)
