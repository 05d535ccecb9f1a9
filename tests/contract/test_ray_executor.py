"""The executor for Ray holds the contract of executors, on a real cluster of several nodes."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from support.executor_contract import (
    STAYS,
    ExecutorContract,
    ExecutorHarness,
    ForeignWork,
    LiveProcess,
    has_ended,
    nothing_is_left,
    running,
    said,
    sighted,
)
from support.ray_cluster import ENVIRON, HOST, LocalRay, shared_ray
from support.waiting import eventually

from corral.adapters.executors.ray.api import RayApi
from corral.adapters.executors.ray.executor import RayExecutor
from corral.adapters.executors.ray.models import RayCluster
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder, SightCause, SightState
from corral.ports.executor import Executor, ExecutorUnreachable, LaunchRefused

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing: pip install -e '.[test]'")

# A driver that does something else before, or instead of, what a function of it would do.
_PATCHED = """
import os
from corral.adapters.executors.ray import driver, {module} as module
real, calls = module.{function}, []
def other(*arguments, **named):
    calls.append(arguments)
    {instead}
    return real(*arguments, **named)
module.{function} = other
driver.main()
"""


class CountingApi(RayApi):
    count = 0

    def call(self, doing: str, request: dict[str, Any]) -> Any:
        CountingApi.count += 1
        return super().call(doing, request)

    def close(self) -> None:
        """Its driver ends; the next executor that is given this one starts another."""
        super().close()
        self._closed = False


class RayHarness(ExecutorHarness):
    """Executors take turns with two drivers: to start one takes longer than most cases do. What a new driver
    makes of a launch is shown by cases that start one."""

    def __init__(self, local: LocalRay, apis: list[RayApi]) -> None:
        super().__init__()
        self.local = local
        self.apis = apis
        self._turns = cycle(apis)
        self.config = ray_config(local)
        self._driver: tuple[str, ...] | None = None
        self._made: list[RayExecutor] = []

    def executor(self) -> RayExecutor:
        if self._driver is not None:
            return self.fresh(driver=self._driver)
        return RayExecutor(self.config, next(self._turns))

    def fresh(self, **changes: Any) -> RayExecutor:
        """With a driver of its own."""
        made = RayExecutor(replace(self.config, **changes))
        self._made.append(made)
        return made

    def clean(self) -> None:
        for made in self._made:
            made.close()
        executor = RayExecutor(self.config, self.apis[0])
        for installation in (self.installation, f"{self.installation}x"):
            for item in executor.launched(installation):
                executor.cancel(item.handle)
            eventually(lambda: not executor.launched(installation), "the end of what was launched")  # noqa: B023

    def listing(self, handle: str) -> str:
        return str(self.local.ask("listing", handle=handle))

    def foreign(self) -> ForeignWork:
        name = f"{self.installation}-other/p-1/0"
        self.local.ask("foreign", name=name)
        return ForeignWork(
            runs=lambda: bool(self.local.ask("foreign_lives", name=name)),
            end=lambda: self.local.ask("end_foreign", name=name),
        )

    def impossible(self, key: str) -> LaunchOrder:
        return self.order(key, 2, STAYS, need=Requirements(gpus=99))

    def crowded(self, key: str) -> LaunchOrder:
        return self.order(key, 3, STAYS, min_ranks=1, need=Requirements(gpus=2, gpu=("A100",)))

    def broken(self) -> tuple[Executor, str]:
        # No site, no packages.
        return self.fresh(driver=(sys.executable, "-S", "-c", "import ray")), "ray"

    @contextmanager
    def away(self) -> Iterator[None]:
        head = self.local.ask("gcs_pid")
        for api in self.apis:
            api._cluster = replace(self.config, timeout_s=2.0)
        os.kill(head, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(head, signal.SIGCONT)
            for api in self.apis:
                api._cluster = self.config

    @contextmanager
    def losing_a_reply(self) -> Iterator[None]:
        # The third: after those to `connect` and `nodes`.
        self._driver = _patched("driver", "_reply", "if len(calls) == 3: os._exit(1)")
        yield
        self._driver = None

    def dies_in_launch(self, order: LaunchOrder) -> None:
        # The second of the actors is never made.
        driver = _patched("operations", "_actor", "if len(calls) == 2: os._exit(1)")
        with pytest.raises(ExecutorUnreachable):
            self.fresh(driver=driver).launch(order)

    @contextmanager
    def full(self) -> Iterator[None]:
        eventually(lambda: self.local.ask("free").get("CPU", 0) >= 12, "an empty cluster")
        self.local.ask("fill")
        yield
        self.local.ask("empty")

    def requests(self) -> int | None:
        return CountingApi.count

    def out_of_memory(self, key: str) -> LaunchOrder:
        return self.order(key, 1, STAYS, need=Requirements(gpus=1, gpu=("H100",)))


def _patched(module: str, function: str, instead: str) -> tuple[str, ...]:
    return (sys.executable, "-c", _PATCHED.format(module=module, function=function, instead=instead))


def ray_config(local: LocalRay) -> RayCluster:
    return RayCluster(address=local.address, environ=ENVIRON, node_ip=HOST)


@pytest.fixture(scope="module")
def local_ray() -> LocalRay:
    return shared_ray()


@pytest.fixture(scope="module")
def apis(local_ray: LocalRay) -> Iterator[list[RayApi]]:
    made: list[RayApi] = [CountingApi(ray_config(local_ray)) for _ in range(2)]
    yield made
    for api in made:
        api.close()


@pytest.fixture
def cluster(local_ray: LocalRay, apis: list[RayApi]) -> Iterator[RayHarness]:
    made = RayHarness(local_ray, apis)
    yield made
    made.clean()


class TestRayExecutor(ExecutorContract): ...


def free(local: LocalRay, resource: str) -> float:
    return float(local.ask("free").get(resource, 0.0))


def test_each_rank_has_gpus_of_its_own_and_gives_them_back(cluster: RayHarness) -> None:
    """DL-D25: several GPUs, by the name of the model; when it has ended they are free again."""
    eventually(lambda: free(cluster.local, "GPU") == 7, "all GPUs to be free")
    executor = cluster.executor()
    need = Requirements(gpus=2, gpu=("B300", "a100"))
    order = cluster.order(cluster.key(), 2, f'echo "gpus $CUDA_VISIBLE_DEVICES"; {STAYS}', need=need)
    handle = running(cluster, executor, order)

    held = free(cluster.local, "GPU")
    seen = [said(executor, handle, rank, "gpus").splitlines()[0] for rank in range(2)]
    executor.cancel(handle)

    assert held == 3
    assert seen == ["gpus 0,1"] * 2
    eventually(lambda: free(cluster.local, "GPU") == 7, "all GPUs to be free")


def test_tokens_lie_in_a_folder_that_only_its_owner_reads_and_that_is_removed(cluster: RayHarness) -> None:
    """DL-D32."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 1, STAYS)
    handle = running(cluster, executor, order)
    (worker,) = cluster.workers(order.key)
    tokens = Path(worker.environ["CORRAL_PLACED_TOKENS"])

    assert (tokens / "0").read_text() == order.tokens[0]
    assert stat.S_IMODE((tokens / "0").stat().st_mode) == 0o600
    assert stat.S_IMODE(tokens.parent.stat().st_mode) == 0o700
    assert not [name for name in worker.environ if name.startswith("RAY_")]

    executor.cancel(handle)
    eventually(lambda: not tokens.parent.exists(), "the folder to be removed")


