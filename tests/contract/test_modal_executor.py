"""The executor for Modal holds the contract of executors, on sandboxes that run on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from support.executor_contract import (
    SAYS_WHO,
    STAYS,
    ExecutorContract,
    ExecutorHarness,
    ForeignWork,
    all_are,
    has_ended,
    nothing_is_left,
    only_these_run,
    running,
    sighted,
)
from support.modal_server import ModalServer
from support.modal_server.server import TOKEN
from support.waiting import eventually

from corral.adapters.executors.modal.executor import ModalExecutor
from corral.adapters.executors.modal.options import ModalOptions
from corral.adapters.executors.modal.sandboxes import SandboxHandle
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder, SightCause, SightState
from corral.ports.executor import LaunchRefused

IMAGE = "registry.example/corral:test"
# Launches one order that comes as JSON, and stays until it is killed.
_LAUNCHER = """
import json, sys
from corral.adapters.executors.modal.executor import ModalExecutor
from corral.adapters.executors.modal.options import ModalOptions
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder
given = json.load(sys.stdin)
order = LaunchOrder(**{**given["order"], "need": Requirements(**given["need"])})
while True:
    try:
        ModalExecutor(ModalOptions(**given["options"])).launch(order)
    except Exception:
        pass
"""


class ModalHarness(ExecutorHarness):
    lacks: Mapping[str, str] = {
        "full": "a sandbox without a GPU waits for nothing; test_a_rank_waits_for_a_gpu has one",
        "grace": "Modal promises no warning before the end; Corral's own cancel reaches the worker before",
        "out_of_memory": "memory is not limited here; tests/unit/test_modal_words.py has the word",
    }

    def __init__(self, modal: ModalServer) -> None:
        super().__init__()
        self.modal = modal

    def options(self, **changes: Any) -> dict[str, Any]:
        return {"image": IMAGE, "timeout_s": 10.0, **changes}

    def executor(self, **changes: Any) -> ModalExecutor:
        return ModalExecutor(ModalOptions(**self.options(**changes)))

    def clean(self) -> None:
        self.modal.lost.clear()
        for one in list(self.modal.sandboxes.all.values()):
            self.modal.sandboxes.terminate(one)

    def listing(self, handle: str) -> str:
        """What the dashboard and the SDK show of a sandbox. Values of secrets they show to nobody."""
        found = [self.modal.sandboxes.all[one] for one in parsed(handle).ids]
        return " ".join(f"{one.info()} {one.definition}" for one in found)

    def foreign(self) -> ForeignWork:
        """In the same app."""
        other = self.executor()
        order = self.order(self.key(), 1, STAYS, installation=f"{self.installation}-of-others")
        handle = other.launch(order)
        eventually(lambda: self.workers(order.key), "the work of others")
        return ForeignWork(lambda: bool(self.workers(order.key)), lambda: other.cancel(handle))

    def impossible(self, key: str) -> LaunchOrder:
        return self.order(key, 2, STAYS, need=Requirements(gpus=1, gpu=("A6000",)))

    def broken(self) -> tuple[ModalExecutor, str]:
        return self.executor(image=None), "image"

    @contextmanager
    def away(self) -> Iterator[None]:
        self.modal.stop()
        try:
            yield
        finally:
            self.modal.start()

    @contextmanager
    def losing_a_reply(self) -> Iterator[None]:
        self.modal.lost.add("SandboxCreateV2")
        try:
            yield
        finally:
            self.modal.lost.clear()

    def dies_in_launch(self, order: LaunchOrder) -> None:
        """After some of its sandboxes."""
        need = {"min_cores": order.need.min_cores, "min_ram_bytes": order.need.min_ram_bytes}
        given = {"order": order._asdict() | {"need": None}, "need": need, "options": self.options()}
        given["order"] |= {"environ": dict(order.environ)}
        launcher = subprocess.Popen([sys.executable, "-c", _LAUNCHER], stdin=subprocess.PIPE, text=True)
        assert launcher.stdin is not None
        launcher.stdin.write(json.dumps(given))
        launcher.stdin.close()
        eventually(lambda: self.workers(order.key), "the launcher to have made a sandbox")
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()

    def full(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def requests(self) -> int | None:
        return self.modal.requests.total()


@pytest.fixture(scope="module")
def modal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalServer]:
    made = ModalServer(tmp_path_factory.mktemp("modal"))
    given = {"MODAL_SERVER_URL": made.url, "MODAL_TOKEN_ID": TOKEN[0], "MODAL_TOKEN_SECRET": TOKEN[1]}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        yield made
    made.close()


@pytest.fixture
def cluster(modal_server: ModalServer) -> Iterator[ModalHarness]:
    made = ModalHarness(modal_server)
    yield made
    made.clean()


class TestModalExecutor(ExecutorContract): ...


GPU = Requirements(gpus=1, gpu=("H100",))


def test_a_rank_waits_for_a_gpu_and_the_launch_does_not(cluster: ModalHarness) -> None:
    """DL-D13, DL-D15: the SDK waits for up to 21 minutes; what waits reads so, also for others."""
    executor = cluster.executor(timeout_s=0.5)
    order = cluster.order(cluster.key(), 2, STAYS, need=GPU)
    cluster.modal.sandboxes.set_gpus(0)
    try:
        handle = executor.launch(order)
        for other in (executor, cluster.executor()):
            seen = other.observe([handle])[handle]
            assert {(rank.state, rank.detail) for rank in seen.ranks} == {
                (SightState.WAITING, "waits for a machine")
            }
        assert cluster.executor().launch(order) == handle
    finally:
        cluster.modal.sandboxes.set_gpus(8)

    sighted(executor, handle, all_are(SightState.RUNNING), "both ranks to run")
    only_these_run(cluster, order.key, [0, 1])
    found = cluster.modal.sandboxes.all[parsed(handle).ids[1]].definition.resources.gpu_config
    assert (found.gpu_type, found.count) == ("H100", 1)


def test_what_waits_for_a_gpu_is_taken_away_by_a_cancel(cluster: ModalHarness) -> None:
    """DL-D22."""
    executor = cluster.executor(timeout_s=0.5)
    order = cluster.order(cluster.key(), 1, STAYS, need=GPU)
    cluster.modal.sandboxes.set_gpus(0)
    try:
        handle = executor.launch(order)
        executor.cancel(handle)
    finally:
        cluster.modal.sandboxes.set_gpus(8)

    assert executor.observe([handle])[handle].ended
    assert executor.launched(cluster.installation) == []
    assert not cluster.workers(order.key)


def test_a_gpu_that_never_comes_is_told_as_no_room(
    cluster: ModalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DL-D13, DL-D18: the SDK gives up after 21 minutes, long after the launch."""
    monkeypatch.setattr("modal.sandbox._impl_v1._SANDBOX_SCHEDULING_TIMEOUT", 1.2)
    executor = cluster.executor(timeout_s=0.3)
    cluster.modal.sandboxes.set_gpus(0)
    try:
        handle = executor.launch(cluster.order(cluster.key(), 1, STAYS, need=GPU))
        # The SDK ends the sandbox, and says why just after.
        found = sighted(executor, handle, lambda seen: "capacity" in seen.ranks[0].detail, "the reason")
    finally:
        cluster.modal.sandboxes.set_gpus(8)

    assert found.ranks[0].cause is SightCause.UNSCHEDULABLE
    assert found.ended


