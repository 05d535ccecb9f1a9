"""`python -m bench.diloco.gpu OUT [--seconds S] [--model NAME]`, where there is a GPU: what one replica pays.

Random weights of the shape of Qwen3 lie on the GPU, all of them trained. Measured are whole rounds of one
replica in a folder (of one fragment of eight at 4B), and the work of a round on the CPU, each part of it
alone on the whole vector: encoding, decoding, hashing, the outer step. Needs torch and numpy, and of Corral
only `corral.diloco`. It begins nothing new after S seconds, and writes OUT/diloco_gpu.json and .md meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.commits import current
from bench.report import Table, plain
from corral.diloco import OuterLoop
from corral.diloco.blocks import sha256
from corral.diloco.codec import BLOCK, Codec, Compression, Vector
from corral.diloco.outer import OuterOptimizer, weighted_mean
from corral.diloco.parallel import each, stretches

COMPRESSIONS: tuple[Compression, ...] = ("none", "bf16", "int8", "int4")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# What a shard of the outer step is worked on at once, as in a round.
RUN = 1 << 20


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    # Whole rounds in the folder are of one of so many fragments.
    fragments: int

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The embedding is the head too."""
        yield "embed", (self.vocabulary, self.width)
        for layer in range(self.layers):
            at = f"layers.{layer:02d}"
            yield f"{at}.q", (self.heads * self.head, self.width)
            yield f"{at}.k", (self.kv_heads * self.head, self.width)
            yield f"{at}.v", (self.kv_heads * self.head, self.width)
            yield f"{at}.o", (self.width, self.heads * self.head)
            for name in ("gate", "up"):
                yield f"{at}.{name}", (self.inner, self.width)
            yield f"{at}.down", (self.width, self.inner)
            for name, size in (
                ("in", self.width),
                ("post", self.width),
                ("qn", self.head),
                ("kn", self.head),
            ):
                yield f"{at}.norm_{name}", (size,)
        yield "norm", (self.width,)

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for _, shape in self.tensors())


SHAPES = {
    "qwen3-0.6b": Shape(28, 1024, 3072, 16, 8, 128, 151_936, fragments=1),
    "qwen3-4b": Shape(36, 2560, 9728, 32, 8, 128, 151_936, fragments=8),
    "small": Shape(4, 256, 512, 4, 2, 64, 4096, fragments=2),
}


class Report:
    """What was found, kept after each part."""

    def __init__(self, out: Path, seconds: float) -> None:
        self.out, self._until = out, time.monotonic() + seconds
        self.rows: list[dict[str, Any]] = []
        self.left_out: list[str] = []

    def late(self, part: str) -> bool:
        """Whether there is no time for a part any more; then it is told."""
        if time.monotonic() < self._until:
            return False
        self.left_out.append(part)
        return True

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        self.keep()

    def keep(self) -> None:
        said = {"commit": current(), "machine": machine(), "rows": self.rows, "left_out": self.left_out}
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "diloco_gpu.json").write_text(json.dumps(said, indent=1) + "\n")
        headers = ("model", "weights", "what", "payload", "seconds", "GB/s of fp32", "more")
        rows = [
            [str(one.get(name, "")) for name in ("model", "dtype", "what", "compression")]
            + [f"{one['seconds']:.3f}", f"{one['gb'] / max(one['seconds'], 1e-9):.1f}", one.get("more", "")]
            for one in self.rows
        ]
        facts = [f"- {key}: {value}" for key, value in machine().items()]
        facts.append(f"- measured at commit {current() or 'unknown'}")
        if self.left_out:
            facts.append(f"- left out for want of time: {', '.join(self.left_out)}")
        lines = ["# What one replica pays for a round", "", *facts, "", *_markdown(headers, rows)]
        (self.out / "diloco_gpu.md").write_text("\n".join(lines) + "\n")


def _markdown(headers: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in [list(headers), ["---"] * len(headers), *rows]]


def machine() -> dict[str, str]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "GPU": gpu,
        "cores": str(len(os.sched_getaffinity(0))),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    _settled()
    began = time.perf_counter()
    found = work()
    _settled()
    return time.perf_counter() - began, found


