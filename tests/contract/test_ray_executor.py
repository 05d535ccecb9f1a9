"""The executor for Ray holds the contract of executors, on a real cluster of several nodes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import cycle
from typing import Any

import pytest
from support.executor_contract import (
    STAYS,
    ExecutorContract,
    ExecutorHarness,
    ForeignWork,
)
from support.ray_cluster import ENVIRON, HOST, LocalRay
from support.waiting import eventually

from corral.adapters.executors.ray.api import RayApi
from corral.adapters.executors.ray.executor import RayExecutor
from corral.adapters.executors.ray.models import RayCluster
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder
from corral.ports.executor import Executor, ExecutorUnreachable

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing: pip install -e '.[test]'")

# A driver that dies instead of doing what {method} of {module} would do when it is called.
_DIES = """
import os
from corral.adapters.executors.ray import {module} as module, driver
real = module.{method}
def dies(*arguments, **named):
    if {when}:
        os._exit(1)
    return real(*arguments, **named)
module.{method} = dies
driver.main()
"""


class CountingApi(RayApi):
    count = 0

    def call(self, doing: str, request: dict[str, Any]) -> Any:
        CountingApi.count += 1
        return super().call(doing, request)


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

    def broken(self) -> tuple[Executor, str]:
        # No site, no packages.
        return self.fresh(driver=(sys.executable, "-S", "-c", "import ray")), "ray"

    @contextmanager
    def away(self) -> Iterator[None]:
        head = self.local.ask("gcs_pid")
        for api in self.apis:
            api._cluster = replace(self.config, timeout_s=3.0)
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
        self._driver = _dying(
            "driver",
            "_reply",
            when="(dies.__dict__.setdefault('calls', []).append(1) or len(dies.calls) == 3)",
        )
        yield
        self._driver = None

    def dies_in_launch(self, order: LaunchOrder) -> None:
        # The second of the actors is never made.
        driver = _dying("operations", "_actor", when="arguments[1] == 1")
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


def _dying(module: str, method: str, *, when: str) -> tuple[str, ...]:
    return (sys.executable, "-c", _DIES.format(module=module, method=method, when=when))


def ray_config(local: LocalRay) -> RayCluster:
    return RayCluster(address=local.address, environ=ENVIRON, node_ip=HOST)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[LocalRay]:
    made = LocalRay()
    yield made
    made.stop()


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
