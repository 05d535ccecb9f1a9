"""The constants of the forecast: each with its unit and where its value comes from, in calibration.json."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class Calibration:
    """Units and origins are in calibration.json, under the same names."""

    saved_hidden: float
    saved_attention: float
    saved_mlp: float
    live_layer: float
    final_hidden: float
    logit_bytes: float
    workspace_bytes: float
    graph_logit_bytes: float
    saved_full: float
    chunk_tokens: float
    prefill_tokens: float
    page_tokens: float
    context_bytes: float
    margin: float
    cpu_base_bytes: float
    cpu_saved: float
    train_efficiency: float
    moved_times: float
    head_moved_times: float
    attention_times: float
    layer_kernel_s: float
    layer_launch_s: float
    replay_work: float
    forward_layer_s: float
    pack_s: float
    step_s: float
    sequence_s: float
    pack_fill: float
    length_spread: float
    prefill_efficiency: float
    decode_efficiency: float
    decode_layer_s: float
    decode_step_s: float
    most_rows: float
    completion_fill: float
    cpu_flops: float
    cpu_layer_s: float
    cpu_decode_s: float
    cpu_bytes_per_s: float
    start_s: float
    trace_s: float
    compile_s: float
    trace_sampler_s: float
    compile_sampler_s: float
    first_start_s: float
    attach_weights_per_s: float
    read_bytes_per_s: float
    fetch_bytes_per_s: float
    save_s: float
    save_bytes_per_s: float


def read(text: str) -> Calibration:
    """Raises ValueError where a constant is missing, unknown, or not a positive number."""
    rows: list[Mapping[str, Any]] = json.loads(text)["constants"]
    values = {row["name"]: row["value"] for row in rows}
    wanted = {field.name for field in fields(Calibration)}
    if len(values) != len(rows) or set(values) != wanted:
        raise ValueError(f"constants missing, unknown or twice: {sorted(set(values) ^ wanted)}")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{name} = {value!r} is not a positive number")
    return Calibration(**{name: float(value) for name, value in values.items()})


def source() -> str:
    """The file that Corral ships; `bench.engine.fit_calibration` writes it."""
    return resources.files("corral.recipes").joinpath("calibration.json").read_text("utf-8")


@functools.cache
def default() -> Calibration:
    return read(source())