def test_the_end_of_a_gpu_sandbox_is_known_by_its_id(cluster: ModalHarness) -> None:
    """DL-C09, DL-D28: by name Modal finds those that have ended only without a GPU."""
    executor = cluster.executor()
    handle = executor.launch(cluster.order(cluster.key(), 2, SAYS_WHO + "exit 4", need=GPU))
    sighted(executor, handle, has_ended, "the end")

    seen = cluster.executor().observe([handle])[handle]

    assert [(rank.cause, rank.exit_code) for rank in seen.ranks] == [(SightCause.EXITED, 4)] * 2


def test_what_is_left_of_a_gang_is_taken_away(cluster: ModalHarness) -> None:
    """DL-D13: Modal knows of no gangs; three ranks would wait for a fourth that never comes."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 3, STAYS)
    handle = running(cluster, executor, order)

    cluster.kill_rank(order.key, 1)

    found = sighted(executor, handle, has_ended, "all to be taken away")
    causes = [seen.cause for seen in found.ranks]
    assert causes == [SightCause.CANCELLED, SightCause.EXITED, SightCause.CANCELLED]
    nothing_is_left(cluster, order.key)


def test_a_workspace_without_room_holds_no_half_gang(cluster: ModalHarness) -> None:
    """DL-D13: what came up is taken away, and the placement reads lost, in Modal's words."""
    cluster.modal.sandboxes.containers = sum(one.lives for one in cluster.modal.sandboxes.all.values()) + 1
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 2, STAYS)
    try:
        handle = executor.launch(order)
        found = sighted(executor, handle, has_ended, "the half to be taken away")
    finally:
        cluster.modal.sandboxes.containers = 32

    assert "limited to" in " ".join(seen.detail for seen in found.ranks)
    assert {seen.cause for seen in found.ranks} == {SightCause.CANCELLED, SightCause.UNSCHEDULABLE}
    nothing_is_left(cluster, order.key)


def test_an_image_that_cannot_be_built_is_a_refusal_in_modals_words(cluster: ModalHarness) -> None:
    """DL-D18."""
    with pytest.raises(LaunchRefused, match="manifest unknown"):
        cluster.executor(image="registry.example/missing:1").launch(cluster.order(cluster.key(), 1, STAYS))


def test_a_token_that_is_missing_is_said_first(cluster: ModalHarness) -> None:
    """DL-C10: a process of its own, since the SDK keeps what it was told."""
    script = (
        "from corral.adapters.executors.modal.executor import ModalExecutor\n"
        "from corral.adapters.executors.modal.options import ModalOptions\n"
        "print(*ModalExecutor(ModalOptions(image='x')).preflight())\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MODAL_")}
    environ |= {"MODAL_CONFIG_PATH": "/nonexistent", "MODAL_SERVER_URL": cluster.modal.url}

    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )

    assert "name='token', ok=False" in done.stdout
    assert "modal token new" in done.stdout


def parsed(handle: str) -> SandboxHandle:
    found = SandboxHandle.parse(handle)
    assert found is not None
    return found
