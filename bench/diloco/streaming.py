"""What rounds cost the training beside them: how long it stands still, and how much memory they take."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from bench.diloco.replicas import Party, together
from bench.options import Options
from bench.processes import folder
from bench.report import Figure, Result, Table
from corral.diloco import OuterLoop
from corral.diloco.codec import Compression

NAME = "diloco_streaming"
INNER_STEPS = 100
TARGET_SHARE, TARGET_FRAGMENTS = 0.05, 2.0
MIB = 1 << 20
METHOD = (
    "Two replicas, each a process that multiplies matrices for a stated time in each inner step and then "
    "calls OuterLoop.step, over a folder with fsync; the first cycle is not counted. The share is all the "
    "time inside step (reading the parameters, waiting, writing them back) of all the time.",
    "Memory, of four replicas in a folder in memory, is a process's resident set, looked at every 2 ms: with "
    "the model alone, after the first cycle, and the highest after it. What the allocator keeps counts too.",
)


@dataclass(frozen=True)
class Streamed:
    folder: str
    tensors: int
    # Numbers in a tensor.
    numbers: int
    step_s: float
    cycles: int
    fragments: int
    delay: int
    compression: Compression
    inner_steps: int = INNER_STEPS


class Seen(NamedTuple):
    whole_s: float
    in_step_s: float
    waited_s: float
    rounds: int
    kept: int
    peak: int


def measure(options: Options) -> Result:
    result = Result(NAME, "Rounds beside the training", METHOD)
    with folder() as root:
        _waiting(result, root, options)
    with in_memory() as root:
        _memory(result, root, options)
    return result


def _waiting(result: Result, root: Path, options: Options) -> None:
    numbers, step_s = (MIB // 16, 0.01) if options.quick else (2 * MIB, 0.3)
    wanted: Sequence[tuple[int, int, Compression]] = (
        (1, 0, "none"),
        (4, 0, "none"),
        (4, 20, "none"),
        (4, 20, "int4"),
    )
    rows: list[list[str]] = []
    for fragments, delay, compression in wanted[2:3] if options.quick else wanted:
        name = f"{fragments}-{delay}-{compression}"
        about = Streamed(str(root / name), 8, numbers, step_s, 1, fragments, delay, compression)
        worst = max(together(2, replica, about), key=lambda one: one.in_step_s / one.whole_s)
        share, waiting = worst.in_step_s / worst.whole_s, worst.waited_s / worst.whole_s
        rows.append([str(fragments), str(delay), compression, f"{share:.1%}", f"{waiting:.1%}"])
        target, met = (f"< {TARGET_SHARE:.0%}", share < TARGET_SHARE) if delay else ("", None)
        what = f"share of time that training stands still, {_words(about)}"
        result.figures.append(Figure(what, f"{share:.1%}", target, met))
        result.data[f"waiting {name}"] = worst._asdict()
    headers = ("fragments", "delay", "payload", "inside step", "of it waiting")
    megabytes = 8 * numbers * 4 / 1e6
    title = f"H = {INNER_STEPS}, {step_s * 1000:.0f} ms an inner step, {megabytes:.0f} MB of weights"
    result.details.append(Table(headers, rows, title))


def _memory(result: Result, root: Path, options: Options) -> None:
    numbers = MIB // 16 if options.quick else 8 * MIB
    rows: list[list[str]] = []
    wanted: Sequence[tuple[int, Compression]] = ((1, "none"), (4, "none"), (4, "int4"))
    for count, compression in wanted[1:2] if options.quick else wanted:
        name = f"{count}-{compression}"
        about = Streamed(str(root / name), 8, numbers, 0.0, 1, 2, 1, compression, inner_steps=8)
        seen = together(count, replica, about)
        shutil.rmtree(root / name)
        model, kept, peak = (about.tensors * numbers * 4, *(max(one[n] for one in seen) for n in (4, 5)))
        fragments = peak / (model / about.fragments)
        row = [str(count), compression, *(f"{value / 1e6:.0f}" for value in (model, kept, model / 2, peak))]
        rows.append([*row, f"{fragments:.2f}"])
        what = f"memory of a round beyond what the loop keeps, {count} replicas, {compression}"
        target = f"<= {TARGET_FRAGMENTS:.0f} fragments"
        met = fragments <= TARGET_FRAGMENTS
        result.figures.append(Figure(what, f"{fragments:.2f} fragments", target, met))
        result.data[f"memory {name}"] = [one._asdict() for one in seen]
    headers = (
        "replicas",
        "payload",
        "model MB",
        "kept by the loop MB",
        "a fragment MB",
        "more in a round MB",
    )
    result.details.append(Table((*headers, "fragments"), rows, "Memory of a replica"))
    result.notes.append(
        "The loop keeps the common weights of all parameters in fp32, from which the next pseudo-gradient "
        "is taken, and with a compression what it left out, as large. That is no part of `more in a round`."
    )


def _words(about: Streamed) -> str:
    return f"{about.fragments} fragments, delay {about.delay}, {about.compression}"


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder whose files take no time, where this machine has such."""
    shared = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="corral-bench-", dir=shared if shared.is_dir() else None))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


class Resident:
    """The highest resident set of this process while it is looked at."""

    def __init__(self) -> None:
        self._process, self._over = psutil.Process(), threading.Event()
        self.highest = self.now()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    def _look(self) -> None:
        while not self._over.wait(0.002):
            self.highest = max(self.highest, self.now())

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self.highest


def replica(party: Party, about: Streamed) -> Seen:
    random = np.random.default_rng(party.number)
    params = {f"w{n:02d}": random.standard_normal(about.numbers, np.float32) for n in range(about.tensors)}
    matrix, out = random.standard_normal((256, 256), np.float32), np.empty((256, 256), np.float32)
    resident = psutil.Process()
    model = resident.memory_info().rss
    if party.number:
        party.meet()
    loop = OuterLoop(
        params,
        store=about.folder,
        run="run",
        replica=party.number,
        inner_steps=about.inner_steps,
        quorum=party.count,
        grace=600.0,
        fragments=about.fragments,
        delay=about.delay,
        compress=about.compression,
    )
    if not party.number:
        party.meet()
    in_step_s = waited_s = began = 0.0
    rounds = 0
    kept, looking = 0, None
    for step in range(about.inner_steps * (about.cycles + 1)):
        if step == about.inner_steps:
            loop.close()
            party.meet()
            kept = resident.memory_info().rss
            looking = Resident()
            began, in_step_s, waited_s, rounds = time.perf_counter(), 0.0, 0.0, 0
        until = time.perf_counter() + (about.step_s if looking else 0.0)
        while time.perf_counter() < until:
            np.matmul(matrix, matrix, out=out)
        # The weights move, as by an optimiser.
        params[f"w{step % about.tensors:02d}"][:1000] += 0.01
        entered = time.perf_counter()
        met = loop.step(tokens=100)
        in_step_s += time.perf_counter() - entered
        waited_s += sum(one.waited_s for one in met)
        rounds += len(met)
    whole_s = time.perf_counter() - began
    assert looking is not None
    peak = looking.stop()
    loop.close()
    return Seen(whole_s, in_step_s, waited_s, rounds, kept - model, peak - kept)
