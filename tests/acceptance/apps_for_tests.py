"""Functions as users write them; the module is shipped to the instances that serve them."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import corral

app = corral.App("kit")
OFFSET = 1000


@dataclass
class Point:
    x: int
    y: int


class Trouble(ValueError):
    def __init__(self, place: int) -> None:
        super().__init__(f"trouble at {place}")
        self.place = place


def plus_thousand(fn: Any) -> Any:
    @wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs) + 1000

    return inner


@app.function()
def with_global(x: int) -> int:
    return x + OFFSET


@app.function()
@plus_thousand
def decorated(x: int) -> int:
    return x


@app.function()
def give_back(value: Any) -> Any:
    return value


@app.function()
def count_arguments(*args: Any, flag: bool = False, **rest: Any) -> tuple[int, bool, list[str]]:
    return len(args), flag, sorted(rest)


@app.function()
def fails(place: int) -> None:
    print("about to fail")
    raise Trouble(place)


@app.function()
def leaves(code: int) -> None:
    sys.exit(code)


@app.function()
def unpicklable() -> Any:
    print("before")
    return (n for n in range(3))


@app.function()
def squares(count: int, pause_s: float = 0.0) -> Iterator[int]:
    for n in range(count):
        time.sleep(pause_s)
        yield n * n


@app.function()
async def squares_later(count: int) -> Any:
    for n in range(count):
        await asyncio.sleep(0)
        yield n * n


@app.function(timeout="1s")
def endless() -> None:
    print("begun", flush=True)
    while True:
        pass


@app.function()
def sleeps(seconds: float) -> str:
    print("asleep", flush=True)
    time.sleep(seconds)
    return "awake"


@app.function(retries=corral.Retries(3, on=(OSError,), delay="50ms"))
def needs_tries(path: str, times: int) -> int:
    with open(path, "a") as file:
        file.write("x")
    tried = os.path.getsize(path)
    if tried < times:
        raise ConnectionError(f"try {tried}")
    return tried


@app.function(concurrency=4)
async def meets(name: str) -> float:
    print(f"{name} comes")
    began = time.time()
    await asyncio.sleep(0.5)
    print(f"{name} goes")
    return began


@app.function(concurrency=8)
def speaks(name: str) -> str:
    for n in range(5):
        print(f"{name} {n}")
        logging.getLogger("speaker").warning("%s logs %d", name, n)
        time.sleep(0.01)
    subprocess.run([sys.executable, "-S", "-c", f"print('child of {name}')"], check=True)
    return name


@app.function()
def prints_everywhere(name: str) -> None:
    print(name, "python")
    os.write(1, f"{name} fd\n".encode())
    subprocess.run([sys.executable, "-S", "-c", f"print('{name} child')"], check=True)
    print(name, "again")
    print(name, "again")


@app.function()
def which_process() -> int:
    return os.getpid()


@app.function()
def calls_another(x: int) -> int:
    return with_global.remote(x) + with_global.remote(x=x)


@app.function()
def calls_itself(depth: int) -> int:
    return 0 if depth == 0 else 1 + calls_itself.remote(depth - 1)


@app.function()
def dies(code: int | None = None) -> None:
    if code is not None:
        os._exit(code)
    os.kill(os.getpid(), 9)


@app.cls(max_instances=4)
class Counter(corral.Parameters):
    start: int = corral.parameter(default=0)

    @corral.enter()
    def load(self) -> None:
        self.loads = getattr(self, "loads", 0) + 1
        self.value = self.start

    @corral.method()
    def add(self, amount: int = 1) -> tuple[int, int]:
        self.value += amount
        return self.value, self.loads

    @corral.method(batch=corral.Batch(8, "200ms"))
    def double(self, values: list[int]) -> list[tuple[int, int]]:
        return [(value * 2, len(values)) for value in values]

    @corral.exit()
    def close(self) -> None:
        print("closed", self.value)


# Apps of their own: what a program calls of an app starts all that is to be warm in it.
naps = corral.App("naps")
closing = corral.App("closing")


@naps.function(min_instances=2, max_instances=2, idle="30s")
def nap(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@closing.function(idle="10m")
def one_more(x: int) -> int:
    return x + 1


@closing.cls(idle="10m")
class Closer:
    note: str = corral.parameter()

    @corral.method()
    def ping(self) -> str:
        return "pong"

    @corral.exit()
    def close(self) -> None:
        with open(self.note, "w") as file:
            file.write("closed")
