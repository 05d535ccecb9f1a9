"""What a type checker must refuse; each line that it must complain of says how."""

from __future__ import annotations

from collections.abc import Iterator

import corral
from corral.domain.ids import CallId, EndpointId, RunId

app = corral.App("mistyped")


@app.function()
def embed(x: list[float], *, scale: int = 1) -> float:
    return sum(x) * scale


@app.function()
def count(to: int) -> Iterator[int]:
    yield from range(to)


@app.cls()
class Model(corral.Parameters):
    size: int = corral.parameter(default=7)
    name: str = corral.parameter()

    @corral.method()
    def one(self, x: int) -> str:
        return str(x)

    @corral.method(batch=corral.Batch(32))
    def many(self, xs: list[int]) -> list[str]:
        return [str(x) for x in xs]


@app.function(timeout=None, gpus=1)  # error: call-arg
def misspelt() -> None: ...


@app.function(retries="three")  # error: arg-type
def too_wordy() -> None: ...


@app.web("/misspelt", gpus=1)  # error: call-arg
def misspelt_too() -> None: ...


app.cls(batch=corral.Batch(8))  # error: call-arg


@corral.method(batch=corral.Batch(8))  # error: arg-type
def not_a_list(self: object, x: int) -> int:
    return x


def functions() -> None:
    embed("text")  # error: arg-type
    embed.remote("text")  # error: arg-type
    embed.remote()  # error: call-arg
    embed.remote([1.0], 2)  # error: call-arg
    embed.remote([1.0], scale="large")  # error: arg-type
    embed.spawn([1.0], sclae=2)  # error: call-arg
    text: str = embed.remote([1.0])  # error: assignment
    result: str = embed.spawn([1.0]).result()  # error: assignment
    texts: list[str] = list(embed.map([[1.0]]))  # error: arg-type
    embed.stream([1.0])  # error: attr-defined
    embed.map([[1.0]], order="no")  # error: call-overload
    count.stream("three")  # error: arg-type
    given: Iterator[str] = count.stream(3)  # error: assignment
    print(text, result, texts, given)


async def awaited() -> None:
    await embed.aio.remote(1.0)  # error: arg-type
    embed.aio.remote([1.0])  # error: unused-coroutine
    await embed.aio.spawn()  # error: call-arg
    text: str = await embed.aio.remote([1.0])  # error: assignment
    embed.aio.stream([1.0])  # error: attr-defined
    print(text)


def of_a_run(run: RunId) -> RunId:
    return run


def ids() -> None:
    of_a_run(RunId("r-bcdfghjkmnpq"))
    of_a_run(CallId("c-bcdfghjkmnpq"))  # error: arg-type
    of_a_run(EndpointId("e-bcdfghjkmnpq"))  # error: arg-type
    of_a_run("r-bcdfghjkmnpq")  # error: arg-type


def classes() -> None:
    Model()  # error: call-arg
    Model(size="large", name="a")  # error: arg-type
    Model(name="a", sise=3)  # error: call-arg
    Model(3, "a")  # error: call-arg
    model = Model(name="a")
    model.one.remote("text")  # error: arg-type
    model.one.remote()  # error: call-arg
    number: int = model.one.remote(1)  # error: assignment
    model.many.remote([1, 2])  # error: arg-type
    model.three.remote(1)  # error: attr-defined
    print(number)
