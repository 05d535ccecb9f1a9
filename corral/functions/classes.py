"""Classes whose instances live on the fleet: methods, parameters, hooks."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import (
    Any,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    dataclass_transform,
    overload,
)

from corral.functions import serialize as codec
from corral.functions.function import AsyncFunction, Function, Generator, handle_of
from corral.functions.member import AppMembers, Callee, Member, is_async, kind_of
from corral.functions.options import Batch, FunctionSettings, Retries, as_retries
from corral.functions.pickling import culprit_among

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H", covariant=True)
_MISSING: Any = object()
_HOOK = "_corral_hook"
# Set on an object whose enter hooks have been run.
_ENTERED = "_corral_entered"
# What a method has once there is an object, and not before.
_OF_OBJECTS = ("remote", "spawn", "map", "starmap", "for_each", "stream", "aio", "local", "with_options")
# Marks a constructor that passes on what it is given.
_CONSTRUCTOR = "_corral_constructor"


@dataclass(frozen=True)
class Parameter:
    default: Any = _MISSING

    @property
    def required(self) -> bool:
        return self.default is _MISSING


@overload
def parameter(*, default: T) -> T: ...
@overload
def parameter() -> Any: ...
def parameter(*, default: Any = _MISSING) -> Any:
    """A setting of the class, given when it is made: `Model(size=13)`. Each set has instances of its own."""
    return Parameter(default)


@dataclass_transform(kw_only_default=True, field_specifiers=(parameter,))
class Parameters:
    """A base for classes whose parameters mypy is to know: it cannot see through `@app.cls()`, others can."""


def enter() -> Callable[[Callable[[Any], R]], Callable[[Any], R]]:
    """Run once when an instance starts, before its first call: the place to load a model."""
    return _hook("enter")


def exit() -> Callable[[Callable[[Any], R]], Callable[[Any], R]]:
    """Run when an instance ends in good order."""
    return _hook("exit")


def _hook(kind: str) -> Callable[[Callable[[Any], R]], Callable[[Any], R]]:
    def decorate(fn: Callable[[Any], R]) -> Callable[[Any], R]:
        setattr(fn, _HOOK, kind)
        return fn

    return decorate


@dataclass(eq=False, repr=False)
class Method(Generic[H]):
    """A method that can be called on the fleet; of a made instance it is a Function."""

    fn: Callable[..., Any]
    batch: Batch | None
    timeout: float | str | None
    retries: Retries | None

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.fn)  # type: ignore[arg-type]

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.owner = name, owner.__name__

    def __getattr__(self, name: str) -> NoReturn:
        if name not in _OF_OBJECTS or "owner" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(
            f"{self.owner}.{self.name} is of an object of the class; make one first: "
            f"{self.owner}(...).{self.name}.{name}"
        )

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> H: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        bound = _entered(self.fn.__get__(instance, owner), instance)
        if self.batch is not None:
            bound = functools.partial(_one_of_batch, bound)
        member: Member | None = getattr(owner, "_corral_member", None)
        if member is None:
            raise TypeError(f"{owner.__name__} has methods for the fleet but no @app.cls() above it")
        params = instance.__dict__.get("_corral_params")
        return handle_of(self.fn)(member, bound, function=self.name, params=params)

    def callee(self, base: FunctionSettings) -> Callee:
        given = {"timeout": self.timeout, "retries": self.retries}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        own = replace(base, **changes) if changes else None
        return Callee(self.name, kind_of(self.fn), is_async(self.fn), self.batch, settings=own)


def _entered(bound: Callable[..., Any], instance: object) -> Callable[..., Any]:
    """The method as it is called plainly: before the first call of the object its enter hooks are run."""
    if _ENTERED in vars(instance) or not hooks(instance, "enter"):
        return bound
    if inspect.isasyncgenfunction(bound):

        async def each(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            await _enter(instance)
            async for item in bound(*args, **kwargs):
                yield item

        return functools.wraps(bound)(each)
    if inspect.iscoroutinefunction(bound):

        async def later(*args: Any, **kwargs: Any) -> Any:
            await _enter(instance)
            return await bound(*args, **kwargs)

        return functools.wraps(bound)(later)

    def now(*args: Any, **kwargs: Any) -> Any:
        waiting = _enter(instance)
        if any(is_async(hook) for hook in hooks(instance, "enter")):
            asyncio.run(waiting)
        else:
            # Nothing in it waits: one step is all of it. A loop may run here, which could not run another.
            with suppress(StopIteration):
                waiting.send(None)
        return bound(*args, **kwargs)

    return functools.wraps(bound)(now)


async def _enter(instance: object) -> None:
    if _ENTERED in vars(instance):
        return
    # At once: a hook may call methods of the object.
    mark_entered(instance)
    try:
        for hook in hooks(instance, "enter"):
            if inspect.isawaitable(found := hook()):
                await found
    except BaseException:
        del vars(instance)[_ENTERED]
        raise


def mark_entered(instance: object) -> None:
    """Its enter hooks are run by whoever made it."""
    vars(instance)[_ENTERED] = True


def _one_of_batch(bound: Callable[..., Any], item: Any) -> Any:
    """Called plainly, a method that takes lists gets a list of one."""
    (result,) = bound([item])
    return result


class _Decorator:
    """What `@corral.method(...)` gives; its overloads keep the method's own signature for type checkers."""

    def __init__(self, **given: Any) -> None:
        self._given = given

    @overload
    def __call__(
        self, fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
    ) -> Method[AsyncFunction[P, R]]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> Method[Generator[P, R]]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Any, P], Iterator[R]]) -> Method[Generator[P, R]]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Any, P], R]) -> Method[Function[P, R]]: ...

    def __call__(self, fn: Callable[..., Any]) -> Method[Any]:
        return Method(fn, **self._given)


