"""Forecast against actual through the product: `corral up`, `corral submit`, `corral forecast report`.

    python -m bench.forecast measure fit held_out --out DIR [--limit-s 400] [--begin 3] [--commit HASH]
    python -m bench.forecast rows DIR/forecast.json > measured.json
    python -m bench.forecast merge DIR
    python -m bench.forecast table

`merge` takes the runs of DIR over into bench/results, where they replace the same ones, and writes the table;
`table` writes it again, with what the formula says now.

On a machine with a GPU (or a CPU, with `tiny`). Models are folders of random weights, written before the
first run: nothing but a run works on the machine while it is measured. The constants are fitted to the runs
of FIT alone: `rows` writes those for `bench.engine.fit_calibration`. HELD_OUT has other shapes and other
settings, and the table is of those.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench import forecast_results as results
from bench.commits import current
from bench.forecast_shapes import SHAPES, words

RESULTS = Path("bench/results")
# Models that are written at once.
_WRITERS = 4


@dataclass(frozen=True)
class Setting:
    """One run: `train` is its table beside the data. `tokens` are of a row on average, or of a prompt."""

    shape: str
    train: Mapping[str, Any]
    tokens: int = 300
    rows: int = 400
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def grpo(self) -> bool:
        return "grpo" in self.train


def _sft(shape: str, rank: int, batch: int, tokens: int = 300, **more: Any) -> Setting:
    table = {"batch_size": batch, "steps": 15, "lora": {"rank": rank}, **more}
    return Setting(shape, table, tokens)


def _grpo(
    shape: str, rank: int, prompts: int, group: int, completion: int, tokens: int = 100, steps: int = 8
) -> Setting:
    grpo = {"group_size": group, "max_completion": completion}
    table = {"prompts_per_step": prompts, "steps": steps, "lora": {"rank": rank}, "grpo": grpo}
    return Setting(shape, table, tokens, rows=64)


TINY = (_sft("tiny", 8, 8, 40), _grpo("tiny", 8, 2, 4, 12, 20))
FIT = (
    _sft("qwen3-0.6b", 16, 32),
    _grpo("qwen3-0.6b", 16, 16, 8, 256),
    _sft("llama-3b", 64, 16),
    _grpo("llama-3b", 8, 8, 16, 128),
    _sft("qwen3-8b/4", 16, 16, max_length=4096, tokens=900),
    _grpo("qwen3-8b/4", 32, 8, 8, 192, tokens=400),
    _sft("small-360m", 8, 32),
    _grpo("small-360m", 64, 32, 8, 512),
    _sft("qwen3-4b/2", 32, 24, recompute="full"),
    _grpo("qwen3-4b/2", 16, 4, 4, 384),
    _sft("qwen3-0.6b", 256, 8),
    _grpo("qwen3-0.6b", 4, 32, 16, 96, tokens=30),
)
# Once held out. The constants were fitted anew after their errors were seen, so they are no longer.
SEEN = (
    _grpo("qwen2.5-1.5b", 16, 2, 32, 1024, steps=5),
    _sft("qwen2.5-1.5b", 128, 16, max_length=4096, tokens=700),
    _sft("llama-1b", 2, 16),
    _grpo("llama-1b", 16, 16, 4, 64),
    _sft("mistral-7b/4", 16, 16),
    _grpo("mistral-7b/4", 2, 8, 4, 64, tokens=200),
    _sft("qwen3-1.7b", 16, 32, tokens=200, recompute="full"),
    _grpo("qwen2.5-0.5b", 8, 16, 16, 256),
    _sft("smollm-1.7b", 8, 24, tokens=400),
    _grpo("qwen3-1.7b", 128, 4, 32, 64),
    _sft("nemo-12b/5", 2, 16),
    _grpo("smollm-1.7b", 32, 8, 8, 128),
    _sft("qwen2.5-3b", 64, 8, tokens=600),
    _sft("tinyllama", 4, 64, tokens=150),
    _grpo("qwen2.5-3b", 16, 4, 4, 1024, steps=5),
)
HELD_OUT = (
    _sft("deepseek-1.3b", 8, 24, tokens=350),
    _grpo("granite-2b", 16, 8, 8, 256),
    _sft("yi-6b/4", 32, 16, tokens=250),
    _grpo("qwen2.5-7b/4", 128, 4, 32, 64),
    _sft("granite-2b", 128, 8, max_length=4096, tokens=900),
    _grpo("deepseek-1.3b", 2, 16, 4, 128),
    _sft("qwen3-14b/8", 16, 16, recompute="full"),
    _sft("qwen2.5-7b/4", 2, 12, tokens=500),
    _grpo("llama-8b/4", 8, 2, 32, 1024, tokens=200),
    _sft("llama-8b/4", 64, 48, tokens=120),
)
# Held out too, apart for their 15 GB.
LARGE = (_sft("mistral-7b", 16, 16), _grpo("mistral-7b", 2, 8, 4, 64, tokens=200))
SETS = {"tiny": TINY, "fit": FIT, "seen": SEEN, "held_out": HELD_OUT, "large": LARGE}


# -- one installation ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Installation:
    """`corral up` in a folder of its own, and the commands that a user gives it."""

    home: Path
    env: Mapping[str, str]

    def corral(self, *words: str, cwd: Path | None = None) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "corral", *words, "--json"],
            env=dict(self.env),
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"corral {' '.join(words)}: {done.stderr[-2000:]}")
        return json.loads(done.stdout)


@contextmanager
def installation(folder: Path) -> Iterator[Installation]:
    home = folder / "home"
    home.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
    # Code that is compiled for one run is there for the next, and nothing of an earlier bench.
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
    env = {**kept, **cache, "CORRAL_HOME": str(home), "CORRAL_PORT": "0", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "corral"]
    subprocess.run([*command, "up", "--detach"], env=env, check=True, timeout=90)
    try:
        yield Installation(home, env)
    finally:
        subprocess.run([*command, "down", "--timeout", "5"], env=env, check=False, timeout=60)


# -- runs ---------------------------------------------------------------------------------------------

_ENVIRONMENT = """
import json, pathlib, zlib

