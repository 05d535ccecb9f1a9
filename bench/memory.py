"""How much memory an idle `corral up` holds, and what in it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import psutil

from bench.options import Options
from bench.processes import Station, folder, station
from bench.report import Figure, Result, Table

NAME = "memory"
TARGET_MB = 150
LOOKS = 5
METHOD = (
    "`corral up --detach` in an empty home, with its bytecode compiled as an installation has it, left alone "
    "for 60 s; RSS and PSS from /proc of the server, the worker and their children, added up; PSS counts a "
    "page that both share once. The median of five looks: once a minute the worker asks for GPUs in a child, "
    "which takes 10 MB for a moment.",
    "what imports cost is the growth of RSS in a fresh Python that imports them in this order.",
)
SERVER_IMPORTS = (
    "asyncio",
    "pydantic",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "prometheus_client",
    "corral.bootstrap.server",
)
WORKER_IMPORTS = ("asyncio", "pydantic", "httpx", "psutil", "corral.client.corral", "corral.worker.__main__")
# Empty: bytecode is written, whatever the shell says.
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
PROBE = """
import importlib, json, psutil, sys
import corral.lean_imports
me = psutil.Process()
before, grown = me.memory_info().rss, {"(bare Python)": me.memory_info().rss}
for name in sys.argv[1:]:
    importlib.import_module(name)
    after = me.memory_info().rss
    grown[name], before = after - before, after
print(json.dumps(grown))
"""


def measure(options: Options) -> Result:
    result = Result(NAME, "Memory of an idle `corral up`", METHOD)
    if not options.quick:
        # Who compiles what it imports keeps some of what that took.
        with folder() as home, station(home, **COMPILED):
            pass
    with folder() as home, station(home, **COMPILED) as running:
        time.sleep(2 if options.quick else 60)
        used = _usually_used_mb(running, looks=1 if options.quick else LOOKS)
    rss, pss = (sum(process[kind] for process in used.values()) for kind in ("rss", "pss"))
    for kind, total in (("PSS", pss), ("RSS", rss)):
        result.figures.append(
            Figure(f"server + worker, {kind}", f"{total:.0f} MB", f"< {TARGET_MB} MB", total < TARGET_MB)
        )
    rows = [[name, f"{p['rss']:.1f}", f"{p['pss']:.1f}", f"{p['threads']:.0f}"] for name, p in used.items()]
    result.details.append(Table(["process", "RSS MB", "PSS MB", "threads"], rows, "Processes"))
    if not options.quick:
        for name, modules in (("server", SERVER_IMPORTS), ("worker", WORKER_IMPORTS)):
            grown = _imports_mb(modules)
            rows = [[module, f"{mb:.1f}"] for module, mb in grown.items()]
            result.details.append(Table(["import", "RSS MB"], rows, f"What the {name}'s imports hold"))
            result.data[f"{name}_imports_mb"] = grown
    result.data["processes"] = used
    return result


def _usually_used_mb(running: Station, looks: int) -> dict[str, dict[str, float]]:
    seen = []
    for _ in range(looks):
        seen.append(_used_mb(running))
        time.sleep(2)
    return sorted(seen, key=lambda used: sum(process["rss"] for process in used.values()))[looks // 2]


def _used_mb(running: Station) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for role, pid in (("server", running.server_pid), ("worker", running.worker_pid)):
        parent = psutil.Process(pid)
        for number, process in enumerate([parent, *parent.children(recursive=True)]):
            info = process.memory_full_info()
            name = role if number == 0 else f"{role}'s child {process.name()}"
            found[name] = {"rss": info.rss / 1e6, "pss": info.pss / 1e6, "threads": process.num_threads()}
    return found


def _imports_mb(modules: tuple[str, ...]) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", PROBE, *modules], capture_output=True, text=True, check=True)
    return {name: grown / 1e6 for name, grown in json.loads(done.stdout).items()}