class _BatchDecorator(_Decorator):
    """The method takes and gives lists; whoever calls it gives and gets one."""

    @overload  # type: ignore[override]
    def __call__(
        self, fn: Callable[[Any, list[T]], Coroutine[Any, Any, list[R]]]
    ) -> Method[Function[[T], R]]: ...
    @overload
    def __call__(self, fn: Callable[[Any, list[T]], list[R]]) -> Method[Function[[T], R]]: ...

    def __call__(self, fn: Callable[..., Any]) -> Method[Any]:
        return Method(fn, **self._given)


@overload
def method(
    *, batch: Batch, timeout: float | str | None = None, retries: Retries | int | None = None
) -> _BatchDecorator: ...
@overload
def method(
    *, batch: None = None, timeout: float | str | None = None, retries: Retries | int | None = None
) -> _Decorator: ...
def method(
    *, batch: Batch | None = None, timeout: float | str | None = None, retries: Retries | int | None = None
) -> _Decorator:
    """Make a method one that can be called on the fleet. With `batch` it gets and gives lists."""
    kind = _Decorator if batch is None else _BatchDecorator
    return kind(batch=batch, timeout=timeout, retries=as_retries(retries))


def class_member(target: Any, app: AppMembers, settings: FunctionSettings, *, name: str | None) -> Member:
    """The class as a member of the app; it is given an `__init__` that takes its parameters."""
    if not isinstance(target, type):
        raise TypeError(f"@app.cls() decorates classes, not {target!r}")
    params = _attributes(target, Parameter)
    if "__init__" in vars(target) and params:
        raise TypeError(
            f"{target.__name__} has both parameters and an __init__; load things in @corral.enter()"
        )
    methods = _attributes(target, Method)
    if not methods:
        raise TypeError(f"{target.__name__} has no @corral.method() that could be called")
    member = Member(
        app,
        name or target.__name__,
        target,
        target.__module__,
        target.__qualname__,
        settings,
        {key: value.callee(settings) for key, value in methods.items()},
        is_class=True,
    )
    target._corral_member = member  # type: ignore[attr-defined]
    own = target.__init__  # type: ignore[misc]
    if params or own is object.__init__:
        target.__init__ = _initialiser(target, params)  # type: ignore[misc]
    elif not hasattr(own, _CONSTRUCTOR):
        target.__init__ = passed_on(own)  # type: ignore[misc]
    return member


