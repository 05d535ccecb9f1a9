"""A wait for calls that is given up, by Ctrl-C or a cancelled task: the calls it was for are cancelled."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar

from corral.errors import CorralError
from corral.functions.backend import EndpointTarget, OutgoingCall, backend

T = TypeVar("T")
# So many are named; a map may have a thousand.
_NAMED = 5


def cancel_calls(call_ids: Iterable[str]) -> list[str]:
    """Cancel what nobody waits for, and say which were; what cannot be cancelled is told on stderr."""
    cancelled: list[str] = []
    for call_id in list(call_ids):
        try:
            backend().cancel(call_id)
        except CorralError as error:
            # One that ended meanwhile needs none. The caller goes on to its own end: this must not hide it.
            if error.code != "conflict":
                sys.stderr.write(f"corral: call {call_id} may go on, it was not cancelled: {error.message}\n")
            continue
        cancelled.append(call_id)
    return cancelled


def interrupted(call_ids: Sequence[str]) -> None:
    """Cancel them, and say so on stderr."""
    cancelled = cancel_calls(call_ids)
    if cancelled:
        more = f" and {len(cancelled) - _NAMED} more" if len(cancelled) > _NAMED else ""
        sys.stderr.write(f"corral: cancelled call {', '.join(cancelled[:_NAMED])}{more}\n")


def interrupted_making(target: EndpointTarget, asks: Sequence[OutgoingCall]) -> None:
    """The same for calls whose ids have not come yet: their keys lead to them."""
    if not asks:
        return
    try:
        made = backend().make(target, asks, 0)
    except CorralError as error:
        sys.stderr.write(f"corral: whether calls were made is not known: {error.message}\n")
        return
    interrupted([seen.id for seen in made if not seen.ended])


async def begun(begin: Callable[[], T], id_of: Callable[[T], str]) -> T:
    """What was begun in a thread; a call that is made although the task was cancelled is cancelled too."""
    making = asyncio.ensure_future(asyncio.to_thread(begin))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        # The thread goes on, and only what it has made can be cancelled.
        await asyncio.wait([making])
        if making.exception() is None:
            await asyncio.to_thread(cancel_calls, [id_of(making.result())])
        raise


async def in_thread(source: Generator[T, None, None], stop: Callable[[], object]) -> AsyncGenerator[T, None]:
    """What the source gives, each waited for in a thread.

    Where the task is cancelled or nobody goes on with it, `stop` ends what the source waits for.
    """
    end, at_work = object(), threading.Lock()

    def step() -> Any:
        with at_work:
            return next(source, end)

    def leave() -> None:
        stop()
        # A thread that still waits inside the source comes back now; a generator that runs cannot be closed.
        with at_work:
            source.close()

    try:
        while (item := await asyncio.to_thread(step)) is not end:
            yield item
    except (GeneratorExit, asyncio.CancelledError):
        await asyncio.to_thread(leave)
        raise
