"""Callers that await: what they give up is cancelled, as it is where a thread waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from support.fake_instance import FakeEndpoint, deploy, outcome
from support.live_server import FakeHost, LiveServer, named
from support.waiting import eventually

import corral
from corral.functions import backend
from corral.functions.backend import CallStatus, EndpointTarget
from corral.functions.function import Generator
from corral.functions.http_backend import HttpBackend
from corral.functions.serialize import encode_plain


@pytest.fixture
def client(live: LiveServer) -> Iterator[corral.Corral]:
    with corral.Corral(live.url, live.operator) as made:
        backend.set_backend(HttpBackend(made, "default"))
        yield made
        backend.set_backend(None)


def deployed(live: LiveServer, worker: FakeHost, kind: str = "function") -> FakeEndpoint:
    scaling = {"concurrency": 5}
    name, functions = f"{named('app')}.f", {"f": {"kind": kind}}
    return deploy(live, worker, name=name, functions=functions, scaling=scaling)


def states(client: corral.Corral, endpoint: FakeEndpoint) -> list[str]:
    return sorted(call.state for call in client.calls.page(endpoint=endpoint.name).items)


async def given_up(awaited: Awaitable[Any], is_time: Callable[[], object]) -> None:
    """Begin it, and cancel it when it is time."""
    task = asyncio.ensure_future(awaited)
    await asyncio.to_thread(eventually, is_time, "the calls")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def gone_through(items: AsyncIterator[Any]) -> None:
    async for _ in items:
        pass


def test_a_map_whose_task_is_cancelled_cancels_its_calls(
    live: LiveServer, worker: FakeHost, client: corral.Corral
) -> None:
    """They went on, and the thread that waited for them stayed for up to half a minute."""
    endpoint = deployed(live, worker)

    async def main() -> list[str]:
        items = corral.function(endpoint.name).aio.map(range(3))
        await given_up(gone_through(items), lambda: len(states(client, endpoint)) == 3)
        return states(client, endpoint)

    assert asyncio.run(main()) == ["cancelled"] * 3


def test_a_map_that_nobody_goes_on_with_cancels_its_calls(
    live: LiveServer, worker: FakeHost, client: corral.Corral
) -> None:
    """Whether and when depended on the garbage collector."""
    endpoint = deployed(live, worker)

    def end_the_first() -> None:
        instance = endpoint.instance()
        instance.exchange(outcomes=[outcome(instance.next_call(), encode_plain(7))])

    async def main() -> list[str]:
        ending = asyncio.ensure_future(asyncio.to_thread(end_the_first))
        async with aclosing(corral.function(endpoint.name).aio.map(range(3), order=False)) as items:
            async for item in items:
                assert item == 7
                break
        await ending
        return states(client, endpoint)

    assert asyncio.run(main()) == ["cancelled", "cancelled", "succeeded"]


def test_a_stream_whose_task_is_cancelled_cancels_its_call(
    live: LiveServer, worker: FakeHost, client: corral.Corral
) -> None:
    """Also where the task is cancelled while it waits for the next item."""
    endpoint = deployed(live, worker, "generator")
    found = corral.function(endpoint.name)
    assert isinstance(found, Generator)

    async def main() -> list[str]:
        await given_up(gone_through(found.aio.stream(1)), lambda: states(client, endpoint))
        return states(client, endpoint)

    assert asyncio.run(main()) == ["cancelled"]


class HeldBackend(HttpBackend):
    """Its answer to what makes calls is held back."""

    def __init__(self, client: corral.Corral) -> None:
        super().__init__(client, "default")
        self.made, self.let_go = threading.Event(), threading.Event()

    def make(self, target: EndpointTarget, asks: Any, wait_s: float) -> list[CallStatus]:
        seen: list[CallStatus] = super().make(target, asks, wait_s)
        self.made.set()
        self.let_go.wait(30)
        return seen


def test_a_call_that_is_made_while_its_task_is_cancelled_is_cancelled_too(
    live: LiveServer, worker: FakeHost, client: corral.Corral
) -> None:
    """Nobody knew its id, and it went on."""
    endpoint = deployed(live, worker)
    held = HeldBackend(client)
    backend.set_backend(held)
    found = corral.function(endpoint.name)

    async def main() -> list[str]:
        task = asyncio.ensure_future(found.aio.remote(1))
        await asyncio.to_thread(held.made.wait, 30)
        task.cancel()
        held.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return states(client, endpoint)

    assert asyncio.run(main()) == ["cancelled"]
