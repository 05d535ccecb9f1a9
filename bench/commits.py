"""At which commit a table was measured, and whether what it measures has changed since."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import RESULTS, Table, plain

ROOT = Path(__file__).parents[1]
_SERVER = (
    "corral/server",
    "corral/core",
    "corral/store",
    "corral/domain",
    "corral/wire",
    "corral/bootstrap/server.py",
)
_CLIENT = ("corral/client", "corral/wire", "corral/domain")
_INSTANCE = ("corral/worker", "corral/instance")
_ROUNDS = ("corral/diloco", "corral/files", "bench/diloco/replicas.py")
# The code that each table is about; its script under bench/ counts too.
MEASURED: Mapping[str, tuple[str, ...]] = {
    "cycles": (*_SERVER, "bench/cycles.py"),
    "start": (*_SERVER, "corral/worker", "bench/start.py"),
    "functions": (
        *_SERVER,
        *_CLIENT,
        "corral/worker",
        "corral/instance",
        "corral/functions",
        "bench/functions",
    ),
    "deep_queue": (*_SERVER, "bench/deep_queue.py"),
    "eligibility": (*_SERVER, "bench/eligibility.py"),
    "polling": (*_SERVER, "bench/polling.py"),
    "beats": (*_SERVER, "bench/beats.py"),
    "manifest": (*_SERVER, *_CLIENT, "corral/cli/manifests.py", "bench/manifest.py"),
    "memory": (*_SERVER, "corral/worker", "bench/memory.py"),
    "upload": (*_SERVER, *_CLIENT, "corral/adapters", "bench/upload.py"),
    "help": ("corral/cli/main.py", "corral/__init__.py", "bench/help_time.py"),
    "simulation": (*_SERVER, "bench/simulation.py", "bench/simulated.py"),
    "gangs": (
        "corral/core",
        "corral/store",
        "corral/domain",
        "bench/gang_waits.py",
        "bench/simulated.py",
        "bench/workload.py",
    ),
    "gang_start": (*_SERVER, "corral/worker", "bench/gang_start.py"),
    "observe": ("corral/adapters/executors", "bench/observe.py"),
    "idle": (*_SERVER, "corral/adapters/executors", "bench/idle.py"),
    "diloco_rounds": (*_ROUNDS, "bench/diloco/rounds.py", "bench/diloco/beside.py"),
    "diloco_streaming": (*_ROUNDS, "bench/diloco/streaming.py"),
    "diloco_quality": ("corral/diloco", "bench/diloco/quality.py", "bench/diloco/text_model.py"),
    "engine": ("corral/engine", "corral/recipes", "bench/engine"),
    "forecast": ("corral/engine", "corral/recipes", "bench/forecast.py", "bench/forecast_models.py"),
}


def current() -> str | None:
    """The commit of this checkout, with `+` where files differ from it; None where there is no history."""
    commit = _git("rev-parse", "--short=10", "HEAD")
    if commit is None:
        return None
    return f"{commit}+" if _git("status", "--porcelain", "--", "corral", "bench/*.py") else commit


def stale(folder: Path = RESULTS) -> Table:
    """The tables whose measured code has changed since, or of which nobody knows the commit."""
    rows = []
    for name, paths in MEASURED.items():
        file = folder / f"{name}.json"
        if not file.exists():
            rows.append([name, "", "never measured"])
            continue
        for commit in sorted(measured_at(json.loads(file.read_text())), key=str):
            if (why := _stale(commit, paths)) is not None:
                rows.append([name, commit or "", why])
    return Table(("table", "commit", "why"), rows)


def measured_at(kept: Any) -> set[str | None]:
    """The commits of a file of results: of the whole, of each part or of each record; None if one is missing.

    Parts of the engine's table are measured apart and merged.
    """
    if isinstance(kept, list):
        return {record.get("commit") for record in kept}
    commit = kept.get("commit")
    found = set(commit.values()) if isinstance(commit, dict) else {commit}
    return found | measured_at(kept.get("sweep", []))


def _stale(commit: str | None, paths: tuple[str, ...]) -> str | None:
    if commit is None:
        return "its commit is not known"
    changed = _git("diff", "--name-only", commit.rstrip("+"), "--", *paths)
    if changed is None:
        return "its commit is not in this history"
    if changed or commit.endswith("+"):
        return f"{len(changed.splitlines())} files of what it measures have changed"
    return None


def show_stale() -> None:
    table = stale()
    print(plain(table) if table.rows else "every table was measured with the code of today")


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
