"""Jobs for tests: small specs for `corral/tiny`, run in this process or in one of their own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from corral.engine.job import EngineJob
from corral.engine.reports.events import EventWriter, TerminalOutput
from corral.engine.spec import JobPaths, read
from corral.engine.training.stop_signal import StopSignal

REPOSITORY = Path(__file__).parents[2]
# Timings and memory differ from run to run; nothing else may.
VARYING = ("tokens_per_s", "step_s", "memory_gib", "mfu", "completions_per_s")
ENVIRONMENT = """
def load_environment(top: int = 4):
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(top) for b in range(top)]
    return {"rows": rows, "eval_rows": rows[::2], "reward": reward}


def reward(completion, answer):
    return {"right": completion.startswith(answer), "digit": 0.1 * completion[:1].isdigit()}
"""


def sums(folder: Path, *, top: int = 10) -> Path:
    """Rows that teach sums."""
    path = folder / "sums.jsonl"
    rows = ({"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(top) for b in range(top))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sft(folder: Path, **train: Any) -> Path:
    sums(folder)
    table = {
        "recipe": "sft",
        "data": "sums.jsonl",
        "eval_fraction": 0.2,
        "steps": 12,
        "batch_size": 8,
        "learning_rate": 5e-3,
        "save_every": 4,
        "max_length": 64,
        **train,
    }
    return write(folder, {"model": "corral/tiny", "seed": 3, "train": table})


def grpo(folder: Path, *, source: str = ENVIRONMENT, **train: Any) -> Path:
    (folder / "environment.py").write_text(source)
    table = {
        "recipe": "grpo",
        "environment": "environment.py",
        "steps": 8,
        "prompts_per_step": 4,
        "learning_rate": 2e-3,
        "save_every": 3,
        "max_length": 48,
        "eval_rows": 8,
        **train,
    }
    table["grpo"] = {"group_size": 4, "max_completion": 4, **train.get("grpo", {})}
    return write(folder, {"model": "corral/tiny", "seed": 3, "train": table})


def write(folder: Path, spec: Mapping[str, Any]) -> Path:
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    return path


def command(spec: Path, name: str, *more: str) -> list[str]:
    out, kept = spec.parent / name, spec.parent / f"{name}-checkpoints"
    return [
        sys.executable,
        "-m",
        "corral.engine",
        str(spec),
        "--output",
        str(out),
        "--checkpoints",
        str(kept),
        *more,
    ]


def environ(**more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")}
    return {
        **own,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH")))),
        **more,
    }


def run(spec: Path, name: str = "output", *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The job in a process of its own, to its end."""
    return subprocess.run(
        command(spec, name, *more),
        env=environ(**variables),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def losses(folder: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    """Every number of a finished run that must not depend on when it was killed."""
    said = json.loads((folder / "metrics.json").read_bytes())
    history = [{k: v for k, v in row.items() if k not in VARYING} for row in said["history"]]
    return history, [(e["step"], e["metric"], e["values"]) for e in said["evaluations"]]


class Killed(BaseException):
    """Stands for a SIGKILL in a test that does not want to start processes."""


class FragileEvents(EventWriter):
    """Ends the run when it is about to say its `die_at`th thing, or that a step after `die_after` is done."""

    def __init__(self, die_at: int | None, die_after: int | None) -> None:
        super().__init__(None, TerminalOutput(io.StringIO()))
        self.said: list[Mapping[str, object]] = []
        self._die_at, self._die_after = die_at, die_after

    def _write(self, said: Mapping[str, Any]) -> None:
        if self._die_at is not None and len(self.said) >= self._die_at:
            raise Killed
        if self._die_after is not None and said.get("step", 0) > self._die_after:
            raise Killed
        self.said.append(said)
        super()._write(said)


def places(spec: Path, name: str) -> JobPaths:
    return JobPaths(spec, spec.parent / name, spec.parent / f"{name}-checkpoints")


def here(
    spec: Path,
    name: str = "output",
    *,
    again: bool = False,
    die_at: int | None = None,
    die_after: int | None = None,
    **variables: str,
) -> FragileEvents:
    """The job in this process, among `variables`; gives what it said. With `die_at` or `die_after` it ends
    there as if it were killed."""
    torch.set_num_threads(1)
    events = FragileEvents(die_at, die_after)
    job = EngineJob(read(spec), places(spec, name), variables, events, StopSignal(), again=again)
    if die_at is None and die_after is None:
        job.run()
        return events
    with suppress(Killed):
        job.run()
        raise AssertionError("the job ended before it could be killed")
    return events