ROWS = json.loads((pathlib.Path(__file__).parent / "rows.json").read_text())


def load_environment():
    return {"rows": ROWS, "eval_rows": ROWS[:16], "reward": reward}


def reward(completion):
    return zlib.crc32(completion.encode()) % 100 / 100
"""


def write_run(folder: Path, setting: Setting, model: Path, number: int) -> Path:
    """The run file and its data."""
    folder.mkdir()
    table = dict(setting.train)
    if setting.grpo:
        prompts = [{"prompt": words(setting.tokens, number * 1000 + row)} for row in range(setting.rows)]
        (folder / "task").mkdir()
        (folder / "task" / "rows.json").write_text(json.dumps(prompts))
        (folder / "task" / "environment.py").write_text(_ENVIRONMENT)
        table |= {"recipe": "grpo", "environment": "task", "learning_rate": 1e-6}
    else:
        with (folder / "chat.jsonl").open("w") as file:
            for row in range(setting.rows):
                # From a quarter of the mean to seven quarters.
                count = max(8, setting.tokens * (1 + 6 * (row * 37 % 101) // 100) // 4)
                said = [words(part, number * 1000 + row) for part in (count // 3, count - count // 3)]
                turns = zip(("user", "assistant"), said, strict=True)
                file.write(json.dumps({"messages": [{"role": r, "content": t} for r, t in turns]}) + "\n")
        table |= {"recipe": "sft", "data": "chat.jsonl", "learning_rate": 1e-6}
    path = folder / "run.toml"
    whole = {"name": f"run-{number}", "model": str(model), "train": table, "env": dict(setting.env)}
    path.write_text(_toml(whole))
    return path


def _toml(whole: Mapping[str, Any], prefix: str = "") -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in whole.items() if not isinstance(value, dict)]
    for key, value in whole.items():
        if isinstance(value, dict) and value:
            lines += ["", f"[{prefix}{key}]", _toml(value, f"{prefix}{key}.")]
    return "\n".join(lines) + "\n"


def measure(settings: Sequence[tuple[str, Setting]], folder: Path, limit_s: float) -> dict[str, Any]:
    """One run after the other; what has ended when the time is up is in the report."""
    from bench import host_speed  # needs torch, which reading results does not

    until = time.monotonic() + limit_s
    submitted: dict[str, tuple[str, Setting]] = {}
    made = write_models(folder / "models", {setting.shape for _, setting in settings})
    print(f"{_since()} models are written", flush=True)
    host = host_speed.measure()
    with installation(folder) as there:
        for number, (name, setting) in enumerate(settings):
            if time.monotonic() > until:
                break
            path = write_run(folder / f"run-{number}", setting, made[setting.shape], number)
            run = there.corral("submit", path.name, cwd=path.parent)["ids"][0]
            submitted[run] = (name, setting)
            if all(later.shape != setting.shape for _, later in settings[number + 1 :]):
                shutil.rmtree(made[setting.shape])  # the server has it, and a disk may not hold it thrice
            print(f"{_since()} submitted {run}: {name} {describe(setting)}", flush=True)
            _wait(there, run, until)
        found = there.corral("forecast", "report", "--limit", "100")
    runs = []
    for record in reversed(found["runs"]):
        name, setting = submitted[record["run"]]
        about = {"set": name, "what": describe(setting), "shape": setting.shape, "host": host}
        runs.append({**about, "first": "libraries" not in record["forecast"]["compiled"], **record})
    return {"runs": runs}


def write_models(folder: Path, shapes: Iterable[str]) -> dict[str, Path]:
    from bench import forecast_models

    made = {shape: folder / shape.replace("/", "-") for shape in shapes}
    with ProcessPoolExecutor(_WRITERS, mp_context=get_context("spawn")) as writers:
        for done in [writers.submit(forecast_models.write, made[shape], SHAPES[shape]) for shape in made]:
            done.result()
    return made


def _wait(there: Installation, run: str, until: float) -> None:
    """Until the run has ended, or the time is up."""
    while time.monotonic() < until:
        time.sleep(2.0)
        state = there.corral("show", run)["state"]
        if state not in ("succeeded", "failed", "cancelled"):
            continue
        print(f"{_since()} {run} {state}", flush=True)
        if state == "failed":
            shown = [sys.executable, "-m", "corral", "logs", run]
            told = subprocess.run(shown, env=dict(there.env), capture_output=True, text=True, check=False)
            print(told.stdout[-3000:], told.stderr[-1000:], flush=True)
        return


_BEGAN = time.monotonic()


def _since() -> str:
    return f"{time.monotonic() - _BEGAN:6.1f} s"


def describe(setting: Setting) -> str:
    table = setting.train
    rank = f"r{table['lora']['rank']}"
    if setting.grpo:
        grpo = table["grpo"]
        sizes = f"{table['prompts_per_step']} x {grpo['group_size']} of {setting.tokens}"
        return f"grpo {setting.shape}, {sizes} + {grpo['max_completion']}, {rank}"
    recompute = ", recomputed" if table.get("recompute") == "full" else ""
    return f"sft {setting.shape}, {table['batch_size']} x {setting.tokens}, {rank}{recompute}"


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    said.add_argument("command", choices=["measure", "rows", "merge", "table"])
    said.add_argument(
        "names", nargs="*", help=f"of {', '.join(SETS)}; the file for `rows`, the folder to merge"
    )
    said.add_argument("--out", type=Path, default=RESULTS)
    said.add_argument("--work", type=Path, help="where models and the installation are kept for a while")
    said.add_argument("--limit-s", type=float, default=3600.0)
    said.add_argument(
        "--begin", type=int, default=0, help="the first of the runs, where others were done before"
    )
    said.add_argument("--commit", default=current(), help="what is measured, where there is no history")
    asked = said.parse_args()
    if asked.command == "rows":
        print(json.dumps(results.fitted_rows(json.loads(Path(asked.names[0]).read_text())), indent=1))
    elif asked.command == "measure":
        settings = [(name, setting) for name in asked.names for setting in SETS[name]][asked.begin :]
        _measure(settings, asked)
    elif asked.command == "merge":
        results.merge(Path(asked.names[0]), asked.out, commit=asked.commit)
    else:
        results.write_table(asked.out, commit=asked.commit)


def _measure(settings: Sequence[tuple[str, Setting]], asked: argparse.Namespace) -> None:
    work = Path(tempfile.mkdtemp(prefix="corral-forecast-", dir=asked.work))
    try:
        kept = measure(settings, work, asked.limit_s)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for run in kept["runs"]:
        run["commit"] = asked.commit
    devices = sorted({run["device"]["name"] for run in kept["runs"]})
    kept = {"machine": ", ".join(devices), "commit": asked.commit, **kept}
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "forecast.json").write_text(json.dumps(kept, indent=1) + "\n")
    for run in kept["runs"]:
        print(run["what"], json.dumps(run["error"]), flush=True)


if __name__ == "__main__":
    main()
