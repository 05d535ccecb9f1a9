"""Replicas as processes, which learn a small model and write down what each round told them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.diloco.loop import OuterLoop
from corral.diloco.rounds import ReplicaReplaced
from corral.diloco.store import RoundStore, open_store

REPLACED = 3
RUN = "grid"
INPUTS, HIDDEN, INNER_STEPS, ROWS = 16, 24, 4, 16
# What no model can foretell, so that its share of the held-out loss stays.
NOISE = 0.3

Numbers = NDArray[Any]
Params = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Place:
    """Where replicas meet, and the folder that they write their logs to."""

    folder: Path
    url: str
    endpoint: str | None

    def open(self) -> RoundStore:
        return open_store(self.url, endpoint=self.endpoint, patience_s=60)

    def seen(self) -> list[dict[str, Any]]:
        logs = (path.read_text() for path in sorted(self.folder.glob("*.log")))
        return [json.loads(line) for log in logs for line in log.splitlines()]


@dataclass(frozen=True)
class Plan:
    """How replicas train: all of them alike."""

    rounds: int
    quorum: int
    grace_s: float
    seed: int
    poll_s: float = 0.02


def model() -> Params:
    random = np.random.default_rng(0)
    return {
        "b": np.zeros(HIDDEN, np.float32),
        "v": (random.normal(size=HIDDEN) / HIDDEN**0.5).astype(np.float32),
        "w": (random.normal(size=(INPUTS, HIDDEN)) / INPUTS**0.5).astype(np.float32),
    }


def batch(random: np.random.Generator, rows: int = ROWS) -> tuple[Numbers, Numbers]:
    """Of one teacher, whoever draws it."""
    truth = np.random.default_rng(7).normal(size=(INPUTS, 4))
    x = random.normal(size=(rows, INPUTS)).astype(np.float32)
    return x, np.tanh(x @ truth).sum(axis=1) / 2 + random.normal(size=rows) * NOISE


def learn(params: Params, x: Numbers, y: Numbers, rate: float = 0.05) -> None:
    hidden = np.tanh(x @ params["w"] + params["b"])
    error = (hidden @ params["v"] - y)[:, None] / len(x)
    back = error * params["v"] * (1 - hidden**2)
    params["v"] -= (rate * (hidden * error).sum(axis=0)).astype(np.float32)
    params["w"] -= (rate * (x.T @ back)).astype(np.float32)
    params["b"] -= (rate * back.sum(axis=0)).astype(np.float32)


def loss(params: Mapping[str, Numbers]) -> float:
    x, y = batch(np.random.default_rng(99), 20_000)
    found = np.tanh(x @ params["w"] + params["b"]) @ params["v"]
    return float(((found - y) ** 2).mean())


def digest(params: Mapping[str, Numbers]) -> str:
    return hashlib.sha256(b"".join(params[key].tobytes() for key in sorted(params))).hexdigest()


def replica(place: Place, plan: Plan, name: str, tag: str, reached: Callable[[str], None]) -> int:
    """Train until the last round is there; what was seen is written as it goes."""
    params = model()
    try:
        loop = OuterLoop(
            params,
            store=place.open(),
            run=RUN,
            replica=name,
            inner_steps=INNER_STEPS,
            quorum=plan.quorum,
            grace=plan.grace_s,
            compress="int8",
            poll_s=plan.poll_s,
            reached=reached,
        )
        random = np.random.default_rng([plan.seed, sum(name.encode()), sum(tag.encode())])
        with (place.folder / f"{name}-{tag}.log").open("a") as log:
            while loop.rounds[0] < plan.rounds:
                learn(params, *batch(random))
                for report in loop.step(tokens=int(random.integers(1, 1000))):
                    said = {"round": report.round, "fate": report.fate, "tokens": report.tokens}
                    after = {"at": loop.rounds[0], "digest": digest(params)}
                    log.write(json.dumps({"replica": name, **said, **after}) + "\n")
                    log.flush()
    except ReplicaReplaced:
        return REPLACED
    return 0


def started(
    place: Place,
    plan: Plan,
    name: str,
    tag: str = "first",
    reached: Callable[[str], None] = lambda point: None,
) -> int:
    """The process of a replica. Nothing of the store may have been used in this one before."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = replica(place, plan, name, tag, reached)
        finally:
            os._exit(code)
    return child
