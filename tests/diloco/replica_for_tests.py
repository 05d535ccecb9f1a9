"""Replicas as processes, one of which breaks at a chosen point: `python replica_for_tests.py FOLDER URL POINT
FAULT SEED`. Prints what each saw, as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from corral.diloco.loop import OuterLoop
from corral.diloco.rounds import ReplicaReplaced

COUNT, ROUNDS, SIZE, VICTIM, BROKEN_ROUND = 3, 4, 9000, 1, 2
REPLACED = 3


class Breaker:
    """Breaks its process at one point of one round, once."""

    def __init__(self, point: str, act: Callable[[], None]) -> None:
        self.point, self.act, self.seen = point, act, 0

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.seen += 1
            if self.seen == BROKEN_ROUND:
                self.act()


def replica(folder: Path, url: str, name: int, seed: int, tag: str, reached: Callable[[str], None]) -> int:
    """Train until some rounds were seen; what it saw is written as it goes."""
    params = {"w": np.zeros(SIZE, np.float32), "b": np.zeros(7, np.float32)}
    loop = OuterLoop(
        params,
        store=url,
        run="grid",
        replica=name,
        inner_steps=2,
        quorum=2,
        grace=0.4,
        compress="int8",
        poll_s=0.02,
        reached=reached,
    )
    random = np.random.default_rng([seed, name])
    log = (folder / f"{name}-{tag}.log").open("a")
    try:
        while loop.rounds[0] < ROUNDS:
            for key in sorted(params):
                params[key] += random.normal(size=params[key].shape).astype(np.float32) * 0.01
            for report in loop.step(tokens=10 + name):
                both = b"".join(params[key].tobytes() for key in sorted(params))
                digest = hashlib.sha256(both).hexdigest()
                said = {"round": report.round, "fate": report.fate, "tokens": report.tokens, "digest": digest}
                log.write(json.dumps({**said, "replica": str(name)}) + "\n")
                log.flush()
    except ReplicaReplaced:
        return REPLACED
    return 0


def started(*args: Any) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = replica(*args)
        finally:
            os._exit(code)
    return child


def main(folder: Path, url: str, point: str, fault: str, seed: int) -> None:
    broken = folder / "broken"

    def act() -> None:
        broken.touch()
        if fault in ("kill", "restart"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "stall":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault == "skew":
            # A day ahead, for whatever would ask this machine's clock.
            ahead = time.time() + 86400.0
            time.time = lambda: ahead

    def quiet(point: str) -> None:
        return

    children = {}
    for name in range(COUNT):
        breaks = Breaker(point, act) if name == VICTIM else quiet
        children[name] = started(folder, url, name, seed, "first", breaks)
    until = time.monotonic() + 60.0
    while not broken.exists() and time.monotonic() < until:
        time.sleep(0.01)
    extra: dict[str, int] = {}
    if fault in ("restart", "duplicate"):
        extra["again"] = started(folder, url, VICTIM, seed + 1, "again", quiet)
    elif fault == "join":
        extra["joined"] = started(folder, url, COUNT, seed, "joined", quiet)
    elif fault == "stall":
        time.sleep(1.0)
        os.kill(children[VICTIM], signal.SIGCONT)
    codes = {str(name): os.waitpid(child, 0)[1] for name, child in children.items()}
    codes |= {name: os.waitpid(child, 0)[1] for name, child in extra.items()}
    seen = [json.loads(line) for path in sorted(folder.glob("*.log")) for line in path.open()]
    print(json.dumps({"codes": codes, "seen": seen, "broke": broken.exists()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
