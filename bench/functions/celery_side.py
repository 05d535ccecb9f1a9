"""Celery with Redis, named in BENCH_REDIS. Usage: celery_side.py CALLS MAP MB STARTS. Prints a JSON line."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import celery

from bench.functions import timing

app = celery.Celery("bench", broker=os.environ["BENCH_REDIS"], backend=os.environ["BENCH_REDIS"])
app.conf.update(task_serializer="pickle", result_serializer="pickle", accept_content=["pickle", "json"])


def give_back(value: Any) -> Any:
    return value


nop = echo = app.task(give_back, name="give_back")


def main() -> None:
    calls, many, mb, _ = timing.sizes()
    here = os.path.dirname(os.path.abspath(__file__))
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "bench.functions.celery_side",
            "worker",
            "-c",
            "2",
            "-l",
            "ERROR",
        ],
        cwd=here,
        env={**os.environ, "C_FORCE_ROOT": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        nop.delay(0).get(timeout=60)
        ms = timing.one_by_one(lambda n: nop.delay(n).get(), calls)
        found = {"ms": ms, "version": celery.__version__}
        if many:
            celery.group(nop.s(n) for n in range(min(many, 500)))().get()
            map_s, _ = timing.timed(lambda: celery.group(nop.s(n) for n in range(many))().get())
            found |= {"map": many, "map_s": map_s, **timing.large(lambda data: echo.delay(data).get(), mb)}
        timing.tell(**found)
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