def one(found: list[LiveProcess]) -> LiveProcess | None:
    return found[0] if len(found) == 1 else None


def test_an_actor_that_is_killed_takes_its_worker_along_and_gives_the_group_back(cluster: RayHarness) -> None:
    """DL-D18, DL-D22: SIGTERM first; Ray's own words for the end."""
    executor = cluster.executor()
    eventually(lambda: free(cluster.local, "CPU") == 13, "all CPUs to be free")
    order = cluster.order(cluster.key(), 1, STAYS)
    handle = running(cluster, executor, order)
    # A shell that forks is listed twice for a moment.
    worker = eventually(lambda: one(cluster.workers(order.key)), "the worker alone")
    folder = Path(worker.environ["CORRAL_PLACED_TOKENS"]).parent

    os.kill(cluster.local.ask("actor_pid", name=f"{handle}/0"), signal.SIGKILL)

    found = sighted(executor, handle, has_ended, "the end")
    assert (found.ranks[0].state, found.ranks[0].cause) == (SightState.FAILED, SightCause.UNKNOWN)
    assert "connection error" in found.ranks[0].detail
    nothing_is_left(cluster, order.key)
    eventually(lambda: free(cluster.local, "CPU") == 13, "all CPUs to be free")
    eventually(lambda: not folder.exists(), "the folder to be removed")


