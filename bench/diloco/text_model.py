"""A small text model and its training: by one process on whole batches, or by replicas on a part of each."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from corral.diloco import OuterLoop

# Held out: the last so-many-th of the text.
HELD_OUT = 10
# A guess is made from so many bytes before.
SEEN, EMBEDDED, WIDTH = 8, 16, 96
RATE, WARM_UP = 1e-2, 20
# Of the outer step: short runs take less momentum than the 0.9 of long ones.
OUTER = (0.9, 0.4)


@dataclass(frozen=True)
class Task:
    """Equal tokens for all who train by it: `steps` of `replicas` times `rows` guesses."""

    steps: int
    rows: int
    seed: int
    replicas: int = 4
    rate: float = RATE

    @property
    def tokens(self) -> int:
        return self.steps * self.replicas * self.rows


@dataclass
class Trained:
    """Losses held out, by the tokens that all together had learned from."""

    curve: list[tuple[int, float]] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)

    @property
    def loss(self) -> float:
        return self.curve[-1][1]


class TextModel(nn.Module):
    """Guesses a byte from those before it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Embedding(256, EMBEDDED),
                nn.Flatten(),
                nn.Linear(EMBEDDED * SEEN, WIDTH),
                nn.Tanh(),
                nn.Linear(WIDTH, 256),
            )

    def loss(self, stretches: torch.Tensor) -> torch.Tensor:
        lost: torch.Tensor = functional.cross_entropy(self.layers(stretches[:, :SEEN]), stretches[:, SEEN])
        return lost


def text() -> tuple[torch.Tensor, torch.Tensor]:
    """Python's own help, which comes with it: what is learned from, and what is held out."""
    whole = "".join(topics.topics.values()).encode("ascii", "replace")
    data = torch.frombuffer(bytearray(whole), dtype=torch.uint8).long()
    at = len(data) * (HELD_OUT - 1) // HELD_OUT
    return data[:at], data[at:]


def _stretches(data: torch.Tensor, starts: NDArray[np.int64]) -> torch.Tensor:
    return data[torch.from_numpy(starts)[:, None] + torch.arange(SEEN + 1)]


class Batches:
    """Replica K learns from the K-th part of the text alone; one process has a batch of each part."""

    def __init__(self, task: Task, data: torch.Tensor) -> None:
        self._task = task
        self._parts = data.chunk(task.replicas)
        self._random = [np.random.default_rng([task.seed, one]) for one in range(task.replicas)]

    def of(self, replica: int) -> torch.Tensor:
        part = self._parts[replica]
        return _stretches(part, self._random[replica].integers(0, len(part) - SEEN, self._task.rows))

    def all(self) -> torch.Tensor:
        return torch.cat([self.of(replica) for replica in range(self._task.replicas)])


class _Inner:
    def __init__(self, model: TextModel, task: Task) -> None:
        self._model, self._task, self._steps = model, task, 0
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=task.rate, weight_decay=0.01)

    def step(self, batch: torch.Tensor) -> None:
        done = self._steps / self._task.steps
        rate = 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2
        for group in self._optimizer.param_groups:
            group["lr"] = self._task.rate * rate * min(1.0, (self._steps + 1) / WARM_UP)
        self._optimizer.zero_grad()
        self._model.loss(batch).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._steps += 1


def held_out(model: TextModel, data: torch.Tensor) -> float:
    with torch.no_grad():
        return float(model.loss(_stretches(data, np.arange(0, len(data) - SEEN, 3))))


def data_parallel(task: Task, every: int) -> Trained:
    """One process on whole batches: what replicas that reach each other would do at every step."""
    learned, held = text()
    model, batches = TextModel(task.seed), Batches(task, learned)
    inner, found = _Inner(model, task), Trained()
    for step in range(1, task.steps + 1):
        inner.step(batches.all())
        if step % every == 0 or step == task.steps:
            found.curve.append((step * task.tokens // task.steps, held_out(model, held)))
    found.weights = [param.detach() for param in model.parameters()]
    return found


def replicas(task: Task, folder: Path, options: Mapping[str, Any]) -> list[Trained]:
    """Each a thread with an OuterLoop of its own; they meet in the folder and nowhere else."""
    found: dict[int, Trained] = {}
    problems: list[BaseException] = []

    def one(number: int) -> None:
        try:
            found[number] = replica(task, number, folder, options)
        except BaseException as error:  # noqa: BLE001  it is raised where the replicas were started
            problems.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(task.replicas)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return [found[number] for number in range(task.replicas)]


def replica(task: Task, number: int, folder: Path, options: Mapping[str, Any]) -> Trained:
    learned, held = text()
    model, batches = TextModel(task.seed), Batches(task, learned)
    loop = OuterLoop(
        dict(model.named_parameters()),
        store=str(folder),
        run="text",
        replica=number,
        quorum=task.replicas,
        grace=600.0,
        **{"poll_s": 0.05, **options},
    )
    inner, found = _Inner(model, task), Trained()
    for step in range(1, task.steps + 1):
        inner.step(batches.of(number))
        met = loop.step(tokens=task.rows)
        # They all have the same model now, so one measures it.
        if met and number == 0:
            found.curve.append((step * task.tokens // task.steps, held_out(model, held)))
    if loop.close() and number == 0:
        found.curve.append((task.tokens, held_out(model, held)))
    found.weights = [param.detach() for param in model.parameters()]
    return found
