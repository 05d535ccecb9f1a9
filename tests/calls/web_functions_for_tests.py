"""Functions over HTTP, as a user writes them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import date, datetime
from enum import Enum
from typing import Any, Literal, NamedTuple
from uuid import UUID

from pydantic import BaseModel

import corral

app = corral.App("quay")


class Crate(BaseModel):
    name: str
    kilos: list[float]


class Weight(BaseModel):
    name: str
    total: float


@app.web("/crates", method="POST")
def weigh(crate: Crate) -> Weight:
    return Weight(name=crate.name, total=sum(crate.kilos))


@app.web("/crates", method="GET")
def find(number: int, fast: bool = False) -> list[int | bool]:
    return [number, fast]


class Flag(Enum):
    RED = "red"
    BLUE = "blue"


class Ticket(NamedTuple):
    number: int
    flag: Flag


@app.web("/tickets/{number}/{flag}", method="GET")
def ticket(number: int, flag: Flag, since: datetime | None = None) -> dict[str, Any]:
    return {"ticket": Ticket(number, flag), "since": since, "day": date(2026, 1, 2), "id": UUID(int=number)}


@app.web("/files/{name:path}", method="PUT")
def put_file(name: str, sizes: tuple[int, ...], kind: Literal["text", "bytes"] = "text") -> list[Any]:
    return [name, sizes, kind]


@app.web("/boats", method="GET")
def watch(count: int) -> Iterator[dict[str, int]]:
    for n in range(count):
        yield {"boat": n}


@app.web("/words", method="GET")
def speak() -> Iterator[str]:
    yield "all "
    yield "aboard"


@app.web("/boats", method="GET")
def sink() -> None:
    raise OSError("a leak")


@app.web("/boats", method="GET")
def leak() -> Iterator[bytes]:
    yield b"water"
    raise OSError("too much of it")


@app.web("/boats", method="GET", timeout="1s")
def dawdle() -> None:
    time.sleep(60)


@app.web("/boats", method="GET")
def flag(wanted: int) -> tuple[int, bytes]:
    return wanted, b"\x00\x01"


@app.web("/boats", method="GET")
def large() -> list[str]:
    return ["boat"] * 50_000


@app.web("/boats", method="GET")
def huge(mebibytes: int) -> bytes:
    return b"boat" * (mebibytes << 18)


@app.web("/boats", method="GET")
def huge_bits(mebibytes: int) -> Iterator[bytes]:
    yield b"boat" * (mebibytes << 18)
