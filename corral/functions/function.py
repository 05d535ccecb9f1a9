"""What a decorated function is: itself when called, and ways to call it on the fleet."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from collections.abc import Generator as PlainGenerator
from contextlib import aclosing
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from corral.errors import CorralError, FunctionError
from corral.functions import serialize as codec
from corral.functions.backend import CallStatus, EndpointTarget, OutgoingCall, backend
from corral.functions.calls import Call, noted, read_payload
from corral.functions.errors import EndpointGone, rebuild
from corral.functions.interrupt import begun, cancel_calls, in_thread, interrupted, interrupted_making
from corral.functions.map import RemoteMap
from corral.functions.member import Member, kind_of
from corral.functions.options import options_of
from corral.functions.pickle_names import pickle_as
from corral.functions.pickling import culprit_among, pickled_by_name, pickled_whole

P = ParamSpec("P")
R = TypeVar("R")
_POLL_S = 30.0
# Short, so that whoever waits longer is soon told for what; most calls end within it.
_FIRST_S = 2.0


class Function(Generic[P, R]):
    """Called plainly it runs here and now; `.remote` and the rest run it on the fleet."""

    def __init__(
        self,
        member: Member,
        fn: Callable[P, Any],
        *,
        function: str | None = None,
        params: tuple[str, bytes] | Callable[[], tuple[str, bytes] | None] | None = None,
        changes: dict[str, Any] | None = None,
    ) -> None:
        self.member = member
        self._fn = fn
        self._function = function or next(iter(member.callees))
        self._params = params
        self._changes = changes or {}
        self._own_options: dict[str, Any] | None = None
        try:
            self._signature: inspect.Signature | None = inspect.signature(fn)
        except (TypeError, ValueError):
            self._signature = None
        functools.update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<corral function {self.member.endpoint}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._fn(*args, **kwargs)  # type: ignore[no-any-return]

    @property
    def local(self) -> Callable[P, R]:
        """The function as it was written."""
        return self._fn

    def with_options(self, *, key: str | None = None, priority: int = 0, **options: Any) -> Function[P, R]:
        """The same with other options for its calls: key, priority, timeout, retries, ttl, keep."""
        changes = {**self._changes, "key": key, "priority": priority}
        if options:
            changes["options"] = {**self._options(), **options_of(options)}
        made = copy.copy(self)
        made._changes = changes
        return made

    def _options(self) -> dict[str, Any]:
        if self._own_options is None:
            callee = self.member.callees[self._function]
            self._own_options = (callee.settings or self.member.settings).call_options()
        changed: dict[str, Any] | None = self._changes.get("options")
        return changed or self._own_options

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it on the fleet and wait for what it returns or raises."""
        ask = self._ask(args, kwargs)
        target = self._target()
        call: Call[R] | None = None
        try:
            (seen,) = self._make([ask], _FIRST_S)
            call = self._handle(seen)
            return call.result()
        except KeyboardInterrupt:
            if call is None:
                interrupted_making(target, [ask])
            else:
                interrupted([call.id])
            # Anew, without the frames of the wait.
            raise KeyboardInterrupt from None

    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Start it and go on; the handle has the result later."""
        (seen,) = self._make([self._ask(args, kwargs)], 0)
        return self._handle(seen)

    def _handle(self, seen: CallStatus) -> Call[R]:
        app = self.member.app
        return Call(seen.id, name=self.member.endpoint, seen=seen, allow_pickle=app.allow_pickle)

    @overload
    def map(
        self,
        *iterables: Iterable[Any],
        order: bool = True,
        return_exceptions: Literal[False] = False,
        window: int = 1000,
        resume: str | None = None,
        **common: Any,
    ) -> Iterator[R]: ...
    @overload
    def map(
        self,
        *iterables: Iterable[Any],
        order: bool = True,
        return_exceptions: bool,
        window: int = 1000,
        resume: str | None = None,
        **common: Any,
    ) -> Iterator[R | Exception]: ...
    def map(
        self,
        *iterables: Iterable[Any],
        order: bool = True,
        return_exceptions: bool = False,
        window: int = 1000,
        resume: str | None = None,
        **common: Any,
    ) -> Iterator[Any]:
        """Call it for each item, or for the items of several iterables side by side.

        At most `window` calls are under way at once; `order=False` gives results as they come. With
        `return_exceptions` a call that failed gives its exception instead of ending the map. `resume` names a
        map: after a crash of the caller the same map with the same name calls only what has no result yet.
        `common` are arguments of every call.
        """
        calls = self.mapped(iterables, common, resume=resume, window=window)
        return calls.results(order=order, return_exceptions=return_exceptions)

    @overload
    def starmap(
        self,
        rows: Iterable[Iterable[Any]],
        *,
        order: bool = True,
        return_exceptions: Literal[False] = False,
        window: int = 1000,
        resume: str | None = None,
    ) -> Iterator[R]: ...
    @overload
    def starmap(
        self,
        rows: Iterable[Iterable[Any]],
        *,
        order: bool = True,
        return_exceptions: bool,
        window: int = 1000,
        resume: str | None = None,
    ) -> Iterator[R | Exception]: ...
    def starmap(
        self,
        rows: Iterable[Iterable[Any]],
        *,
        order: bool = True,
        return_exceptions: bool = False,
        window: int = 1000,
        resume: str | None = None,
    ) -> Iterator[Any]:
        """Call it with the items of each row as its arguments."""
        asks = (self._ask(tuple(row), {}) for row in rows)
        return self._map(asks, resume, window).results(order=order, return_exceptions=return_exceptions)

    def for_each(self, *iterables: Iterable[Any], **options: Any) -> None:
        """Like `map`, for what the calls do and not for what they return."""
        for _ in self.map(*iterables, order=False, **options):
            pass

    @property
    def aio(self) -> Aio[P, R]:
        """The same ways, to be awaited."""
        return Aio(self)

    def mapped(
        self, iterables: tuple[Iterable[Any], ...], common: dict[str, Any], *, resume: str | None, window: int
    ) -> RemoteMap:
        """The calls of a map, none of them made yet."""
        if not iterables:
            raise TypeError("map() needs something to go through")
        # As zip, but what is given in unequal lengths is a mistake.
        asks = (self._ask(args, common) for args in zip(*iterables, strict=True))
        return self._map(asks, resume, window)

    def _map(self, asks: Iterator[OutgoingCall], resume: str | None, window: int) -> RemoteMap:
        name = f"map:{resume or secrets.token_hex(8)}"
        allow_pickle = self.member.app.allow_pickle
        return RemoteMap(self._target(), asks, name, self.member.endpoint, window, allow_pickle)

    def _make(self, asks: list[OutgoingCall], wait_s: float) -> list[CallStatus]:
        target = self._target()
        try:
            return backend().make(target, asks, wait_s)
        except EndpointGone:
            # Nobody called it for so long that it was cleared away.
            backend().forget(target)
        except CorralError as error:
            # Without the frames of the client: the message has what they could tell.
            raise error.with_traceback(None) from None
        return backend().make(self._target(), asks, wait_s)

    def _target(self) -> EndpointTarget:
        try:
            return backend().find(self.member)
        except CorralError as error:
            raise error.with_traceback(None) from None

    def _ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OutgoingCall:
        self.check(args, kwargs)
        what = f"an argument of {self._function}()"
        try:
            form, data = codec.encode_pieces([list(args), kwargs], what=what, pickle=self._pickled)
        except codec.CannotEncode as error:
            why = culprit_among(self._named(args, kwargs))
            raise codec.CannotEncode(f"{what} cannot be pickled: {why}" if why else str(error)) from error
        reads = {} if self.member.app.allow_pickle else {"reads": codec.NAMED}
        return OutgoingCall(
            self._function,
            form,
            data,
            self._params() if callable(self._params) else self._params,
            # A key of its own makes a call that may be sent again without being made again.
            self._changes.get("key") or f"once:{secrets.token_hex(12)}",
            self._changes.get("priority", 0),
            {**self._options(), **reads},
        )

    def _pickled(self, value: Any, what: str) -> bytes:
        """By the names of classes where the instance can import them, so that they are the same there."""
        return (pickled_whole if self.member.home() is None else pickled_by_name)(value, what)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[tuple[str, Any]]:
        """The arguments by the names that the function has for them."""
        if self._signature is None:
            return [*((f"number {place}", one) for place, one in enumerate(args, start=1)), *kwargs.items()]
        return self._signature.bind(*args, **kwargs).arguments.items()

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Wrong arguments are told before anything is sent."""
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._function}(): {error}{self._unknown(kwargs)}") from None

    def _unknown(self, kwargs: dict[str, Any]) -> str:
        """Names that it does not have, where something else is wrong as well."""
        assert self._signature is not None
        known = self._signature.parameters
        unknown = [name for name in kwargs if name not in known]
        if not unknown or any(one.kind is one.VAR_KEYWORD for one in known.values()):
            return ""
        return f"; it has no argument {', '.join(unknown)}, but: {', '.join(known) or 'none'}"


