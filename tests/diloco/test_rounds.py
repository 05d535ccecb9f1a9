"""Rounds in a store: all replicas have the same bits after each, whoever comes, goes or is late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from corral.diloco.blocks import Corrupt
from corral.diloco.codec import BLOCK, Compression, Vector
from corral.diloco.folder_store import FolderStore
from corral.diloco.outer import OuterOptimizer
from corral.diloco.round_store import StoreError
from corral.diloco.rounds import NotFinite, Outcome, ReplicaReplaced, RoundRules, Rounds
from diloco.counted_store import CountedStore

SIZE = 20 * BLOCK + 5
# Long enough for all who are there, also on a busy machine.
RULES = RoundRules(quorum=2, grace_s=30.0, poll_s=0.01)
HASTY = replace(RULES, grace_s=0.2)


class Replica:
    """A replica whose training is noise of its own."""

    def __init__(
        self, folder: Path, name: str, rules: RoundRules = RULES, *, size: int = SIZE, run: str = "run"
    ) -> None:
        self.store = CountedStore(FolderStore(folder))
        self.rounds = Rounds(self.store, run, name, size, rules)
        self.random = np.random.default_rng(sum(name.encode()))
        start = np.random.default_rng(0).normal(size=size).astype(np.float32)
        self.commit, self.weights = self.rounds.begin(start)
        self.local = self.weights
        self.tokens = 100 + int(name)

    def learn(self) -> None:
        self.local = self.weights + self.random.normal(size=len(self.weights)).astype(np.float32) * 0.01

    def meet(self) -> Outcome:
        found = self.rounds.run(self.commit, self.weights, self.weights - self.local, self.tokens)
        self.commit, self.weights = found.commit, found.weights
        return found


def together(*acts: Callable[[], Outcome]) -> list[Outcome]:
    """What each gives, or raises."""
    found: dict[int, Outcome] = {}
    problems: list[BaseException] = []

    def run(place: int, act: Callable[[], Outcome]) -> None:
        try:
            found[place] = act()
        except BaseException as error:  # noqa: BLE001
            problems.append(error)

    threads = [threading.Thread(target=run, args=one) for one in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return [found[place] for place in range(len(acts))]


def same(*vectors: Vector) -> bool:
    return all(np.array_equal(vectors[0], one) for one in vectors)


@pytest.fixture
def four(tmp_path: Path) -> list[Replica]:
    return [Replica(tmp_path, str(number)) for number in range(4)]


def a_round(replicas: list[Replica]) -> list[Outcome]:
    for one in replicas:
        one.learn()
    return together(*(one.meet for one in replicas))


def test_lr_1_without_momentum_is_the_mean_of_the_replicas_by_tokens(tmp_path: Path) -> None:
    """DL-C29, DL-C22: the best oracle; the sign is that of the pseudo-gradient."""
    rules = replace(RULES, outer=OuterOptimizer(1.0, 0.0))
    four = [Replica(tmp_path, str(number), rules) for number in range(4)]
    for _ in range(3):
        found = a_round(four)
        assert same(*(one.weights for one in found))
        total = sum(one.tokens for one in four)
        mean = sum(one.local.astype(np.float64) * one.tokens / total for one in four)
        assert np.abs(mean - found[0].weights).max() < 1e-6
        assert found[0].commit.members == {one.rounds.replica: one.tokens for one in four}


def test_the_outer_step_is_torchs_sgd_with_nesterov_momentum() -> None:
    """DL-C22."""
    weights, momentum = np.ones(64, np.float32), np.zeros(64, np.float32)
    param = torch.nn.Parameter(torch.ones(64))
    optimizer = torch.optim.SGD([param], lr=0.7, momentum=0.9, nesterov=True)
    random = np.random.default_rng(1)
    for _ in range(5):
        gradient = random.normal(size=64).astype(np.float32)
        weights, momentum = OuterOptimizer().step(weights, momentum, gradient)
        param.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        assert np.allclose(weights, param.detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("compression", ["none", "bf16", "int8", "int4"])
def test_all_replicas_have_the_same_bits_whatever_the_compression(
    tmp_path: Path, compression: Compression
) -> None:
    """DL-D34."""
    rules = replace(RULES, compression=compression)
    three = [Replica(tmp_path, str(number), rules) for number in range(3)]
    for _ in range(2):
        found = a_round(three)
        assert same(*(one.weights for one in found))
        assert same(*(one.rounds.momentum(one.commit) for one in three))
    # What was lost is kept, to be brought to the next round.
    assert (np.abs(found[0].error) > 0).any() == (compression != "none")
    assert len(found[0].error) == SIZE


def test_a_replica_that_is_gone_is_waited_for_once(four: list[Replica]) -> None:
    """DL-D01, DL-D02, DL-C24: within quorum plus grace the others go on; each round has its members."""
    a_round(four)
    three = four[:3]
    for one in three:
        one.rounds.rules = HASTY
    found = a_round(three)
    assert same(*(one.weights for one in found))
    assert sorted(found[0].commit.members) == ["0", "1", "2"]
    assert sorted(a_round(three)[0].commit.members) == ["0", "1", "2"]


def test_a_slow_replica_is_left_out_and_joins_the_next_round(four: list[Replica]) -> None:
    """Its tokens are counted in no round: what it learned was learned from weights that nobody has now."""
    a_round(four)
    slow, others = four[3], four[:3]
    slow.learn()
    for one in others:
        one.rounds.rules = HASTY
    a_round(others)
    for one in others:
        one.rounds.rules = RULES
    late = slow.meet()
    assert late.fate == "late"
    assert same(late.weights, others[0].weights)
    found = a_round(four)
    assert [one.fate for one in found] == ["committed"] * 4
    assert same(*(one.weights for one in found))


def test_a_late_joiner_and_a_restart_heal_from_the_last_commit_alone(
    four: list[Replica], tmp_path: Path
) -> None:
    """DL-D10, DL-D35: weights and outer momentum."""
    for _ in range(3):
        a_round(four)
    joined = Replica(tmp_path, "7")
    assert (joined.commit.round, same(joined.weights, four[0].weights)) == (3, True)
    assert same(joined.rounds.momentum(joined.commit), four[0].rounds.momentum(four[0].commit))
    found = a_round([*four, joined])
    assert same(*(one.weights for one in found))
    assert "7" in found[0].commit.members


def test_of_two_processes_that_are_one_replica_the_older_stops(four: list[Replica], tmp_path: Path) -> None:
    """DL-D04, DL-D03: exactly one is counted, and the other is told by name."""
    a_round(four)
    again = Replica(tmp_path, "3")
    with pytest.raises(ReplicaReplaced, match="replica 3 of run"):
        four[3].meet()
    found = a_round([*four[:3], again])
    assert sorted(found[0].commit.members) == ["0", "1", "2", "3"]
    assert same(*(one.weights for one in found))


def test_a_second_run_in_the_same_store_reads_nothing_of_the_first(
    four: list[Replica], tmp_path: Path
) -> None:
    """DL-D03."""
    a_round(four)
    other = Replica(tmp_path, "0", replace(RULES, quorum=1), run="other")
    assert other.commit.round == 0
    assert not same(other.weights, four[0].weights)
    with pytest.raises(StoreError, match="trains 20485 weights, this replica 100"):
        Replica(tmp_path, "9", size=100)


def test_weights_that_are_no_numbers_are_never_offered(four: list[Replica]) -> None:
    """DL-D36: a replica that cannot take part does not step; the others go on."""
    four[0].learn()
    four[0].local[17] = np.nan
    with pytest.raises(NotFinite, match="replica 0"):
        four[0].meet()
    for one in four[1:]:
        one.rounds.rules = HASTY
    assert sorted(a_round(four[1:])[0].commit.members) == ["1", "2", "3"]


def test_a_changed_byte_is_found(four: list[Replica], tmp_path: Path) -> None:
    """DL-C20, DL-D08: payloads and state are safetensors with digests; what is torn is not taken."""
    a_round(four)
    [*state] = [path for path in (tmp_path / "run" / "rounds" / "00000001" / "state").iterdir()]
    assert set(load(state[0].read_bytes())) == {"weights", "momentum"}
    data = bytearray(state[0].read_bytes())
    data[-3] ^= 1
    data[200] ^= 1
    state[0].write_bytes(bytes(data))
    with pytest.raises(Corrupt, match="is not what its record says"):
        Replica(tmp_path, "8")


def test_bytes_grow_with_the_model_and_not_with_the_square_of_replicas(tmp_path: Path) -> None:
    """DL-D06, DL-D05: each gives all of its payload once, and reads a shard of everybody's, of the old
    momentum, and the new weights; the objects of a round do not grow with the number of tensors."""
    for count in (2, 4):
        replicas = [Replica(tmp_path / str(count), str(number)) for number in range(count)]
        for one in replicas:
            one.store.up = one.store.down = 0
        a_round(replicas)
        size = 4 * (SIZE + BLOCK)
        for one in replicas:
            assert one.store.up <= size + 2 * size / count + 8192
            # A shard has a piece more or less than another.
            assert one.store.down <= 1.2 * size + size + 1.2 * size / count
    objects = list(FolderStore(tmp_path / "4").list("run/rounds/00000001"))
    assert len(objects) == 4 * (1 + 1 + 1 + 1) + 1


def test_old_rounds_are_removed_and_nothing_that_is_still_read(four: list[Replica]) -> None:
    """DL-D07."""
    for _ in range(5):
        a_round(four)
    there = {one.key.split("/")[2] for one in four[0].store.list("run/rounds")}
    assert there == {"00000003", "00000004", "00000005"}
    assert len(list(four[0].store.list("run/commits"))) == 6
