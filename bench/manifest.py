"""How long a manifest of ten thousand runs takes: the first apply, the same again, a plan, a change."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from bench.options import Options
from bench.processes import RunningServer, environment, folder, server
from bench.report import Figure, Result, Table

NAME = "manifest"
FIRST_S = 5.0
METHOD = (
    "`corral manifest apply` and `plan` as programs of their own, from start to exit, one after another "
    "against one server on this machine; the file is either one table per run, or one sweep.",
    "an apply is one transaction, durable before it is answered (SQLite, synchronous=FULL); CPU is user and "
    "system time of the command and of the server while it ran.",
)


def measure(options: Options) -> Result:
    count = 200 if options.quick else 10_000
    result = Result(NAME, f"A manifest of {count} runs", METHOD)
    rows: list[list[str]] = []
    for shape, write in (("one table per run", _tables), ("one sweep", _sweep)):
        spent = _measure(count, write, rows, shape)
        result.data[shape] = spent
        ratio = spent["first apply"] / spent["second apply"]
        result.figures += [
            Figure(
                f"first apply, {shape}",
                f"{spent['first apply']:.2f} s",
                f"a few seconds (<= {FIRST_S:.0f})",
                spent["first apply"] <= FIRST_S,
            ),
            Figure(
                f"second apply, {shape}",
                f"{spent['second apply']:.2f} s, {ratio:.1f} times faster",
                "faster",
                ratio > 1,
            ),
        ]
    headers = ["file", "command", "s", "command's CPU s", "server's CPU s", "it said"]
    result.details.append(Table(headers, rows, "Commands"))
    return result


def _measure(
    count: int, write: Callable[[Path, int, int], None], rows: list[list[str]], shape: str
) -> dict[str, float]:
    spent: dict[str, float] = {}
    with folder() as home, server(home) as running:
        path = home / "fleet.toml"
        write(path, count, 0)
        for what, words in (
            ("first plan", ["plan"]),
            ("first apply", ["apply"]),
            ("second apply", ["apply"]),
            ("plan", ["plan"]),
        ):
            spent[what] = _run(running, words, path, rows, (shape, what))
        write(path, count, 5)
        spent["changed priority"] = _run(running, ["apply"], path, rows, (shape, "apply, priority changed"))
        write(path, 1, 5)
        spent["removed"] = _run(running, ["apply"], path, rows, (shape, "apply, all but one removed"))
    return spent


def _run(
    running: RunningServer, words: list[str], path: Path, rows: list[list[str]], what: tuple[str, str]
) -> float:
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    theirs = psutil.Process(running.pid).cpu_times()
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "corral.cli.main", "manifest", *words, str(path)],
        env=environment(running.home, CORRAL_URL=running.url, CORRAL_TOKEN=running.token),
        capture_output=True,
        text=True,
        check=False,
    )
    spent_s = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    server_after = psutil.Process(running.pid).cpu_times()
    own_s = after.ru_utime + after.ru_stime - ours.ru_utime - ours.ru_stime
    server_s = server_after.user + server_after.system - theirs.user - theirs.system
    said = done.stdout.strip().splitlines()[-1]
    rows.append([*what, f"{spent_s:.2f}", f"{own_s:.2f}", f"{server_s:.2f}", said])
    return spent_s


def _tables(path: Path, count: int, priority: int) -> None:
    head = f'name = "bench"\n[defaults]\nargv = ["train", "{{params.n}}"]\npriority = {priority}\n'
    runs = "".join(f"[runs.run-{n}]\nparams.n = {n}\n" for n in range(count))
    path.write_text(head + runs, encoding="utf-8")


def _sweep(path: Path, count: int, priority: int) -> None:
    values = ", ".join(map(str, range(count)))
    path.write_text(
        f'name = "bench"\n[runs.grid]\nargv = ["train", "{{params.n}}"]\npriority = {priority}\n'
        f"sweep.n = [{values}]\n",
        encoding="utf-8",
    )