class AsyncFunction(Function[P, R]):
    """An `async def`: called plainly it gives a coroutine, remotely its result."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        return self._fn(*args, **kwargs)  # type: ignore[no-any-return]


class Generator(Function[P, R]):
    """A generator: called plainly it gives what it gives; `stream` gives the same from the fleet."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:  # type: ignore[override]
        return self._fn(*args, **kwargs)  # type: ignore[no-any-return]

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        raise FunctionError(f"{self._function}() is a generator; use .stream(...), or list(f.stream(...))")

    @property
    def aio(self) -> AioGenerator[P, R]:
        return AioGenerator(self)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        """What it yields, as it comes. A broken connection is taken up where it was."""
        return self.read(self.spawn(*args, **kwargs).id)

    def read(self, call_id: str) -> PlainGenerator[R, None, None]:
        """What the call yields; who does not read on cancels it."""
        after = 0
        try:
            while True:
                given, ended, error = backend().chunks(call_id, after, _POLL_S)
                for number, payload in given.items():
                    after = number
                    app = self.member.app
                    yield read_payload(payload, self.member.endpoint, call_id, allow_pickle=app.allow_pickle)
                if ended:
                    if error is not None:
                        raise noted(rebuild(error), call_id)
                    return
        except GeneratorExit:
            # Nobody reads on: it need not go on either.
            cancel_calls([call_id])
            raise
        except KeyboardInterrupt:
            interrupted([call_id])
            raise KeyboardInterrupt from None


