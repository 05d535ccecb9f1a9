"""Instances are bounded: by their number, by idle time, and by which of them was used last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import eventually

import corral
from calls import functions_for_tests as pier
from calls.conftest import Scene
from corral.core.endpoints.scaling import SURE_AFTER_S
from corral.functions import backend
from corral.wire.endpoints import Scaling

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def scene(one_host: Scene) -> Iterator[Scene]:
    one_host.use()
    yield one_host
    backend.set_backend(None)


def test_where_there_is_no_room_the_one_used_least_recently_ends_in_good_order(
    tmp_path: Path,
) -> None:
    """RF-D05, RF-D15: of two that may be there, a third takes the place of the older, whose hook is run."""
    log = tmp_path / "log"
    first, second, third = (pier.Berth(number=n, log=str(log)) for n in (1, 2, 3))
    assert first.use.remote() == 1
    assert second.use.remote() == 2
    assert first.use.remote() == 1

    assert third.use.spawn().result(60) == 3

    assert log.read_text() == "left 2\n"
    assert second.use.spawn().result(60) == 2, "what ended comes back when it is called"


def test_an_instance_that_nobody_calls_ends_in_good_order(scene: Scene) -> None:
    """RF-D15: by age. Its minimum is kept warm before that, called or not."""
    client, name = scene.stack.client(), "pier.soon"
    before = client.endpoints.get("default", name).scaling
    client.endpoints.scale("default", name, Scaling(min=1, max=3, idle_s=1.0))
    eventually(lambda: client.endpoints.get("default", name).ready, "one to be kept")
    (kept,) = [one for one in client.runs.page().items if one.name == name and one.state == "running"]

    client.endpoints.scale("default", name, Scaling(min=0, max=3, idle_s=1.0))

    assert eventually(lambda: client.runs.get(kept.id).state == "succeeded", "it to end", within_s=90)
    client.endpoints.scale("default", name, before)


def test_an_instance_that_has_grown_too_large_is_replaced_in_good_order(tmp_path: Path) -> None:
    """RF-D15: by bytes. It may finish what it has, its hook is run, and the next call has another."""
    log = tmp_path / "log"
    hold = pier.Hold(log=str(log))
    first, had = hold.load.remote(1)
    assert (first, 2) == hold.load.remote(1)
    assert had == 1

    assert (first, 302) == hold.load.remote(300)

    eventually(lambda: log.exists() and log.read_text() == "left with 3\n", "it to leave")
    second, has = hold.load.spawn(1).result(60)
    assert (second != first, has) == (True, 1)


def test_an_idle_instance_is_told_so_when_its_time_is_over_not_when_it_asks_again(scene: Scene) -> None:
    client, name = scene.stack.client(), "pier.soon"
    before = client.endpoints.get("default", name).scaling
    client.endpoints.scale("default", name, Scaling(min=0, max=3, idle_s=2.0))
    scene.use()
    assert corral.function(name).remote(1) == 2
    (used,) = [one for one in client.runs.page().items if one.name == name and one.state == "running"]

    # It asks every twenty seconds.
    eventually(lambda: client.runs.get(used.id).state == "succeeded", "it to end", within_s=18)

    client.endpoints.scale("default", name, before)


def test_an_instance_that_no_host_has_taken_is_withdrawn_when_nobody_waits_for_it(scene: Scene) -> None:
    """It would take a place on a host from others one day, for nothing."""
    client = scene.stack.client()

    def instances() -> list[str]:
        return [one.state for one in client.runs.page().items if one.name == "live.crane.lift"]

    lift = corral.App("crane").function(hosts=["nobody"], name="lift")(lambda: None)
    first, second = lift.spawn(), lift.spawn()
    eventually(lambda: instances() == ["queued"], "an instance for it, which no host can take")

    first.cancel()
    time.sleep(SURE_AFTER_S + 1)
    assert instances() == ["queued"], "somebody waits for it still"
    second.cancel()

    eventually(lambda: instances() == ["cancelled"], "it to be withdrawn")
    lift.spawn()
    eventually(lambda: sorted(instances()) == ["cancelled", "queued"], "another for the next call")
