"""Servers that the tests of calls share: one host that is called live and deployed, and a fleet of three."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.local_cluster import LocalCluster, WorkerProcess, local_cluster

import corral
from calls import functions_for_tests as pier
from corral.functions import backend
from corral.functions.http_backend import HttpBackend

# Two cards as the library for them would tell of, where there are none.
GPUS = {
    "PYTHONPATH": str(Path(__file__).parents[1] / "fleet" / "stand_ins"),
    "STAND_IN_GPUS": "2",
    "CORRAL_GPU_CHECK": "off",
}


@dataclass(frozen=True)
class Scene:
    """Where calls go: `deployed` ones are found by name, live ones are the functions of the module."""

    stack: LocalCluster
    workers: tuple[WorkerProcess, ...]
    deployed: bool

    def function(self, name: str, **params: Any) -> Any:
        if self.deployed:
            return corral.function(f"pier.{name}", **params)
        own, _, method = name.partition(".")
        found = getattr(pier, own)
        return getattr(found(**params), method) if method else found

    def endpoint(self, name: str) -> str:
        return f"pier.{name}" if self.deployed else f"live.pier.{name}"

    def use(self) -> HttpBackend:
        made = HttpBackend(self.stack.client(), "default")
        backend.set_backend(made)
        return made


def deploy(stack: LocalCluster) -> None:
    made = HttpBackend(stack.client(), "default")
    for member in pier.app.members.values():
        made.corral.endpoints.deploy(made.request(member, "default", live=False))


@pytest.fixture(scope="package")
def one_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    # As a program imports it: the instance has it under its own name.
    assert importlib.import_module("calls.functions_for_tests") is pier
    # Nothing is killed here: what is late on a busy machine is not to be taken for lost.
    with local_cluster(tmp_path_factory.mktemp("one") / "home", lease_s=30.0) as made:
        worker = made.own_worker(slots=40, **GPUS)
        deploy(made)
        yield Scene(made, (worker,), False)


@pytest.fixture(scope="package")
def three_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("three")
    # As if they were other machines: nothing is handed over.
    with local_cluster(folder / "home", lease_s=8.0, CORRAL_HAND_OVER="off") as made:
        workers = tuple(made.other_worker(folder / name, name, slots=14) for name in ("a", "b", "c"))
        deploy(made)
        yield Scene(made, workers, True)


@pytest.fixture(params=["live", "deployed", "three hosts"], scope="package")
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    if request.param == "three hosts":
        found: Scene = request.getfixturevalue("three_hosts")
    else:
        one: Scene = request.getfixturevalue("one_host")
        found = Scene(one.stack, one.workers, request.param == "deployed")
    found.use()
    yield found
    backend.set_backend(None)