def _attributes(target: type, kind: type[T]) -> dict[str, T]:
    """Those of a kind, of the class and its bases; where both have one, that of the class."""
    return {
        key: value
        for base in reversed(target.__mro__)
        for key, value in vars(base).items()
        if isinstance(value, kind)
    }


def _initialiser(target: type, params: dict[str, Parameter]) -> Callable[..., None]:
    def __init__(self: Any, *unnamed: Any, **given: Any) -> None:
        if unnamed:
            written = ", ".join(f"{name}=..." for name in params)
            takes = f"takes its parameters by name: {target.__name__}({written})" if params else "takes none"
            raise TypeError(f"{target.__name__}() was given {unnamed[0]!r} without a name; it {takes}")
        if unknown := sorted(set(given) - set(params)):
            known = ", ".join(params) or "none"
            raise TypeError(f"{target.__name__}() has no parameter {', '.join(unknown)}; it has: {known}")
        missing = sorted(key for key, one in params.items() if one.required and key not in given)
        if missing:
            raise TypeError(f"{target.__name__}() needs {', '.join(missing)}")
        values = {key: given.get(key, one.default) for key, one in params.items()}
        for key, value in values.items():
            setattr(self, key, value)
        self._corral_params = encoded_parameters(values, f"a parameter of {target.__name__}")

    setattr(__init__, _CONSTRUCTOR, True)
    return __init__


def passed_on(own: Callable[..., None]) -> Callable[..., None]:
    """The class's own constructor; what it is given here is given to the instances on the fleet too."""

    @functools.wraps(own)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        # Not of a constructor that one of a derived class calls.
        if "_corral_params" not in vars(self):
            vars(self)["_corral_params"] = functools.partial(_arguments, own, (self, *args), kwargs)
        own(self, *args, **kwargs)

    setattr(__init__, _CONSTRUCTOR, True)
    return __init__


def _by_name(
    name: str, constructor: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """What a constructor was given, beside `self`, and is not its default. TypeError if it has no name."""
    found: dict[str, Any] = {}
    try:
        bound = inspect.signature(constructor).bind(*args, **kwargs)
    except ValueError:
        # One that is not written in Python has no signature.
        bound = inspect.signature(lambda self, /, *args, **kwargs: None).bind(*args, **kwargs)
    for key, value in list(bound.arguments.items())[1:]:
        parameter = bound.signature.parameters[key]
        match parameter.kind:
            case parameter.VAR_KEYWORD:
                found |= value
            case parameter.POSITIONAL_ONLY | parameter.VAR_POSITIONAL:
                raise TypeError(
                    f"{name}() was given {key} by place only, and instances on the fleet are made by name; "
                    f"write its __init__ with named parameters"
                )
            case _ if value is not parameter.default:
                found[key] = value
    return found


def _arguments(
    constructor: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, bytes] | None:
    name = type(args[0]).__name__
    given = _by_name(name, constructor, args, kwargs)
    return encoded_parameters(given, f"an argument of {name}()")


def encoded_parameters(given: dict[str, Any], what: str) -> tuple[str, bytes] | None:
    """In the order of names, so that equal ones are equal bytes; None if there are none."""
    if not given:
        return None
    try:
        return codec.encode({key: given[key] for key in sorted(given)}, what=what)
    except codec.CannotEncode as error:
        raise codec.CannotEncode(f"{what} cannot be pickled: {culprit_among(given.items())}") from error


def hooks(instance: Any, kind: str) -> list[Callable[[], Any]]:
    """The instance's enter or exit hooks, base classes first."""
    names = {
        key: None
        for base in reversed(type(instance).__mro__)
        for key, value in vars(base).items()
        if getattr(value, _HOOK, None) == kind
    }
    return [getattr(instance, name) for name in names]
