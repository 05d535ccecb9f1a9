"""A training loop of one's own under DiLoCo: torch or numpy, whole or in fragments, at once or beside it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.seaweed import seaweed

from corral.diloco.loop import OuterLoop, RoundReport
from corral.diloco.round_store import StoreError
from corral.diloco.store import open_store

FEATURES, TEACHER = 8, 3


def batch(random: np.random.Generator, rows: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one teacher, whoever draws it."""
    truth = np.random.default_rng(TEACHER).normal(size=(FEATURES, 4))
    x = random.normal(size=(rows, FEATURES))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(np.tanh(x @ truth), dtype=torch.float32)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


def train(
    folder: Path, replica: int, steps: int, **options: Any
) -> tuple[torch.nn.Module, list[RoundReport]]:
    made, random = model(), np.random.default_rng(100 + replica)
    loop = OuterLoop(
        dict(made.named_parameters()), store=str(folder), run="run", replica=replica, poll_s=0.01, **options
    )
    optimizer = torch.optim.AdamW(made.parameters(), lr=3e-3)
    reports = []
    for _ in range(steps):
        x, y = batch(random)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(made(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        reports += loop.step(tokens=len(x))
    return made, reports + loop.close()


def trained(
    folder: Path, count: int, steps: int, **options: Any
) -> list[tuple[torch.nn.Module, list[RoundReport]]]:
    found: dict[int, Any] = {}
    # torch's own random numbers are not used in the threads, only their models' weights.
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: train(folder, n, steps, **options)}))
        for n in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == count
    return [found[n] for n in range(count)]


def loss(made: torch.nn.Module) -> float:
    x, y = batch(np.random.default_rng(9), 2000)
    with torch.no_grad():
        return float(torch.nn.functional.mse_loss(made(x), y))


def weights(made: torch.nn.Module) -> list[torch.Tensor]:
    return [param.detach() for param in made.parameters()]


def test_two_replicas_learn_together_and_end_with_the_same_weights(tmp_path: Path) -> None:
    """DL-D42, DL-D43: on data held out, and better than each would be alone on its half."""
    (first, reports), (second, _) = trained(tmp_path, 2, 60, inner_steps=10, quorum=2)
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(second), strict=True))
    assert [one.round for one in reports] == list(range(1, 7))
    assert {one.fate for one in reports} == {"committed"}
    assert reports[-1].members == {"0": 320, "1": 320}
    assert loss(first) < 0.5 * loss(model())


def test_fragments_meet_one_after_the_other(tmp_path: Path) -> None:
    """DL-C27."""
    (first, reports), (second, _) = trained(tmp_path, 2, 20, inner_steps=10, quorum=2, fragments=2)
    assert [(one.fragment, one.round) for one in reports] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    last = [name for name, _ in sorted(first.named_parameters())][1::2]
    ends = dict(second.named_parameters())
    assert all(torch.equal(param, ends[name]) for name, param in first.named_parameters() if name in last)


def test_a_round_beside_the_training_is_taken_over_when_its_steps_are_done(tmp_path: Path) -> None:
    (first, reports), _ = trained(
        tmp_path, 2, 40, inner_steps=10, quorum=2, delay=4, blend=0.5, compress="int4"
    )
    assert [one.round for one in reports] == [1, 2, 3, 4]
    assert loss(first) < loss(model())


def test_arrays_of_numpy_are_changed_in_place(tmp_path: Path) -> None:
    params = {"w": np.zeros((3, 2), np.float32), "b": np.ones(2, np.float32)}
    loop = OuterLoop(params, store=str(tmp_path), run="run", replica="a", inner_steps=2, lr=1.0, momentum=0.0)
    params["w"] += 1.0
    assert loop.step() == []
    params["w"] += 1.0
    [report] = loop.step(tokens=5)
    assert (report.round, report.tokens, report.members) == (1, 6, {"a": 6})
    assert np.allclose(params["w"], 2.0)
    again = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)}
    assert OuterLoop(again, store=str(tmp_path), run="run", replica="b").rounds == [1]
    assert np.allclose(again["w"], 2.0)
    assert np.allclose(again["b"], 1.0)


