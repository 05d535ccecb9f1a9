"""What came of the runs of bench/forecast.py: rows to fit to, and the tables of bench/results/forecast.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.engine import fit_calibration
from corral.recipes.forecast import forecast_plan

Run = Mapping[str, Any]
GIB = 1 << 30
KEYS = {"peak_bytes": "peak", "step_s": "step", "setup_s": "set-up", "total_s": "whole run"}
# Held out from every fit.
SHOWN = ("held_out", "large")


def fitted_rows(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs that constants may be fitted to, as `bench.engine.fit_calibration` reads them."""
    return [row(run) for run in kept["runs"] if run["set"] in ("fit", "plain", "seen")]


def row(run: Run) -> dict[str, Any]:
    """A run as `bench.engine.fit_calibration` reads it."""
    keys = ("peak_bytes", "step_s", "setup_s")
    # What set `plain` apart was not recorded. Its peaks are 2 and 5% above those of `fit`, as with torch's
    # own allocator; its times are taken to be those of the product.
    # `outdated` is what the engine has been better at since: its host used to wait for the device.
    left_out = {*run.get("outdated", ()), *(("peak_bytes",) if run["set"] == "plain" else ())}
    measured = {key: run["actual"][key] for key in keys if key not in left_out}
    return {
        "what": run["what"],
        "model": run["facts"],
        "train": run["train"],
        "gpu": run["device"]["gpu"],
        "cores": run["device"]["cores"],
        "plan": {key: run["forecast"][key] for key in ("micro_tokens", "recompute", "rows", "context")},
        "compiled": compiled(run),
        "pace": run["forecast"].get("pace", 1.0),
        "data": run["forecast"]["data"],
        **measured,
        "commit": run.get("commit"),
    }


def compiled(run: Run) -> list[str]:
    """Records from before `libraries` was one of the parts do not name it."""
    return sorted({*run["forecast"]["compiled"], *(() if run["first"] else ("libraries",))})


def said_then(run: Run) -> Mapping[str, float]:
    """The forecast that the run itself recorded before it began."""
    found: Mapping[str, float] = run["forecast"]
    return found


def said_now(run: Run) -> Mapping[str, float]:
    """What this checkout says of the same run, cut into the same pieces."""
    [known] = fit_calibration.read(json.dumps([row(run)]))
    return forecast_plan(known.case, known.plan).to_table()


def error(run: Run, key: str, said: Mapping[str, float]) -> float:
    was: float = run["actual"][key]
    return (said[key] - was) / was


def summary(runs: Sequence[Run], key: str, say: Callable[[Run], Mapping[str, float]]) -> str:
    found = [error(run, key, say(run)) for run in runs]
    sizes = [abs(one) for one in found] or [0.0]
    return f"median {median(sizes):.1%}, worst {max(sizes):.1%}, lowest {min(found, default=0.0):+.1%}"


def table(runs: Sequence[Run], say: Callable[[Run], Mapping[str, float]]) -> list[str]:
    heads = " | ".join(f"{name} said | was | error" for name in KEYS.values())
    lines = [f"| run | {heads} |", "|" + "---|" * (1 + 3 * len(KEYS))]
    for run in runs:
        said = say(run)
        cells = [run["what"] + _marks(run)]
        for key in KEYS:
            unit, digits = (GIB if key == "peak_bytes" else 1), (3 if key == "step_s" else 1)
            was = run["actual"][key]
            cells += [f"{one / unit:.{digits}f}" for one in (said[key], was)]
            cells.append(f"{error(run, key, said):+.1%}")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "GiB and seconds.", ""]
    return lines + [f"- {name}: {summary(runs, key, say)}" for key, name in KEYS.items()]


def _marks(run: Run) -> str:
    first = ", first on the machine" if run["first"] else ""
    return first + (", compiled before" if "training" in run["forecast"]["compiled"] else "")


def page(kept: Mapping[str, Any], commit: str | None) -> str:
    runs = [run for run in kept["runs"] if run["set"] in SHOWN]
    commits = sorted({run["commit"] for run in runs})
    lines = [
        "# Forecasts through the product",
        "",
        f"{kept['machine']}. Measured at commit {', '.join(commits)}. Each run was submitted with"
        " `corral submit` and a",
        "folder of random weights; figures are those of `corral forecast report`. None of these shapes was",
        "fitted to. Peak is what the card must have free. An error below 0 is an under-estimate.",
        "",
        *table(runs, said_then),
    ]
    if commits != [commit] and runs:
        lines += [
            "",
            "## The same runs, forecast anew",
            "",
            f"**Not a measurement.** `was` is as above; `said` is by the formula of commit {commit}.",
            "The formula was changed by someone who had seen the errors above, so these runs no longer show",
            "what it is worth: only new ones will.",
            "",
            *table(runs, said_now),
        ]
    return "\n".join(lines) + "\n"


def write_table(target: Path, *, commit: str | None) -> None:
    kept = json.loads((target / "forecast.json").read_text())
    (target / "forecast.md").write_text(page(kept, commit))


def merge(source: Path, target: Path, *, commit: str | None) -> None:
    """The runs of one file into another. A run that found its code compiled is another one, and so is the
    same run on another host where constants are fitted to both."""
    files = [folder / "forecast.json" for folder in (target, source) if (folder / "forecast.json").exists()]
    kept = [json.loads(file.read_text()) for file in files]
    every = [run for part in kept for run in part["runs"]]
    fitted = [run for run in every if run["set"] not in SHOWN]
    shown = {(run["set"], run["what"], *compiled(run)): run for run in every if run["set"] in SHOWN}
    runs = [*fitted, *shown.values()]
    commits = {run["what"]: run["commit"] for run in runs}
    whole = {"machine": kept[-1]["machine"], "commit": commits, "runs": runs}
    (target / "forecast.json").write_text(json.dumps(whole, indent=1) + "\n")
    write_table(target, commit=commit)
