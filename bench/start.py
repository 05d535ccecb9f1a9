"""From submit to the child's first instruction, on a worker that is warm."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from typing import Any

from bench import rival
from bench.options import Options
from bench.processes import folder, station
from bench.ray_head import ray_head
from bench.report import Figure, Result, Table, percentile
from corral.client.corral import Corral
from corral.wire.logs import LogLine
from corral.wire.spec.run_file import RunSpec

NAME = "start"
TARGET_MS = 100
TARGET_RATIO = 10
METHOD = (
    "`corral up`, three runs to warm it, then one run after another by the client library over a connection "
    "that is open; what the child itself prints (`date +%s%N`) less the time just before submit() is called.",
    "Corral's submit is durable before it is placed. Ray: `ray start --head` on loopback with the dashboard, "
    "JobSubmissionClient.submit_job() with the same `date`, two to warm it; Ray keeps jobs in memory.",
)


def measure(options: Options) -> Result:
    result = Result(NAME, "Submit to the child's first instruction", METHOD)
    date = shutil.which("date") or "/bin/date"
    children = {
        "date": [date, "+%s%N"],
        "sh -c date": ["sh", "-c", "date +%s%N"],
        "python -c": [sys.executable, "-c", "import time; print(time.time_ns())"],
    }
    runs = 3 if options.quick else 50
    spent: dict[str, list[float]] = {}
    with folder() as home, station(home) as running, Corral(running.url, running.token) as corral:
        for _ in range(3):
            _start_ms(corral, children["date"])
        for name, argv in children.items():
            count = runs if name == "date" else max(3, runs // 3)
            spent[name] = [_start_ms(corral, argv) for _ in range(count)]
    theirs = None if options.quick else _ray(result, [date, "+%s%N"])
    _report(result, spent, theirs)
    return result


def _start_ms(corral: Corral, argv: list[str]) -> float:
    """Waits for the end of the run, so that the next finds the worker idle."""
    spec = RunSpec(name="bench", argv=argv)
    began = time.time_ns()
    (run_id,) = corral.runs.submit([spec]).ids
    first: int | None = None
    for item in corral.runs.follow(run_id):
        if isinstance(item, LogLine) and item.stream == "stdout" and first is None:
            first = int(item.text)
    if first is None:
        raise RuntimeError(f"run {run_id} printed nothing")
    return (first - began) / 1e6


def _ray(result: Result, entrypoint: list[str]) -> list[float] | None:
    try:
        rival.install()
        with ray_head() as address:
            found: dict[str, Any] = rival.run(
                "ray_jobs.py", [address, "10", " ".join(entrypoint)], timeout_s=60
            )
    except rival.RivalMissing as error:
        result.notes.append(f"Ray was not measured: {error}")
        return None
    result.data["ray"] = found
    return list(found["ms"])


def _report(result: Result, spent: dict[str, list[float]], theirs: list[float] | None) -> None:
    ray = None if theirs is None else statistics.median(theirs)
    for name, values in spent.items():
        ours = statistics.median(values)
        met = ours <= TARGET_MS and (ray is None or ray >= TARGET_RATIO * ours)
        result.figures.append(
            Figure(
                f"submit to first instruction, {name}, median",
                f"{ours:.0f} ms",
                f"<= {TARGET_MS} ms and {TARGET_RATIO}x faster" if name == "date" else "",
                met if name == "date" else None,
                f"Ray job {ray:.0f} ms" if ray is not None else "",
                f"{ray / ours:.0f}x" if ray is not None else "",
            )
        )
    everyone = {**spent, **({} if theirs is None else {"Ray job, date": theirs})}
    rows = [
        [name, str(len(values)), f"{min(values):.0f}"]
        + [f"{percentile(values, p):.0f}" for p in (0.5, 0.9)]
        + [f"{max(values):.0f}"]
        for name, values in everyone.items()
    ]
    result.details.append(Table(["child", "runs", "min ms", "p50 ms", "p90 ms", "max ms"], rows, "Spread"))
    result.data["ms"] = spent
