"""What a type checker must accept, with the types that it must see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import assert_type

import corral

app = corral.App("typed")


@app.function(retries=corral.Retries(3, on=(OSError,)), timeout="30s")
def embed(x: list[float], *, scale: int = 1) -> float:
    return sum(x) * scale


@app.function()
async def later(text: str) -> bytes:
    return text.encode()


@app.function()
def count(to: int) -> Iterator[int]:
    yield from range(to)


@app.function()
async def count_later(to: int) -> AsyncIterator[str]:
    for n in range(to):
        yield str(n)


@dataclass
class Item:
    text: str


@app.web("/score", method="POST")
def score(item: Item) -> dict[str, int]:
    return {"length": len(item.text)}


@app.cls(gpu="any", idle="5m", max_instances=2)
class Model(corral.Parameters):
    size: int = corral.parameter(default=7)
    name: str = corral.parameter()

    @corral.enter()
    def load(self) -> None: ...

    @corral.method()
    def one(self, x: int, *, exact: bool = False) -> str:
        return f"{x}{exact}"

    @corral.method(batch=corral.Batch(32, "50ms"))
    def many(self, xs: list[int]) -> list[str]:
        return [str(x) for x in xs]

    @corral.method(timeout="1s")
    async def soon(self, x: int) -> bytes:
        return bytes(x)

    @corral.method()
    def each(self, to: int) -> Iterator[int]:
        yield from range(to)

    @corral.exit()
    def close(self) -> None: ...


def functions() -> None:
    assert_type(embed([1.0]), float)
    assert_type(embed.local([1.0], scale=2), float)
    assert_type(embed.remote([1.0], scale=2), float)
    assert_type(embed.spawn([1.0]), corral.Call[float])
    assert_type(embed.spawn([1.0]).result(timeout=3), float)
    assert_type(list(embed.map([[1.0]], order=False)), list[float])
    assert_type(list(embed.map([[1.0]], return_exceptions=True)), list[float | Exception])
    assert_type(list(embed.starmap([([1.0],)])), list[float])
    assert_type(embed.with_options(priority=5).remote([1.0]), float)
    assert_type(later.remote("a"), bytes)
    assert_type(count(3), Iterator[int])
    assert_type(count.stream(3), Iterator[int])
    assert_type(count_later.stream(3), Iterator[str])
    assert_type(score(Item("a")), dict[str, int])
    try:
        corral.Corral("http://127.0.0.1:1", None).runs.get("r-1")
    except corral.CorralError as error:
        assert_type(error.hint, str)


async def awaited() -> None:
    assert_type(await embed.aio.remote([1.0], scale=2), float)
    assert_type(await embed.aio.spawn([1.0]), corral.Call[float])
    assert_type(await later("a"), bytes)
    assert_type(await later.aio.remote("a"), bytes)
    assert_type([one async for one in embed.aio.map([[1.0]])], list[float])
    assert_type([one async for one in count.aio.stream(3)], list[int])


def classes() -> None:
    model = Model(size=3, name="a")
    assert_type(model.size, int)
    assert_type(model.one(1), str)
    assert_type(model.one.remote(1, exact=True), str)
    assert_type(model.many.remote(1), str)
    assert_type(list(model.many.map([1, 2])), list[str])
    assert_type(model.soon.remote(1), bytes)
    assert_type(list(model.each.stream(3)), list[int])
    assert_type(Model(name="b").one.spawn(1).result(), str)