def _settled() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def weights_of(shape: Shape, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    made = torch.Generator(device).manual_seed(0)
    return {
        name: torch.empty(size, dtype=dtype, device=device).normal_(0, 0.02, generator=made)
        for name, size in shape.tensors()
    }


@contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="corral-diloco-", dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def in_parts(report: Report, name: str, shape: Shape) -> None:
    """Each step of a round alone, on a vector of the whole model, as far as the CPU does it."""
    gb = shape.size * 4 / 1e9
    gradient, some = (
        np.empty(shape.size, np.float32),
        np.random.default_rng(0).standard_normal(RUN, np.float32),
    )
    some *= np.float32(1e-3)

    def fill(part: slice) -> None:
        gradient[part] = some[: part.stop - part.start]

    each(fill, stretches(shape.size, RUN))
    for compression in COMPRESSIONS:
        if report.late(f"{name} {compression}"):
            continue
        about = {"model": name, "dtype": "", "compression": compression, "gb": gb}
        _of_codec(report, about, Codec(compression), gradient)
    if not report.late(f"{name} outer step"):
        seconds = _outer_step(gradient)
        report.add(model=name, what="mean of one and outer step", gb=gb, seconds=seconds)


def _of_codec(report: Report, about: Mapping[str, Any], codec: Codec, gradient: Vector) -> None:
    seconds, data = timed(lambda: codec.encode(gradient))
    report.add(**about, what="encode", seconds=seconds, more=f"{data.nbytes / 1e9:.2f} GB")
    seconds, _ = timed(lambda: codec.decode(data))
    report.add(**about, what="decode", seconds=seconds)
    pieces = stretches(len(data), max(1, -(-len(data) // 256)))
    seconds, _ = timed(lambda: each(lambda part: sha256(data[part]), pieces))
    report.add(**about, what="hash the payload", seconds=seconds)
    if codec.compression != "none":
        # What is lost here does no harm to what is measured next.
        seconds, _ = timed(lambda: codec.lose(gradient, data))
        report.add(**about, what="keep what was lost", seconds=seconds)


def _outer_step(gradient: Vector) -> float:
    weights, momentum = np.zeros_like(gradient), np.zeros_like(gradient)
    outer = OuterOptimizer()

    def work(part: slice) -> None:
        mean = weighted_mean([gradient[part]], [1])
        weights[part], momentum[part] = outer.step(weights[part], momentum[part], mean)

    return timed(lambda: each(work, stretches(len(gradient), RUN)))[0]


def rounds(report: Report, name: str, shape: Shape, device: str, folder: Path | None) -> None:
    """One replica alone, on the first of some fragments: begins, offers, reduces all, and takes it over."""
    for dtype in DTYPES:
        if report.late(f"{name} {dtype} on the GPU"):
            continue
        params = weights_of(shape, DTYPES[dtype], device)
        names = sorted(params)[:: shape.fragments]
        some = {one: params[one] for one in names}
        size = sum(param.numel() for param in some.values())
        about = {"model": name, "dtype": dtype, "gb": size * 4 / 1e9}
        _to_and_fro(report, about, some, device)
        for compression in COMPRESSIONS if dtype == "bf16" else ("none", "int4"):
            if report.late(f"round of {name} {dtype} {compression}"):
                continue
            with scratch(folder) as made:
                _round(report, about | {"compression": compression}, some, made, compression)
        del params, some
        if device == "cuda":
            torch.cuda.empty_cache()


def _to_and_fro(
    report: Report, about: Mapping[str, Any], params: Mapping[str, torch.Tensor], device: str
) -> None:
    seconds, there = timed(lambda: [one.cpu().float() for one in params.values()])
    report.add(**about, what="weights to the CPU, as fp32", seconds=seconds)
    seconds, _ = timed(lambda: [one.to(device) for one in there])
    report.add(**about, what="fp32 to the GPU", seconds=seconds)


def _round(
    report: Report,
    about: Mapping[str, Any],
    params: Mapping[str, torch.Tensor],
    folder: Path,
    compression: Compression,
) -> None:
    made: list[OuterLoop] = []

    def begin() -> None:
        made.append(
            OuterLoop(params, store=str(folder), run="gpu", replica=0, inner_steps=1, compress=compression)
        )

    seconds, _ = timed(begin)
    report.add(**about, what="begin: the first checkpoint, written and read", seconds=seconds)
    for number in (1, 2):
        with torch.no_grad():
            for param in params.values():
                param.add_(1e-3)
        began = time.process_time()
        seconds, reports = timed(lambda: made[0].step(tokens=1))
        cpu = time.process_time() - began
        assert reports[0].fate == "committed"
        more = f"{cpu:.1f} s of CPU, waited {reports[0].waited_s:.2f} s for the round itself"
        report.add(**about, what=f"round {number}, whole", seconds=seconds, more=more)


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__)
    said.add_argument("out", type=Path)
    said.add_argument("--seconds", type=float, default=400.0)
    said.add_argument("--model", nargs="*", default=["qwen3-0.6b", "qwen3-4b"], choices=list(SHAPES))
    said.add_argument(
        "--folder", type=Path, help="where the store lies; the folder for temporary files if none"
    )
    asked = said.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    report = Report(asked.out, asked.seconds)
    for name in asked.model:
        shape = SHAPES[name]
        print(f"{name}: {shape.size:,} weights, {shape.size % BLOCK} more than whole blocks", flush=True)
        rounds(report, name, shape, device, asked.folder)
        in_parts(report, name, shape)
    report.keep()
    rows = [
        [one["model"], one["what"], one.get("compression", ""), f"{one['seconds']:.2f}"]
        for one in report.rows
    ]
    print(plain(Table(("model", "what", "payload", "s"), rows)))


if __name__ == "__main__":
    main()
