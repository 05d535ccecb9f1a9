"""Classes called plainly: what an instance does before its first call is done here too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import corral

app = corral.App("plain")


@app.cls()
class Embedder(corral.Parameters):
    n: int = corral.parameter(default=1)

    @corral.enter()
    def load(self) -> None:
        self.loads = getattr(self, "loads", 0) + 1
        # A hook may use what the class offers.
        self.first = self.size()

    @corral.method()
    def size(self) -> int:
        return self.n

    @corral.method()
    def embed(self, x: int) -> tuple[int, int]:
        return self.loads, self.first * x

    @corral.method(batch=corral.Batch(4))
    def many(self, xs: list[int]) -> list[int]:
        return [self.first * x for x in xs]

    @corral.method()
    async def later(self, x: int) -> int:
        return self.first * x

    @corral.method()
    def each(self, x: int) -> Any:
        yield from [self.first] * x


@app.cls()
class Slow:
    @corral.enter()
    async def load(self) -> None:
        await asyncio.sleep(0)
        self.loads = getattr(self, "loads", 0) + 1

    @corral.method()
    def now(self) -> int:
        return self.loads

    @corral.method()
    async def later(self) -> int:
        return self.loads


def test_enter_is_run_once_before_the_first_plain_call() -> None:
    """HOUR-06, NEW-15."""
    made = Embedder(n=3)

    assert made.embed(2) == (1, 6)
    assert made.embed(1) == (1, 3)
    assert made.embed.local(1) == (1, 3)


def test_enter_is_run_for_methods_of_every_kind() -> None:
    """HOUR-06."""
    assert Embedder(n=2).many(4) == 8
    assert asyncio.run(Embedder(n=2).later(4)) == 8
    assert list(Embedder(n=2).each(2)) == [2, 2]
    assert (Slow().now(), asyncio.run(Slow().later())) == (1, 1)


def test_a_handle_that_was_taken_before_enters_no_second_time() -> None:
    """HOUR-06."""
    made = Embedder(n=3)
    before = made.embed
    made.embed(1)

    assert before(1) == (1, 3)


def test_a_hook_that_failed_is_run_again() -> None:
    """HOUR-06."""
    tries: list[int] = []

    @app.cls(name="Failing")
    class Failing:
        @corral.enter()
        def load(self) -> None:
            tries.append(1)
            if len(tries) == 1:
                raise OSError("no model")

        @corral.method()
        def go(self) -> int:
            return len(tries)

    made = Failing()
    with pytest.raises(OSError, match="no model"):
        made.go()

    assert made.go() == 2
