"""How fast files become durable artifacts, beside hashing and writing the same files with fsync."""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench.options import Options
from bench.processes import folder, server
from bench.report import Figure, Result, Table
from corral.client.corral import Corral
from corral.client.files.tree import scan
from corral.client.files.upload import upload

NAME = "upload"
TARGET = 0.7
CHUNK = 1 << 20
LONGEST_S = 25.0
METHOD = (
    "the client library in this process: scan (hash), upload, commit of the manifest, to a server on this "
    "machine and disk; alternating with a loop that reads, hashes, writes and fsyncs the same files; new "
    "content each time; medians.",
    "Corral's answer comes after the blob is hashed again, fsynced, linked and committed (SQLite, "
    "synchronous=FULL); the loop fsyncs each file and the folder at the end.",
)


def measure(options: Options) -> Result:
    size, files, repeats = (16 << 20, 200, 1) if options.quick else (1 << 30, 10_000, 5)
    result = Result(NAME, "Artifact upload", METHOD)
    with (
        folder() as root,
        server(_made(root / "home")) as running,
        Corral(running.url, running.token) as corral,
    ):
        big = _made(root / "big")
        _fill(big / "weights.bin", size)
        ours, plain = _alternate(corral, big, root / "plain", repeats, lambda n: _touch_one(big, n))
        _big(result, size, ours, plain)
        shutil.rmtree(big)
        small = _made(root / "small")
        _fill_small(small, files)
        rounds = 1 if options.quick else 2
        ours, plain = _alternate(corral, small, root / "plain", rounds, lambda n: _touch_all(small, n))
        _small(result, files, ours, plain)
    return result


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def _fill(path: Path, size: int) -> None:
    block = os.urandom(CHUNK)
    with path.open("wb") as file:
        for _ in range(size // CHUNK):
            file.write(block)


def _fill_small(root: Path, files: int) -> None:
    for number in range(files):
        path = root / f"{number % 100:02d}" / f"{number:05d}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(1024))


def _touch_one(root: Path, number: int) -> None:
    """Other content, or the server would say that it has it."""
    with (root / "weights.bin").open("r+b") as file:
        file.write(number.to_bytes(8, "big"))


def _touch_all(root: Path, number: int) -> None:
    for path in root.rglob("*.bin"):
        with path.open("r+b") as file:
            file.write(number.to_bytes(8, "big"))


def _alternate(
    corral: Corral, root: Path, aside: Path, repeats: int, change: Callable[[int], None]
) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    plain: list[float] = []
    give_up_at = time.monotonic() + LONGEST_S
    for number in range(repeats):
        # A slow disk gets fewer rounds rather than a longer bench.
        if ours and time.monotonic() > give_up_at:
            break
        change(number)
        # What was written so far is not this round's to wait for.
        os.sync()
        ours.append(_timed(lambda: _send(corral, root)))
        os.sync()
        aside.mkdir()
        plain.append(_timed(lambda: _hash_and_write(root, aside)))
        shutil.rmtree(aside)
    return ours, plain


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _send(corral: Corral, root: Path) -> None:
    tree = scan(root, ignore=None)
    upload(tree, root, corral.sink("default"))
    corral.artifacts.commit("default", kind="input", tree=tree)


def _hash_and_write(root: Path, aside: Path) -> None:
    for source in sorted(root.rglob("*.bin")):
        sha = hashlib.sha256()
        with (
            source.open("rb", buffering=0) as reading,
            (aside / source.name).open("wb", buffering=0) as writing,
        ):
            while chunk := reading.read(CHUNK):
                sha.update(chunk)
                writing.write(chunk)
            os.fsync(writing.fileno())
    handle = os.open(aside, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _big(result: Result, size: int, ours: list[float], plain: list[float]) -> None:
    mine, theirs = (size / statistics.median(values) / 1e6 for values in (ours, plain))
    result.figures.append(
        Figure(
            f"upload of one file of {size >> 20} MiB",
            f"{mine:.0f} MB/s",
            f">= {TARGET:.0%} of hash + write + fsync",
            mine / theirs >= TARGET,
            f"hash + write + fsync {theirs:.0f} MB/s",
            f"{mine / theirs:.0%}",
        )
    )
    rows = [
        [str(n + 1), f"{a:.2f}", f"{b:.2f}", f"{b / a:.0%}"]
        for n, (a, b) in enumerate(zip(ours, plain, strict=True))
    ]
    headers = ["round", "Corral s", "hash + write + fsync s", "ratio"]
    result.details.append(Table(headers, rows, f"One file of {size >> 20} MiB"))
    result.data["big_s"] = {"corral": ours, "plain": plain}


def _small(result: Result, files: int, ours: list[float], plain: list[float]) -> None:
    mine, theirs = (files / statistics.median(values) for values in (ours, plain))
    result.figures.append(
        Figure(
            f"upload of {files:,} files of 1 KiB",
            f"{mine:.0f} files/s",
            "",
            None,
            f"hash + write + fsync {theirs:.0f} files/s",
            f"{mine / theirs:.0%}",
        )
    )
    result.data["small_s"] = {"corral": ours, "plain": plain}