def loop_of(folder: Path, replica: int, **options: Any) -> tuple[dict[str, Any], OuterLoop]:
    params = {name: np.zeros(3, np.float32) for name in ("a", "b")}
    given = {"inner_steps": 4, "grace": 0.0, "poll_s": 0.01, **options}
    return params, OuterLoop(params, store=str(folder), run="run", replica=replica, **given)


def learn(params: dict[str, Any], loop: OuterLoop, steps: int) -> list[RoundReport]:
    reports = []
    for _ in range(steps):
        for param in params.values():
            param += 1.0
        reports += loop.step()
    return reports


def test_how_far_the_run_is_follows_from_its_rounds(tmp_path: Path) -> None:
    """A replica that was left out, comes late or starts again is where the others are."""
    slow, behind = loop_of(tmp_path, 1)
    fast, ahead = loop_of(tmp_path, 0)
    learn(fast, ahead, 12)
    assert (ahead.steps, ahead.rounds) == (12, [3])
    [report] = learn(slow, behind, 4)
    assert (report.fate, behind.steps, behind.rounds) == ("late", 12, [3])
    assert np.array_equal(slow["a"], fast["a"])
    late, joined = loop_of(tmp_path, 2)
    assert (joined.steps, joined.rounds) == (12, [3])
    assert np.array_equal(late["a"], fast["a"])


def test_fragments_are_where_their_rounds_are_after_a_restart(tmp_path: Path) -> None:
    params, loop = loop_of(tmp_path, 0, fragments=2)
    learn(params, loop, 6)
    assert (loop.steps, loop.rounds) == (6, [2, 1])
    again, restarted = loop_of(tmp_path, 0, fragments=2)
    assert (restarted.steps, restarted.rounds) == (6, [2, 1])
    assert [one.round for one in learn(again, restarted, 2)] == [2]


@pytest.mark.parametrize(("total", "last"), [(8, [3, 2]), (9, [3, 3]), (1, [1, 1])])
def test_the_last_rounds_leave_nothing_of_a_replicas_own(tmp_path: Path, total: int, last: list[int]) -> None:
    """Whatever fragments, delay and blend leave in between: at the end all have what was committed."""
    params, loop = loop_of(tmp_path, 0, fragments=2, delay=1, blend=0.5, total=total)
    learn(params, loop, total)
    loop.finish()
    assert (loop.steps, loop.rounds, loop.last_rounds) == (total, last, last)
    other, joined = loop_of(tmp_path, 1, fragments=2, delay=1, blend=0.5, total=total)
    assert (joined.steps, joined.finish()) == (total, [])
    assert all(np.array_equal(params[name], other[name]) for name in params)


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    params = {"w": np.zeros(4, np.float32)}
    for wrong, word in (
        ({"fragments": 2}, "fragments"),
        ({"fragments": 0}, "fragments"),
        ({"delay": 100}, "delay"),
        ({"compress": "int9"}, "compress = 'int9'"),
        ({"grace": "soon"}, "grace = 'soon' is not a duration"),
        ({"grace": -1}, "grace"),
        ({"quorum": 0}, "quorum"),
        ({"lr": 0}, "lr"),
        ({"momentum": 1.0}, "momentum"),
        ({"blend": float("nan")}, "blend"),
    ):
        options: dict[str, Any] = dict(wrong)
        with pytest.raises(StoreError, match=word):
            OuterLoop(params, store=str(tmp_path), run="run", replica=0, **options)


def test_replicas_meet_in_a_bucket_as_in_a_folder() -> None:
    """On a real S3 server, each replica with a client of its own."""
    server, found = seaweed(), {}
    url = server.fresh_url()

    def replica(number: int) -> None:
        params = {"w": np.zeros(3000, np.float32)}
        store = open_store(url, endpoint=server.endpoint)
        loop = OuterLoop(
            params,
            store=store,
            run="run",
            replica=number,
            inner_steps=1,
            quorum=2,
            compress="int4",
            poll_s=0.05,
        )
        random = np.random.default_rng(number)
        while loop.rounds[0] < 3:
            params["w"] += random.normal(size=3000).astype(np.float32)
            loop.step()
        found[number] = params["w"].copy()

    threads = [threading.Thread(target=replica, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(found[0], found[1])
    assert np.abs(found[0]).max() > 0