def test_a_lost_node_is_called_so(cluster: RayHarness) -> None:
    """DL-D18."""
    executor = cluster.executor()
    cluster.local.ask("add_node", gpu="B200")
    order = cluster.order(cluster.key(), 1, STAYS, need=Requirements(gpus=1, gpu=("B200",)))
    handle = running(cluster, executor, order)

    cluster.local.ask("lose_node", gpu="B200")

    found = sighted(executor, handle, has_ended, "the end")
    assert found.ranks[0].cause is SightCause.NODE_LOST, found
    nothing_is_left(cluster, order.key)


def test_a_cancel_ends_also_the_ranks_of_an_elastic_launch_that_wait(cluster: RayHarness) -> None:
    """DL-D13, DL-D15: and until then they wait with Ray's own words."""
    executor = cluster.executor()
    order = cluster.crowded(cluster.key())
    handle = executor.launch(order)

    states = [SightState.RUNNING, SightState.RUNNING, SightState.WAITING]
    found = sighted(executor, handle, lambda seen: [rank.state for rank in seen.ranks] == states, str(states))
    assert found.ranks[2].cause is SightCause.UNSCHEDULABLE
    assert "NO_RESOURCES" in found.ranks[2].detail

    executor.cancel(handle)
    sighted(executor, handle, has_ended, "the end")
    nothing_is_left(cluster, order.key)
    eventually(lambda: free(cluster.local, "GPU") == 7, "all GPUs to be free")


def test_a_launcher_that_comes_late_starts_nothing_again(cluster: RayHarness, tmp_path: Path) -> None:
    """DL-D27: it looked before the first one had launched, and goes on after all has ended."""
    order = cluster.order(cluster.key(), 1, f"echo up | tee -a {tmp_path / 'starts'}; exit 4")
    handle = cluster.executor().launch(order)
    sighted(cluster.executor(), handle, has_ended, "the end")

    # In the driver alone: the actor sees all that is there.
    hidden = "('/launched', '/started/0')"
    blind = f"if 'BLIND' in os.environ: arguments = ([k for k in arguments[0] if not k.endswith({hidden})],)"
    driver = _patched("ledger", "read_many", blind)
    late = cluster.fresh(driver=driver, environ={**ENVIRON, "BLIND": "1"})
    assert late.launch(order) == handle

    eventually(lambda: cluster.local.ask("dead_actors", name=f"{handle}/0") == 2, "the end of its actor")
    eventually(lambda: free(cluster.local, "CPU") == 13, "all CPUs to be free")
    assert (tmp_path / "starts").read_text() == "up\n"
    assert cluster.executor().logs(handle, 0, most_bytes=100) == "up\n"
    assert order.tokens[0] not in cluster.listing(handle)


def test_half_a_launch_can_be_cancelled(cluster: RayHarness) -> None:
    """DL-D22, DL-D27: the launcher died in the middle, and nobody repeats it."""
    eventually(lambda: free(cluster.local, "CPU") == 13, "all CPUs to be free")
    order = cluster.order(cluster.key(), 2, STAYS)
    cluster.dies_in_launch(order)
    executor = cluster.executor()
    (found,) = executor.launched(cluster.installation)

    executor.cancel(found.handle)

    sighted(executor, found.handle, has_ended, "the end")
    nothing_is_left(cluster, order.key)
    eventually(lambda: free(cluster.local, "CPU") == 13, "all CPUs to be free")
    assert all(token not in cluster.listing(found.handle) for token in order.tokens)


def test_an_image_is_refused(cluster: RayHarness) -> None:
    """DL-D32: what cannot be done is not left out in silence."""
    with pytest.raises(LaunchRefused, match="image"):
        cluster.executor().launch(cluster.order(cluster.key(), 1, STAYS, image="a/b:1"))