pickle_as("corral.functions.handles", Function=Function, AsyncFunction=AsyncFunction, Generator=Generator)


def handle_of(fn: Callable[..., Any]) -> type[Function[..., Any]]:
    """Which of the three a function becomes."""
    if kind_of(fn) == "generator":
        return Generator
    return AsyncFunction if inspect.iscoroutinefunction(fn) else Function


class Aio(Generic[P, R]):
    """Each waits in a thread of its own, so that the event loop goes on."""

    def __init__(self, function: Function[P, R]) -> None:
        self._function = function

    async def remote(self, *args: P.args, **kwargs: P.kwargs) -> R:
        call = await begun(partial(self._function.spawn, *args, **kwargs), attrgetter("id"))
        try:
            return await asyncio.to_thread(call.result)
        except asyncio.CancelledError:
            await asyncio.to_thread(cancel_calls, [call.id])
            raise

    async def spawn(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        return await asyncio.to_thread(self._function.spawn, *args, **kwargs)

    async def map(
        self,
        *iterables: Iterable[Any],
        order: bool = True,
        return_exceptions: bool = False,
        window: int = 1000,
        resume: str | None = None,
        **common: Any,
    ) -> AsyncGenerator[R, None]:
        """As the `map` of the function. Who leaves the loop, or is cancelled, cancels the calls under way."""
        make = partial(self._function.mapped, iterables, common, resume=resume, window=window)
        calls = await asyncio.to_thread(make)
        results = calls.results(order=order, return_exceptions=return_exceptions)
        async with aclosing(in_thread(results, calls.stop)) as items:
            async for item in items:
                yield item


class AioGenerator(Aio[P, R]):
    _function: Generator[P, R]

    async def stream(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        call = await begun(partial(self._function.spawn, *args, **kwargs), attrgetter("id"))
        source = self._function.read(call.id)
        async with aclosing(in_thread(source, partial(cancel_calls, [call.id]))) as items:
            async for item in items:
                yield item
