"""Calls, maps, large payloads, cold starts and a soak, beside Ray tasks, Celery with Redis, and Dask."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import rival
from bench.functions.soak import soak
from bench.machine import fsync_p50_ms
from bench.options import Options
from bench.processes import environment, folder, station, stop
from bench.report import Figure, Result, Table, percentile

NAME = "functions"
HERE = Path(__file__).parent
RIVALS = ("ray", "celery", "dask")
ROUNDS = 3
METHOD = (
    "Each side runs the same no-op function in a warm process of its own on loopback: 300 calls one after "
    "the other, 10,000 by its own way of doing many (`map`, `group`, a list of refs), 100 MB there and back, "
    "from one client process. Corral is what `corral up` starts. Of single calls each side has three turns, "
    "one after another, and its best counts; of large payloads the best of three.",
    "Corral is durable: a call is on disk before it is accepted, and so is its outcome before it is told. "
    "Ray, Dask, and Celery with Redis as it is installed keep calls in memory. `in memory` is Corral with "
    "its data on a RAM disk, where syncing costs nothing.",
)


def measure(options: Options) -> Result:
    result = Result(NAME, "Remote functions", METHOD)
    sizes = ["30", "200", "1", "2"] if options.quick else ["300", "10000", "100", "7"]
    found = {"Corral": _corral(sizes, None)}
    if not options.quick:
        found["Corral, in memory"] = _corral(sizes, "/dev/shm")
        for name in RIVALS:
            try:
                found[name.capitalize()] = _rival(name, sizes)
            except rival.RivalMissing as error:
                result.notes.append(f"{name} was not measured: {error}")
        _in_turn(found, [sizes[0], "0", "0", "0"])
    fsync_ms = fsync_p50_ms()
    _report(result, found, fsync_ms)
    with folder() as home, station(home, CORRAL_WORKER_SLOTS="2") as running:
        result.details.append(soak(running, 1_000 if options.quick else 100_000, result))
    result.data["found"] = found
    return result


def _in_turn(found: dict[str, Any], sizes: list[str]) -> None:
    """Single calls once more, each side in its turn: the speed of a machine changes from minute to minute."""
    for _ in range(ROUNDS - 1):
        for name, one in found.items():
            if name.startswith("Corral"):
                again = _corral(sizes, None if name == "Corral" else "/dev/shm")
            else:
                again = _rival(name.lower(), sizes)
            one["ms"] = min(one["ms"], again["ms"], key=statistics.median)


def _corral(sizes: list[str], disk: str | None) -> dict[str, Any]:
    """`disk` is a folder on the disk to use; None is the usual one."""
    before = tempfile.tempdir
    tempfile.tempdir = disk if disk is not None and os.path.isdir(disk) else before
    try:
        with folder() as home, station(home, CORRAL_WORKER_SLOTS="6"):
            environ = environment(home, PYTHONPATH=str(rival.ROOT))
            command = [sys.executable, str(HERE / "corral_side.py"), *sizes]
            return dict(rival.read(command, environ, timeout_s=400))
    finally:
        tempfile.tempdir = before


def _rival(name: str, sizes: list[str]) -> dict[str, Any]:
    rival.install()
    with ExitStack() as stack:
        environ = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(rival.ROOT)}
        if name == "celery":
            environ["BENCH_REDIS"] = stack.enter_context(_Redis()).url
        command = [str(rival.PYTHON), str(HERE / f"{name}_side.py"), *sizes]
        return dict(rival.read(command, environ, timeout_s=400))


class _Redis:
    """A `redis-server` of our own, as it comes: no append-only file, its snapshots off."""

    def __enter__(self) -> _Redis:
        program = shutil.which("redis-server")
        if program is None:
            raise rival.RivalMissing("there is no redis-server; on Debian: apt install redis-server")
        self._home = Path(tempfile.mkdtemp(prefix="cb-"))
        socket = self._home / "redis.sock"
        self.url = f"redis+socket://{socket}"
        self._process = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(self._home)],
            stdout=subprocess.DEVNULL,
        )
        give_up_at = time.monotonic() + 20
        while not socket.exists() and time.monotonic() < give_up_at:
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)
        shutil.rmtree(self._home, ignore_errors=True)


def _report(result: Result, found: dict[str, Any], fsync_ms: float) -> None:
    p50 = {name: statistics.median(one["ms"]) for name, one in found.items()}
    rate = {name: one["map"] / one["map_s"] for name, one in found.items()}
    ours = found["Corral"]
    ray, celery, memory = p50.get("Ray"), p50.get("Celery"), p50.get("Corral, in memory")
    allowed = None if celery is None else celery + 2 * fsync_ms
    figures = [
        Figure(
            "no-op call, median",
            f"{p50['Corral']:.2f} ms",
            "" if allowed is None else f"<= Celery + 2 fsyncs = {allowed:.2f} ms",
            None if allowed is None else p50["Corral"] <= allowed,
            "" if celery is None else f"Celery {celery:.2f} ms",
            "" if celery is None else f"{celery / p50['Corral']:.2f}x",
        )
    ]
    if memory is not None:
        figures.append(
            Figure(
                "no-op call without durability, median",
                f"{memory:.2f} ms",
                "<= 2x Ray's",
                None if ray is None else memory <= 2 * ray,
                "" if ray is None else f"Ray {ray:.2f} ms",
                "" if ray is None else f"{ray / memory:.2f}x",
            )
        )
    for what, by in (("calls in sequence", {name: 1000 / ms for name, ms in p50.items()}), ("map", rate)):
        for name, share in (("Celery", 1.0), ("Ray", 0.5)):
            theirs = by.get(name)
            figures.append(
                Figure(
                    f"{what}, against {name}",
                    f"{by['Corral']:.0f}/s",
                    f"> {share:g}x {name}'s",
                    None if theirs is None else by["Corral"] > share * theirs,
                    "" if theirs is None else f"{theirs:.0f}/s",
                    "" if theirs is None else f"{by['Corral'] / theirs:.2f}x",
                )
            )
    for what, key in (
        ("an array of {} MB there and back", "array_s"),
        ("{} MB of bytes there and back", "big_s"),
    ):
        figures.append(
            Figure(
                what.format(ours["mb"]),
                f"{ours[key]:.2f} s",
                "half the speed of copying a file twice",
                ours[key] <= 2 * ours["copy_s"],
                f"copy and sync {ours['copy_s']:.2f} s",
                f"{ours['copy_s'] / ours[key]:.2f}x",
            )
        )
    cold = statistics.median(ours["cold_ms"])
    figures.append(Figure("cold start of a function", f"{cold:.0f} ms", "< 1000 ms", cold < 1000))
    warm, built = statistics.median(ours["plain_cold_ms"]), statistics.median(ours["built_cold_ms"])
    figures.append(
        Figure("start with packages, built before", f"{built:.0f} ms", "", None, f"without {warm:.0f} ms")
    )
    result.figures += figures
    rows = [
        [
            name,
            "yes" if name == "Corral" else "no",
            f"{p50[name]:.2f}",
            f"{percentile(one['ms'], 0.9):.2f}",
            f"{rate[name]:.0f}",
            f"{one['array_s']:.2f}" if one.get("array_s") else "",
            f"{one['big_s']:.2f}" if one.get("big_s") else "",
        ]
        for name, one in found.items()
    ]
    headers = [
        "system",
        "durable",
        "call p50 ms",
        "call p90 ms",
        f"map of {ours['map']}: calls/s",
        f"array of {ours['mb']} MB, s",
        f"bytes of {ours['mb']} MB, s",
    ]
    result.details.append(Table(headers, rows, "Side by side"))
