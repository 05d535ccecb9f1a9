"""Corral's side. Usage: corral_side.py CALLS MAP MB STARTS. Prints one JSON line."""

from __future__ import annotations

import time
from typing import Any

import corral
from bench.functions import timing

app = corral.App("bench")


@app.function(idle="10m", max_instances=2)
def nop(n: int) -> int:
    return n


@app.function(idle="10m")
def echo(data: Any) -> Any:
    return data


def cold_ms(count: int, **options: Any) -> list[float]:
    """The first call of a function that nobody has called before."""
    spent = []
    for n in range(count):
        fresh = corral.App(f"cold{len(options)}-{n}")

        def first(given: int) -> int:
            return given

        member = fresh.function(idle="1s", **options)(first)
        began = time.perf_counter()
        member.remote(n)
        spent.append((time.perf_counter() - began) * 1000)
        # Its slot is free again before the next.
        time.sleep(1.5)
    return spent


def main() -> None:
    calls, many, mb, starts = timing.sizes()
    ms = timing.one_by_one(nop.remote, calls)
    if not many:
        timing.tell(ms=ms)
        return
    list(nop.map(range(min(many, 500))))
    map_s, got = timing.timed(lambda: list(nop.map(range(many))))
    assert got == list(range(many))
    large = timing.large(echo.remote, mb)
    plain = cold_ms(starts)
    cold_ms(1, python=["six"])
    built = cold_ms(starts, python=["six"])
    timing.tell(
        ms=ms,
        map=many,
        map_s=map_s,
        mb=mb,
        **large,
        copy_s=timing.copied_twice(mb),
        cold_ms=plain,
        plain_cold_ms=plain,
        built_cold_ms=built,
    )


if __name__ == "__main__":
    main()
