"""How long `corral --help` takes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.options import Options
from bench.processes import environment, folder
from bench.report import Figure, Result, Table, percentile

NAME = "help"
TARGET_MS = 300
METHOD = (
    "the installed `corral --help` as a subprocess, wall time from start to exit, after one not counted;",
    "beside it a Python that does nothing (`python -c pass`), alternating; nothing is written.",
)


def measure(options: Options) -> Result:
    runs = 3 if options.quick else 20
    corral = [str(Path(sys.executable).parent / "corral"), "--help"]
    bare = [sys.executable, "-c", "pass"]
    spent: dict[str, list[float]] = {"corral --help": [], "python -c pass": []}
    with folder() as home:
        _wall_ms(corral, home)
        for _ in range(runs):
            spent["corral --help"].append(_wall_ms(corral, home))
            spent["python -c pass"].append(_wall_ms(bare, home))
    result = Result(NAME, "Time of `corral --help`", METHOD)
    median = statistics.median(spent["corral --help"])
    floor = statistics.median(spent["python -c pass"])
    result.figures.append(
        Figure(
            "corral --help, median",
            f"{median:.0f} ms",
            f"< {TARGET_MS} ms",
            median < TARGET_MS,
            f"bare Python {floor:.0f} ms",
            f"{median / floor:.1f}x",
        )
    )
    rows = [
        [
            name,
            *(f"{value:.0f}" for value in (min(values), statistics.median(values), percentile(values, 0.9))),
        ]
        for name, values in spent.items()
    ]
    result.details.append(Table(["command", "fastest ms", "median ms", "p90 ms"], rows, "Spread"))
    result.data = {"ms": spent}
    return result


def _wall_ms(command: list[str], home: Path) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment(home), stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1000
