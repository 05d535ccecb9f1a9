"""What a round costs: beside moving the same bytes with the same client, beside gloo, and beside the scheme
in which every replica reads all."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.diloco import beside
from bench.diloco.replicas import CountedStore, Party, together
from bench.observe import find_support
from bench.options import Options
from bench.processes import folder
from bench.report import Figure, Result, Table
from corral.diloco.codec import BLOCK, Codec, Compression
from corral.diloco.rounds import RoundRules, Rounds
from corral.diloco.store import open_store

NAME = "diloco_rounds"
TARGET = 1.3
REPEATS = 3
MB = 1_000_000
METHOD = (
    "Each replica is a process with a client of its own; all begin a round at once, and it takes as long as "
    "the slowest replica. One after the other, each time anew: a round; the same bytes moved by the same "
    "client without digests, records or arithmetic; the scheme in which every replica writes all and reads "
    "all (same client, torch.save, asked every 20 ms); gloo over loopback. Medians, the first not counted.",
    "Writes to the folder are durable (fsync) in all of them. The S3 server is SeaweedFS on this machine and "
    "disk. Replicas share the machine's cores and its disk, which replicas on machines of their own would "
    "not: so the more replicas, the slower all of them.",
)


@dataclass(frozen=True)
class Setting:
    url: str
    endpoint: str | None
    size: int
    compression: Compression
    repeats: int
    meeting: str
    # Whether other ways are measured in the same run.
    rivals: bool


@dataclass
class Seen:
    """Of one replica: seconds of each way in each repeat, and bytes and requests of the last round."""

    seconds: dict[str, list[float]]
    up: int = 0
    down: int = 0
    requests: int = 0
    whole_up: int = 0
    whole_down: int = 0


def measure(options: Options) -> Result:
    result = Result(NAME, "Rounds in a store", METHOD)
    size, repeats = (64 * BLOCK, 1) if options.quick else (8 * 1024 * BLOCK, REPEATS)
    counts: Sequence[int] = (2,) if options.quick else (2, 4, 8)
    result.notes.append(f"the vector has {size:,} numbers, {4 * size / MB:.0f} MB as fp32")
    rows: dict[str, list[list[str]]] = {"times": [], "bytes": []}
    with folder() as root, _places(root, options) as places:
        for where, (url, endpoint) in places.items():
            for count in counts:
                about = (url, endpoint, size, repeats, root)
                _one(result, rows, where, count, "none", about, rivals=True)
            if not options.quick:
                for compression in ("bf16", "int8", "int4"):
                    _one(result, rows, where, 4, compression, about, rivals=False)
    headers = ("store", "replicas", "payload", "round s", "raw s", "ratio", "all read all s", "gloo s")
    result.details.append(Table(headers, rows["times"], "Seconds"))
    headers = (
        "store",
        "replicas",
        "payload",
        "up MB",
        "down MB",
        "by the formula",
        "requests",
        "all read all: up, down",
    )
    result.details.append(Table(headers, rows["bytes"], "Bytes of a replica in a round"))
    return result


@contextlib.contextmanager
def _places(root: Path, options: Options) -> Iterator[dict[str, tuple[str, str | None]]]:
    places: dict[str, tuple[str, str | None]] = {"folder": (str(root / "rounds"), None)}
    if options.quick:
        yield places
        return
    find_support()
    from support import seaweed

    os.environ.update(seaweed.CREDENTIALS)
    # What was deleted takes room until it is compacted.
    server = seaweed.Seaweed(volumes=300)
    try:
        yield places | {"S3": (server.fresh_url(), server.endpoint)}
    finally:
        server.stop()


def _one(
    result: Result,
    rows: dict[str, list[list[str]]],
    where: str,
    count: int,
    compression: Compression,
    about: tuple[str, str | None, int, int, Path],
    *,
    rivals: bool,
) -> None:
    url, endpoint, size, repeats, root = about
    name = f"{count}-{compression}"
    setting = Setting(
        f"{url}/{name}", endpoint, size, compression, repeats, str(root / f"{where}-{name}"), rivals
    )
    seen = together(count, replica, setting)
    ours, raw, whole, gloo = (_slowest(seen, way) for way in ("round", "raw", "all read all", "gloo"))
    ratio = statistics.median(a / b for a, b in zip(ours, raw, strict=True))
    middle = [statistics.median(one) if one else None for one in (ours, raw, whole, gloo)]
    up, down, requests = (max(getattr(one, field) for one in seen) for field in ("up", "down", "requests"))
    up_formula, down_formula = formula(size, count, compression)
    told = [f"{value:.2f}" if value is not None else "" for value in middle]
    rows["times"].append([where, str(count), compression, told[0], told[1], f"{ratio:.2f}", told[2], told[3]])
    by = f"{up_formula / MB:.1f} up, {down_formula / MB:.1f} down"
    most = max((one.whole_up, one.whole_down) for one in seen)
    theirs = f"{most[0] / MB:.1f}, {most[1] / MB:.1f}" if rivals else ""
    rows["bytes"].append(
        [where, str(count), compression, f"{up / MB:.1f}", f"{down / MB:.1f}", by, str(requests), theirs]
    )
    what = f"a round of {count} replicas, {where}, {compression}"
    result.figures.append(
        Figure(
            what,
            f"{told[0]} s",
            f"<= {TARGET} times",
            ratio <= TARGET,
            f"same bytes {told[1]} s",
            f"{ratio:.2f}",
        )
    )
    if rivals:
        for rival, value in (("all read all", middle[2]), ("gloo", middle[3])):
            assert value is not None
            assert middle[0] is not None
            result.figures.append(
                Figure(what, f"{told[0]} s", rival=f"{rival} {value:.2f} s", ratio=f"{middle[0] / value:.2f}")
            )
    off = max(abs(up / up_formula - 1), abs(down / down_formula - 1))
    result.figures.append(
        Figure(
            f"bytes of a replica, {count}, {where}, {compression}",
            f"{(up + down) / MB:.1f} MB",
            "the formula, 2%",
            off <= 0.02,
            f"formula {(up_formula + down_formula) / MB:.1f} MB",
            f"{1 + off:.3f}",
        )
    )
    result.data[f"{where} {count} {compression}"] = {"replicas": [asdict(one) for one in seen]}


def formula(size: int, count: int, compression: Compression) -> tuple[float, float]:
    """Bytes of a replica, up and down: its payload, and weights and momentum of its shard; its shard of all
    payloads and of the old momentum, and all weights."""
    payload, whole = size / BLOCK * Codec(compression).block_bytes, 4.0 * size
    return payload + 2 * whole / count, payload + whole / count + whole


def _slowest(seen: Sequence[Seen], way: str) -> list[float]:
    return [max(of_all) for of_all in zip(*(one.seconds.get(way, []) for one in seen), strict=True)]


def replica(party: Party, setting: Setting) -> Seen:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = CountedStore(open_store(setting.url, endpoint=setting.endpoint))
    start = np.zeros(setting.size, np.float32)
    gradient = np.random.default_rng(party.number).standard_normal(setting.size, np.float32)
    rules = RoundRules(quorum=party.count, grace_s=600.0, compression=setting.compression)
    rounds = Rounds(store, "ours", str(party.number), setting.size, rules)
    # One makes the beginning; else all would write it.
    if party.number:
        party.meet()
    commit, weights = rounds.begin(start)
    if not party.number:
        party.meet()
    ways: dict[str, Callable[[int], None]] = {
        "raw": beside.raw(party, store, setting.size, setting.compression)
    }
    if setting.rivals:
        ways["all read all"] = beside.whole_reduce(party, store, start, gradient)
        ways["gloo"] = beside.all_reduce(party, Path(setting.meeting), start, gradient)
    seen = Seen({"round": [], **{way: [] for way in ways}})
    for repeat in range(setting.repeats + 1):
        # A round uses its gradient up.
        given, outcomes = [gradient.copy()], []
        store.reset()
        took = {
            "round": party.timed(lambda: outcomes.append(rounds.run(commit, weights, given.pop(), 100)))  # noqa: B023
        }
        commit, weights = outcomes[0].commit, outcomes[0].weights
        assert len(commit.members) == party.count, f"round {commit.round} has {sorted(commit.members)}"
        seen.up, seen.down, seen.requests = store.up, store.down, store.requests
        for way, work in ways.items():
            store.reset()
            took[way] = party.timed(lambda: work(repeat))  # noqa: B023
            if way == "all read all":
                seen.whole_up, seen.whole_down = store.up, store.got
        party.meet()
        store.delete(f"whole/round_{repeat - 1}/rank_{party.number}.pt")
        for way, seconds in took.items() if repeat else ():
            seen.seconds[way].append(seconds)
    return seen
