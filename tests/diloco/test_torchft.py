"""torchft's own DiLoCo and LocalSGD on our manager: the same weights as where all are averaged in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft.manager import Manager as TheirManager

from corral.diloco import Manager, ReplicaReplaced, StoreError, snapshot
from corral.diloco.blocks import Corrupt
from corral.diloco.folder_store import FolderStore
from corral.diloco.records import Commit, read_commit

SYNC_EVERY, INPUTS = 4, 6


class Averaged:
    """What torchft's tests have for a manager, for several replicas: tensors are averaged in this memory."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count)
        self.given: dict[int, dict[int, torch.Tensor]] = {}
        self.count = count

    def manager(self, number: int) -> Any:
        calls, steps = [0], [0]
        made: Any = type("Mock", (), {})()

        def allreduce(tensor: torch.Tensor, should_quantize: bool = False) -> Any:
            call, calls[0] = calls[0], calls[0] + 1
            self.given.setdefault(call, {})[number] = tensor.clone()
            self.barrier.wait(60)
            parts = [self.given[call][one] for one in range(self.count)]
            mean = parts[0] / self.count
            for part in parts[1:]:
                mean += part / self.count
            tensor.copy_(mean)
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(tensor)
            return type("Done", (), {"wait": lambda self: True, "get_future": lambda self: future})()

        def should_commit() -> bool:
            steps[0] += 1
            return True

        made._use_async_quorum = False
        made.start_quorum = made.allow_state_dict_read = made.disallow_state_dict_read = lambda: None
        made.register_state_dict_fn = lambda *_: None
        made.current_step, made.allreduce, made.should_commit = lambda: steps[0], allreduce, should_commit
        return made


class Replica:
    """A small model that torchft's DiLoCo trains on data of its own."""

    def __init__(self, manager: Any, number: int, *, lr: float = 0.7, momentum: float = 0.9, **options: Any):
        torch.manual_seed(0)
        self.parts = [torch.nn.Linear(INPUTS, 5), torch.nn.Linear(5, 3)]
        self.model = torch.nn.Sequential(self.parts[0], torch.nn.Tanh(), self.parts[1])
        self.manager, self.random = manager, np.random.default_rng(number)
        fragments = self.parts if options.pop("fragments", 1) == 2 else [self.model]
        self.outer = [
            torch.optim.SGD(one.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)
            for one in fragments
        ]
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.diloco = DiLoCo(manager, fragments, self.inner, self.outer, SYNC_EVERY, **options)

    def steps(self, count: int) -> None:
        with self.diloco:
            for _ in range(count):
                learn(self.model, self.inner, self.random)

    @property
    def weights(self) -> list[torch.Tensor]:
        return [one.detach().clone() for one in self.model.parameters()]

    @property
    def shared(self) -> list[torch.Tensor]:
        """The weights of the last step, and the outer momentum."""
        parts = [one for part in self.diloco._fragments for one in part.original_parameters.values()]
        states = [one for outer in self.outer for one in outer.state.values()]
        return parts + [one["momentum_buffer"] for one in states if one.get("momentum_buffer") is not None]


def learn(model: torch.nn.Module, optimizer: torch.optim.Optimizer, random: np.random.Generator) -> None:
    x = torch.tensor(random.normal(size=(8, INPUTS)), dtype=torch.float32)
    optimizer.zero_grad()
    ((model(x) - x[:, :3].sin()) ** 2).mean().backward()
    optimizer.step()


def ours(folder: Path, number: int, **options: Any) -> Manager:
    told: dict[str, Any] = {
        "min_replica_size": 2,
        "grace": 30.0,
        "poll_s": 0.01,
        "init_sync": False,
        **options,
    }
    return Manager(store=str(folder), run="run", replica_id=f"train_{number}", **told)


