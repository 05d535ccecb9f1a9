"""Networks: through a relay everywhere, and by namespaces where root allows it."""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import namespaces
from fleet.fleet import Fleet, fleet
from fleet.lines import Network
from fleet.relay import RelayNetwork

SEED = int(os.environ["CORRAL_FLEET_SEED"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # Seconds to a minute each on an idle machine; a dozen processes take long on a busy one.
            item.add_marker(pytest.mark.timeout(600))
            if sys.platform != "linux":
                item.add_marker(pytest.mark.skip(reason="signals and /proc as Linux has them"))


@functools.cache
def _why_no_namespaces() -> str | None:
    return namespaces.why_not()


def relay_network() -> Network:
    return RelayNetwork(SEED)


def namespace_network() -> Network:
    if why := _why_no_namespaces():
        pytest.skip(why)
    return namespaces.NamespaceNetwork()


def best_network() -> Network:
    return relay_network() if _why_no_namespaces() else namespace_network()


@pytest.fixture
def dice() -> random.Random:
    return random.Random(SEED)


@pytest.fixture(params=[relay_network, namespace_network], ids=["relay", "namespaces"])
def network(request: pytest.FixtureRequest) -> Network:
    made: Network = request.param()
    return made


@pytest.fixture
def a_fleet(tmp_path: Path, network: Network) -> Iterator[Fleet]:
    """On each kind of network."""
    with fleet(tmp_path, network) as made:
        yield made


@pytest.fixture
def far_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """On the best network that can be had, for what takes long."""
    with fleet(tmp_path, best_network()) as made:
        yield made


@pytest.fixture
def secure_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """With TLS and enrolled hosts also where there are no namespaces."""
    with fleet(tmp_path, relay_network(), CORRAL_TLS="on") as made:
        yield made


@pytest.fixture
def near_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """For what no network has to do with."""
    with fleet(tmp_path, relay_network()) as made:
        yield made
