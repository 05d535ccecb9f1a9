"""The tables of bench/results from what was measured."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any


def write(folder: Path) -> None:
    kept = json.loads((folder / "engine.json").read_text())
    lines = ["# The engine and TRL on one GPU", "", _machine(kept), "", _commits(kept), ""]
    lines += _training(kept) + _rl(kept) + _sampling(kept) + _checks(kept)
    (folder / "engine.md").write_text("\n".join(lines) + "\n")
    if kept.get("sweep"):
        (folder / "engine-forecast-runs.json").write_text(json.dumps(kept["sweep"], indent=1) + "\n")


def merge(source: Path, target: Path) -> None:
    """What was measured since into the results: whole parts, and of the sweep the settings that it has."""
    new, kept = (json.loads((folder / "engine.json").read_text()) for folder in (source, target))
    swept = {record["what"]: record for record in [*kept.get("sweep", []), *new.pop("sweep", [])]}
    commit = dict.fromkeys(_parts(kept)) | kept.get("commit", {}) | new.get("commit", {})
    merged = kept | new | {"commit": commit, "sweep": [*swept.values()]}
    (target / "engine.json").write_text(json.dumps(merged, indent=1) + "\n")


def _parts(kept: dict[str, Any]) -> list[str]:
    """Each was measured at a commit of its own; of the sweep each record names one."""
    return [name for name in kept if name not in ("machine", "commit", "sweep")]


def _machine(kept: dict[str, Any]) -> str:
    facts = kept["machine"]
    return (
        f"{facts['gpu']}, torch {facts['torch']}, transformers {facts['transformers']}, TRL 1.16.0."
        " Random weights, LoRA r16 on all linear layers, bf16, AdamW. Rates: steps after the first ones;"
        " the first, with its compilation, has a column. MFU counts 4 FLOP per weight and token"
        " (forward, and backward through frozen weights) against 790 TFLOP/s, what a large product reaches."
        " SFT of both sides was measured in one run; GRPO of each side and sampling in others,"
        " on like machines."
    )


def _commits(kept: dict[str, Any]) -> str:
    """Parts may have been measured at different commits, and merged."""
    parts: defaultdict[str, list[str]] = defaultdict(list)
    for part in _parts(kept):
        parts[kept.get("commit", {}).get(part) or "unknown"].append(part)
    if len(parts) == 1:
        return f"Measured at commit {next(iter(parts))}."
    told = [f"measured at commit {commit}: {', '.join(names)}" for commit, names in parts.items()]
    return "By part, " + "; ".join(told) + "."


def _training(kept: dict[str, Any]) -> list[str]:
    lines = [
        "## SFT",
        "",
        "| run | tokens/s | over TRL | peak GiB | MFU | first step s |",
        "|---|---|---|---|---|---|",
    ]
    theirs = {row["what"].split()[2].rstrip(","): row for row in kept.get("trl_sft", [])}
    for row in [*kept.get("sft", []), *kept.get("trl_sft", [])]:
        rival = theirs.get(row["what"].split()[1].rstrip(","))
        ratio = "" if rival is None or row is rival else f"{row['per_s'] / rival['per_s']:.2f}"
        lines.append(
            f"| {row['what']} | {row['per_s']:,.0f} | {ratio} | {row['peak_gib']:.1f} |"
            f" {row['mfu']:.0%} | {row['first_s']:.0f} |"
        )
    return [*lines, ""]


def _rl(kept: dict[str, Any]) -> list[str]:
    lines = [
        "## GRPO",
        "",
        "| run | completions/s | over TRL | step s | peak GiB | |",
        "|---|---|---|---|---|---|",
    ]
    rival = (kept.get("trl_grpo") or [None])[0]
    for row in [*kept.get("grpo", []), *kept.get("trl_grpo", [])]:
        ratio = f"{row['per_s'] / rival['per_s']:.1f}" if rival and row is not rival else ""
        lines.append(
            f"| {row['what']} | {row['per_s']:.1f} | {ratio} | {row['step_s']:.2f} |"
            f" {row['peak_gib']:.1f} | {row['note']} |"
        )
    return [*lines, ""]


def _sampling(kept: dict[str, Any]) -> list[str]:
    lines = ["## Sampling", "", "| run | tokens/s | ms a step | peak GiB | |", "|---|---|---|---|---|"]
    for row in kept.get("decode", []):
        lines.append(
            f"| {row['what']} | {row['per_s']:,.0f} | {row['step_s'] * 1e3:.2f} | {row['peak_gib']:.1f} |"
            f" {row['note']} |"
        )
    return [*lines, ""]


def _checks(kept: dict[str, Any]) -> list[str]:
    lines = [
        "## What was checked before",
        "",
        "Relative distance (norm of the difference over norm) to fp64 or fp32 references; bf16 rounding alone"
        " gives a few thousandths for a product and a few hundredths for the gradients of a whole model.",
        "",
        "| what | value |",
        "|---|---|",
    ]
    for found in kept.get("check", []):
        lines += [f"| {name} | {value:.2g} |" for name, value in found.items()]
    return lines