def side_by_side(*acts: Callable[[], object]) -> None:
    problems: list[BaseException] = []

    def run(act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001
            problems.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def commits(folder: Path) -> list[Commit]:
    paths = sorted((folder / "run" / "commits").iterdir())
    return [read_commit(path.read_bytes(), path.name) for path in paths]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_bucketization": True},
        {"fragments": 2},
        {"fragments": 2, "fragment_sync_delay": 1, "fragment_update_alpha": 0.5},
    ],
    ids=["whole", "buckets", "fragments", "streaming"],
)
def test_torchfts_diloco_has_the_weights_that_plain_averaging_gives(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """DL-C21, DL-C22, DL-C27: two replicas, bit for bit; a delay and a blend as well."""
    averaged = Averaged(2)
    theirs = [Replica(averaged.manager(number), number, **options) for number in range(2)]
    side_by_side(*(lambda one=one: one.steps(3 * SYNC_EVERY) for one in theirs))
    mine = [Replica(ours(tmp_path, number), number, **options) for number in range(2)]
    side_by_side(*(lambda one=one: one.steps(3 * SYNC_EVERY) for one in mine))
    for one, other in zip(mine, theirs, strict=True):
        assert equal(one.weights, other.weights)
        assert equal(one.shared, other.shared)
    assert equal(mine[0].shared, mine[1].shared)
    assert not equal(mine[0].shared, Replica(averaged.manager(0), 0, **options).shared)
    rounds = 6 if "fragments" in options else 3
    assert [one.members for one in commits(tmp_path)] == [{"train_0": 1, "train_1": 1}] * rounds
    assert mine[0].manager.current_step() == rounds
    assert mine[0].manager.batches_committed() == 2 * rounds
    # One payload for each replica and round, however many tensors there are: DL-D05.
    assert len(list((tmp_path / "run" / "rounds" / f"{rounds:08d}" / "payloads").iterdir())) == 2


def test_lr_1_without_momentum_averages_parameters(tmp_path: Path) -> None:
    """DL-C29."""
    both = [Replica(ours(tmp_path, number), number, lr=1.0, momentum=0.0) for number in range(2)]
    side_by_side(*(lambda one=one: one.steps(SYNC_EVERY) for one in both))
    alone = []
    for number in range(2):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(INPUTS, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        optimizer, random = torch.optim.AdamW(model.parameters(), lr=1e-2), np.random.default_rng(number)
        for _ in range(SYNC_EVERY):
            learn(model, optimizer, random)
        alone.append(list(model.parameters()))
    for weights, first, second in zip(both[0].weights, *alone, strict=True):
        assert torch.allclose(weights, (first + second) / 2, atol=1e-6)
    assert equal(both[0].weights, both[1].weights)


def test_torchfts_local_sgd_averages_parameters_too(tmp_path: Path) -> None:
    """DL-C27."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(torch.nn.Linear(INPUTS, 3))

    def train(number: int) -> None:
        optimizer = torch.optim.SGD(models[number].parameters(), lr=0.1)
        with LocalSGD(ours(tmp_path, number), models[number], optimizer, SYNC_EVERY):
            for _ in range(2 * SYNC_EVERY):
                learn(models[number], optimizer, np.random.default_rng(number))

    side_by_side(*(partial(train, number) for number in range(2)))
    assert equal(*([one.detach() for one in model.parameters()] for model in models))
    assert len(commits(tmp_path)) == 2


def test_a_replica_that_dies_in_a_round_costs_the_others_the_grace_and_heals_when_it_returns(
    tmp_path: Path,
) -> None:
    """DL-C24, DL-C25, DL-D01, DL-D35: its offer counts, the others do its part, and go on without it; who
    returns has the weights and the outer momentum of the others."""
    three = [Replica(ours(tmp_path, number, grace=0.5), number) for number in range(3)]
    # Long enough for all to be there at first, also on a busy machine.
    for one in three:
        one.manager._rounds.rules = ours(tmp_path / "x", 0)._rounds.rules
    side_by_side(*(lambda one=one: one.steps(SYNC_EVERY) for one in three))

    dead = three[2]

    def dies(point: str) -> None:
        if point == "after offer":
            raise StoreError("this replica does nothing more")

    dead.manager._rounds.reached = dies
    dead.steps(SYNC_EVERY)
    for one in three[:2]:
        one.manager._rounds.rules = ours(tmp_path / "x", 0, grace=0.5)._rounds.rules
    side_by_side(*(lambda one=one: one.steps(3 * SYNC_EVERY) for one in three[:2]))
    members = [sorted(one.members) for one in commits(tmp_path)]
    assert members[0] == ["train_0", "train_1", "train_2"]
    assert members[1] == members[0]
    assert members[2:] == [["train_0", "train_1"]] * 2
    assert equal(three[0].weights, three[1].weights)

    again = Replica(ours(tmp_path, 2), 77)
    for one in three[:2]:
        one.manager._rounds.rules = again.manager._rounds.rules
    with torch.no_grad():
        for param in again.model.parameters():
            param.add_(1.0)
    assert len(members) == 4
    everyone = [*three[:2], again]
    side_by_side(*(lambda one=one: one.steps(SYNC_EVERY) for one in everyone))
    assert all(equal(one.shared, again.shared) for one in three[:2])
    assert equal(three[0].weights, again.weights)
    # What it learned before it was healed weighs nothing.
    assert commits(tmp_path)[-1].members == {"train_0": 1, "train_1": 1, "train_2": 0}
    side_by_side(*(lambda one=one: one.steps(SYNC_EVERY) for one in everyone))
    assert commits(tmp_path)[-1].members == {"train_0": 1, "train_1": 1, "train_2": 1}
    assert all(equal(one.shared, again.shared) for one in three[:2])
    assert again.manager.num_participants() == 3


def test_a_run_that_ended_goes_on_from_its_last_step(tmp_path: Path) -> None:
    """DL-D10: with the weights and the momentum that were there, and as if it had never stopped."""
    options: dict[str, Any] = {"min_replica_size": 1}
    first = Replica(ours(tmp_path, 0, **options), 0)
    first.steps(2 * SYNC_EVERY)
    first.manager.shutdown()
    again = Replica(ours(tmp_path, 0, **options), 5, lr=0.1)
    with torch.no_grad():
        for param in again.model.parameters():
            param.zero_()
    again.steps(1)
    assert again.manager.current_step() == 2
    assert equal(again.shared, first.shared)
    assert again.outer[0].param_groups[0]["lr"] == 0.7
    again.steps(SYNC_EVERY - 1)
    assert again.manager.current_step() == 3
    # Its window began with other weights, so that only the momentum moves on.
    half = len(first.shared) // 2
    for before, momentum, after in zip(first.shared, first.shared[half:], again.shared[:half], strict=False):
        assert torch.allclose(after, before - 0.7 * 0.9 * (0.9 * momentum), atol=1e-6)


def test_who_has_another_beginning_takes_that_of_the_first(tmp_path: Path) -> None:
    """`init_sync`, as torchft has it."""
    both = [Replica(ours(tmp_path, number, init_sync=True), number) for number in range(2)]
    with torch.no_grad():
        for param in both[1].model.parameters():
            param.add_(1.0)
    both[1].diloco._save_parameters()
    first = both[0].shared
    for one in both:
        one.manager.start_quorum()
    assert equal(both[1].shared, first)
    assert [one.manager.is_participating() for one in both] == [True, False]


def test_errors_are_kept_for_the_commit_and_discard_the_window(tmp_path: Path) -> None:
    """DL-C26: an all-reduce never raises; a step that is not committed leaves the weights of the last."""
    one = Replica(ours(tmp_path, 0, min_replica_size=1, max_retries=1), 0)
    one.steps(SYNC_EVERY)
    before = one.shared
    with torch.no_grad():
        one.parts[0].bias[0] = float("nan")
    one.inner.state.clear()
    one.steps(SYNC_EVERY)
    assert equal(one.shared, before)
    assert equal(one.weights, before[: len(one.weights)])
    assert one.manager.current_step() == 1
    assert len(commits(tmp_path)) == 1
    one.inner.state.clear()
    one.steps(SYNC_EVERY)
    assert one.manager.current_step() == 2
    one.manager.start_quorum()
    one.manager.report_error(StoreError("told by the program"))
    tensor = torch.ones(3)
    assert one.manager.allreduce(tensor).wait()
    assert torch.equal(tensor, torch.ones(3))
    assert not one.manager.should_commit()
    one.manager.start_quorum()
    one.manager.report_error(StoreError("told by the program"))
    with pytest.raises(StoreError, match="told by the program"):
        one.manager.should_commit()


def test_the_process_that_was_replaced_is_told(tmp_path: Path) -> None:
    """DL-D04."""
    old = Replica(ours(tmp_path, 0, min_replica_size=1), 0)
    old.steps(SYNC_EVERY)
    Replica(ours(tmp_path, 0, min_replica_size=1), 1).steps(1)
    with pytest.raises(ReplicaReplaced, match="train_0"):
        old.steps(SYNC_EVERY)


def test_the_manager_has_what_torchft_uses_of_its_own() -> None:
    """DL-C21."""
    used = {"start_quorum", "current_step", "allreduce", "should_commit", "register_state_dict_fn"}
    used |= {"allow_state_dict_read", "disallow_state_dict_read", "num_participants", "shutdown", "errored"}
    used |= {"report_error", "is_participating", "batches_committed", "state_dict", "load_state_dict"}
    for name in used:
        assert callable(getattr(Manager, name))
        assert callable(getattr(TheirManager, name))


def test_what_the_manager_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="lighthouse_adr"):
        ours(tmp_path, 0, lighthouse_adr="x")
    with pytest.raises(StoreError, match="several ranks"):
        ours(tmp_path, 0, world_size=2)
    Manager(None, None, None, 1, use_async_quorum=False, timeout=30, store=str(tmp_path), run="x")
    one = ours(tmp_path, 0, min_replica_size=1)
    one.register_state_dict_fn("mine", lambda _: None, lambda: object())
    one.start_quorum()
    assert "a state holds a object" in str(one.errored())


def test_a_state_is_what_it_was_and_no_pickle(tmp_path: Path) -> None:
    """DL-D08."""
    store = FolderStore(tmp_path)
    state = {
        "step": 3,
        "none": None,
        "groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": [0, 1]}],
        "state": {0: {"exp_avg": torch.randn(3, 2), "step": torch.tensor(7.0)}, 1: {}},
        "half": torch.randn(4).to(torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3, dtype=torch.int64),
    }
    assert snapshot.save(store, "run", 1, snapshot.taken(state))
    assert not snapshot.save(store, "run", 1, snapshot.taken({}))
    loaded = snapshot.load(store, "run", 1)
    assert loaded is not None
    found = snapshot.restored(loaded)
    assert str(found) == str(state)
    assert found["half"].dtype == torch.bfloat16
    assert found["empty"].shape == (0, 3)
    assert snapshot.load(store, "run", 2) is None
    path = next((tmp_path / "run" / "states").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    for each in (tmp_path / "run" / "states").iterdir():
        each.write_bytes(bytes(data))
    with pytest.raises(Corrupt):
        snapshot.load(store, "run", 1)
    (tmp_path / "run" / "snapshots" / "00000001.json").write_text("[]")
    with pytest.raises(StoreError, match="no record of a state"):
        snapshot.load(store, "run", 1)
