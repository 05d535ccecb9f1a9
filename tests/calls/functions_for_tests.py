"""An app as a user writes it. Its module is shipped to whatever serves it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import corral

app = corral.App("pier")


@dataclass
class Boat:
    name: str
    length: float


class Stranded(RuntimeError):
    def __init__(self, boat: str) -> None:
        super().__init__(f"{boat} is stranded")
        self.boat = boat


def record(path: str, what: str) -> None:
    """One line for each time that it was run, whatever became of it."""
    with open(path, "a") as file:
        file.write(f"{what}\n")


@app.function()
def give_back(value: Any) -> Any:
    return value


@app.function()
def describe(*args: Any, flag: bool = False, **rest: Any) -> tuple[int, bool, list[str]]:
    return len(args), flag, sorted(rest)


@app.function(max_instances=2)
def fails(boat: str) -> None:
    raise Stranded(boat)


@app.function()
async def speaks_slowly() -> None:
    for n in range(3):
        print("slowly", n, flush=True)
        await asyncio.sleep(0.1)


@app.function()
async def soon(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


@app.function(max_instances=3, queue_delay="100ms")
def work(path: str, name: str, takes_s: float = 0.0) -> str:
    record(path, name)
    time.sleep(takes_s)
    return name.upper()


@app.function(max_instances=3)
def count(path: str, to: int, pause_s: float = 0.0) -> Iterator[int]:
    record(path, f"count {to}")
    for n in range(to):
        time.sleep(pause_s)
        yield n * n


@app.function()
async def count_later(to: int) -> AsyncIterator[str]:
    for n in range(to):
        await asyncio.sleep(0)
        yield str(n)


@app.function(concurrency=50, max_instances=4, per_instance=50)
def speaks(name: str) -> str:
    for n in range(4):
        print(f"{name} says {n}")
        time.sleep(0.005)
    if name.endswith("0"):
        subprocess.run([sys.executable, "-S", "-c", f"print('{name} has a child')"], check=True)
    print(f"{name} says no more", file=sys.stderr)
    return name


@app.function(timeout="1s")
def endless() -> None:
    print("begun", flush=True)
    while True:
        pass


@app.function()
def asks_others(x: int) -> int:
    """RF-D07: through an attribute and an alias, with a keyword-only argument and with any keywords."""
    again = describe
    return int(sys.modules[__name__].give_back.remote(x)) + again.remote(1, 2, flag=True, other=3)[0]


@app.cls(max_instances=4)
class Harbour(corral.Parameters):
    berths: int = corral.parameter(default=3)

    @corral.enter()
    def open(self) -> None:
        self.moored: list[str] = []
        self.opened = 1 + getattr(self, "opened", 0)

    @corral.method()
    def moor(self, boat: str) -> tuple[int, int, int, int]:
        self.moored.append(boat)
        return len(self.moored), self.berths, self.opened, os.getpid()

    @corral.method(batch=corral.Batch(8, "200ms"))
    def lengths(self, boats: list[Boat]) -> list[tuple[float, int]]:
        return [(boat.length, len(boats)) for boat in boats]

    @corral.exit()
    def close(self) -> None:
        print("closed with", len(self.moored))


@app.function()
def makes(size: int) -> bytes:
    return bytes(n % 251 for n in range(size))


@app.function()
def parts(count: int, size: int) -> Iterator[bytes]:
    for n in range(count):
        yield bytes([n]) * size


def when_half_is_written(then: Callable[[], None]) -> Callable[[], None]:
    """Of the next large result of this process. Gives how to undo it."""
    from corral.files import large  # noqa: PLC0415 - it is that of the instance

    real = large.write

    def write(file: Any, parts: Any, **more: Any) -> None:
        data = b"".join(parts)
        real(file, [data[: len(data) // 2]])
        then()
        real(file, [data[len(data) // 2 :]], **more)

    large.write = write

    def undo() -> None:
        large.write = real

    return undo


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


@app.function()
def killed_while_telling(path: str, go: str, size: int) -> bytes:
    """At its first try, and not before `go` is there."""

    def kill() -> None:
        wait_for(go)
        os.kill(os.getpid(), signal.SIGKILL)

    if not os.path.exists(path):
        record(path, "killed")
        when_half_is_written(kill)
    return makes(1) * size


@app.function()
def fails_while_telling(go: str, size: int) -> Iterator[bytes]:
    """Not before `go` is there."""

    def full() -> None:
        wait_for(go)
        raise OSError(28, "No space left on device")

    undo = when_half_is_written(full)
    try:
        yield b"x" * size
    finally:
        undo()


@app.function()
def has_a_small_disk(size: int) -> bytes:
    """None of its files may be longer than a MiB."""
    import resource  # noqa: PLC0415 - not on every system

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return b"z" * size


@app.function()
def slow_to_tell(path: str, size: int) -> bytes:
    """Not before the path is there."""
    undo: list[Callable[[], None]] = []

    def wait() -> None:
        undo[0]()
        wait_for(path)

    undo.append(when_half_is_written(wait))
    return b"y" * size


@app.cls(max_instances=2, idle="1h")
class Berth(
    corral.Parameters,
):
    number: int = corral.parameter()
    log: str = corral.parameter()

    @corral.method()
    def use(self) -> int:
        return self.number

    @corral.exit()
    def leave(self) -> None:
        record(self.log, f"left {self.number}")


@app.cls(max_memory="250MiB", idle="1h")
class Hold(corral.Parameters):
    log: str = corral.parameter()

    @corral.enter()
    def open(self) -> None:
        self.cargo: list[bytes] = []

    @corral.method()
    def load(self, mib: int) -> tuple[int, int]:
        """Who it is, and how much it has."""
        self.cargo.append(b"x" * (mib << 20))
        return os.getpid(), sum(len(one) for one in self.cargo) >> 20

    @corral.exit()
    def leave(self) -> None:
        record(self.log, f"left with {len(self.cargo)}")


@app.function()
def waits_for(path: str) -> str:
    print("waiting", flush=True)
    while not os.path.exists(path):
        time.sleep(0.02)
    print("there it is")
    print("there it is")
    return "done"


@app.function()
def looks_around(project: str) -> tuple[list[str], str]:
    """What its process knows, and what becomes of a call to another project."""
    try:
        corral.function("pier.soon", project=project)
    except corral.FunctionError as error:
        said = str(error)
    return [f"{key}={value}" for key, value in os.environ.items()], said


def change(descriptor: int) -> None:
    """What the file holds, with its time put back."""
    before = os.fstat(descriptor)
    os.pwrite(descriptor, b"changed", before.st_size // 2)
    os.utime(descriptor, ns=(before.st_atime_ns, before.st_mtime_ns))


@app.function()
def changes_arguments(value: Any) -> int:
    """From its second call on it has written to the file of its argument before it reads it."""
    real = os.unlink

    def unlink(path: Any, **more: Any) -> None:
        descriptor = os.open(path, os.O_RDWR)
        change(descriptor)
        os.close(descriptor)
        os.unlink = real
        real(path, **more)

    os.unlink = unlink
    return len(value)


kept_open: list[int] = []


@app.function()
def keeps_its_result_open(size: int) -> bytes:
    """The file of it; with no size it writes to all that it has kept."""
    from corral.files import large  # noqa: PLC0415 - it is that of the instance

    if not size:
        for descriptor in kept_open:
            change(descriptor)
        return b"%d" % len(kept_open)
    real = large.write

    def write(file: Any, parts: Any, **more: Any) -> None:
        kept_open.append(os.dup(file.fileno()))
        large.write = real
        real(file, parts, **more)

    large.write = write
    return makes(1) * size
