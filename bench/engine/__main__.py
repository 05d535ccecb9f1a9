"""`python -m bench.engine [check sft decode grpo trl_sft trl_grpo sweep] [--out DIR]`, where there is a GPU.

TRL, datasets and what they need must be importable for its parts. Each part adds to DIR/engine.json as it
goes, with its commit; `python -m bench.engine merge --out DIR` takes over what DIR has into bench/results,
where it replaces what is there of the same part or setting, and `python -m bench.engine table` writes the
tables from it.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from bench.commits import current
from bench.engine import check, ours, shapes, sweep, table

RESULTS = Path("bench/results")
PROMPTS, GROUP, PROMPT, NEW = 16, 8, 200, 256


def checks() -> list[dict[str, Any]]:
    return [check.kernel(), check.gradients_agree(), check.sampling_agrees()]


def sft() -> list[dict[str, Any]]:
    def measured(name: str, micro_tokens: int, packs: int = 1, *, recompute: bool = False) -> dict[str, Any]:
        batches = ours.full_batches(micro_tokens * packs, 11)
        return ours.sft(name, batches=batches, micro_tokens=micro_tokens, recompute=recompute).row()

    return [
        measured("qwen3-0.6b", 16384),
        measured("qwen3-0.6b", 4096),
        measured("qwen3-4b", 16384),
        measured("qwen3-4b", 8192, 2, recompute=True),
    ]


def decode() -> list[dict[str, Any]]:
    return [
        ours.decoding("qwen3-0.6b", rows=256, prompt=256, new=256).row(),
        ours.decoding("qwen3-0.6b", rows=256, prompt=256, new=256, adapter=False).row(),
        ours.decoding("qwen3-0.6b", rows=64, prompt=256, new=256).row(),
    ]


def grpo() -> list[dict[str, Any]]:
    return [ours.grpo("qwen3-0.6b", prompts=PROMPTS, group=GROUP, prompt=PROMPT, new=NEW).row()]


def trl_sft() -> list[dict[str, Any]]:
    from bench.engine import trl_side

    rows = []
    for name, recompute in (("qwen3-0.6b", False), ("qwen3-4b", True)):
        made = shapes.model(name)
        made.set_attn_implementation("flex_attention")
        rows.append(trl_side.sft(made, name, length=4096, batch=4, recompute=recompute, steps=6).row())
    return rows


def trl_grpo() -> list[dict[str, Any]]:
    from bench.engine import trl_side

    made = shapes.model("qwen3-0.6b")
    return [trl_side.grpo(made, "qwen3-0.6b", prompts=PROMPTS, group=GROUP, prompt=PROMPT, new=NEW).row()]


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "check": checks,
    "grpo": grpo,
    "trl_grpo": trl_grpo,
    "decode": decode,
    "sft": sft,
    "trl_sft": trl_sft,
}


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__)
    said.add_argument("parts", nargs="*", choices=[*PARTS, "sweep", "table", "merge"])
    said.add_argument("--out", type=Path, default=RESULTS)
    said.add_argument("--sweep-s", type=float, default=600.0)
    said.add_argument("--settings", type=int, nargs="*", help="only these of the sweep, by number")
    said.add_argument("--commit", default=current(), help="what is measured, where there is no history")
    asked = said.parse_args()
    if asked.parts == ["table"]:
        table.write(asked.out)
        return
    if asked.parts == ["merge"]:
        table.merge(asked.out, RESULTS)
        return
    if asked.commit is None:
        said.error("there is no history here: name the commit that is measured with --commit")
    commits: dict[str, str] = {}
    kept: dict[str, Any] = {"machine": machine(), "commit": commits}
    for part in asked.parts or [*PARTS, "sweep"]:
        began = time.monotonic()
        if part == "sweep":
            kept["sweep"] = []
            for record in sweep.run(asked.sweep_s, asked.settings):
                kept["sweep"].append(record | {"commit": asked.commit})
                print(json.dumps(record), flush=True)
                keep(asked.out, kept)
            continue
        commits[part] = asked.commit
        try:
            kept[part] = PARTS[part]()
        except Exception:  # noqa: BLE001  the other parts are still worth having
            kept[part] = {"failed": traceback.format_exc()}
        print(part, f"{time.monotonic() - began:.0f} s", json.dumps(kept[part], indent=1), flush=True)
        torch.cuda.empty_cache()
        keep(asked.out, kept)


def machine() -> dict[str, str]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def keep(folder: Path, kept: dict[str, Any]) -> None:
    (folder / "engine.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
