"""Functions whose instances a cluster brings up: they scale out to it, and back to nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support import slurm_cluster
from support.local_cluster import LocalCluster, local_cluster
from support.waiting import eventually

import corral
from acceptance.placed_functions_for_tests import app
from acceptance.test_executors import PLACES, Place, children
from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.domain.errors import InvalidInput
from corral.functions import backend
from corral.functions.http_backend import HttpBackend
from corral.wire.endpoints import EndpointView
from corral.wire.executors import ExecutorRequest

WORKER = [sys.executable, "-m", "corral.worker.placed"]


@pytest.fixture(scope="module", params=["slurm", "ray"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with PLACES[request.param](tmp_path_factory.mktemp("executors")) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, place: Place) -> Iterator[LocalCluster]:
    """A server without hosts of its own, on which everything is deployed for the cluster."""
    with local_cluster(tmp_path_factory.mktemp("server") / "home", lease_s=5.0) as made:
        # The next server listens where this one did, as one that is installed does.
        made.port = int(made.url.rpartition(":")[2])
        options = {**place.options, "url": made.url, "command": WORKER, "price_per_hour": 3600.0}
        made.client().executors.add(ExecutorRequest(name=place.name, kind=place.kind, options=options))
        for name in app.members:
            deploy(made.client(), name, executors=(place.name,))
        yield made


@pytest.fixture
def server(cluster: LocalCluster) -> Iterator[Corral]:
    made = cluster.client()
    backend.set_backend(HttpBackend(made, "default"))
    yield made
    backend.set_backend(None)


def deploy(server: Corral, name: str, *, cores: int = 1, executors: tuple[str, ...]) -> EndpointView:
    member = app.members[name]
    resources = replace(member.settings.resources, cores=cores)
    settings = replace(member.settings, executors=executors, resources=resources)
    request = HttpBackend(server, "default").request(
        replace(member, settings=settings), "default", live=False
    )
    return server.endpoints.deploy(request)


def endpoint(server: Corral, name: str) -> EndpointView:
    return server.endpoints.get("default", f"yard.{name}")


def runs_of(server: Corral, name: str) -> list[str]:
    return [run.id for run in server.runs.iter(RunQuery(name=f"yard.{name}"))]


def nothing_is_left(server: Corral, name: str, place: Place) -> None:
    """No instance, no open placement, no process, and no job of the cluster's."""
    eventually(lambda: not endpoint(server, name).instances, "the instances to end")
    runs = runs_of(server, name)
    assert runs
    eventually(
        lambda: all(one.state == "closed" for run in runs for one in server.executors.placements(run)),
        "what was brought up to be gone",
    )
    eventually(lambda: not any(children(run) for run in runs), "the processes to be gone")
    if place.kind == "slurm":
        slurm = slurm_cluster.slurm_cluster()
        eventually(lambda: not slurm.run("squeue", "--noheader").strip(), "an empty queue")


def test_a_function_scales_out_to_a_cluster_and_back_to_nothing(
    server: Corral, place: Place, tmp_path: Path
) -> None:
    """Two instances run at a time, each brought up by the executor; without calls nothing is left,
    and what was held is paid for."""
    meet = corral.function("yard.meet")
    calls = [meet.spawn(str(tmp_path), me, other) for me, other in (("a", "b"), ("b", "a"))]

    def both_ready() -> list[str | None]:
        found = endpoint(server, "meet").standings
        return [one.executor for one in found if one.ready and one.state == "running" and one.host]

    eventually(lambda: both_ready() == [place.name] * 2, lambda: f"{endpoint(server, 'meet').standings}")
    assert len({call.result() for call in calls}) == 2
    assert {len(server.executors.placements(run)) for run in runs_of(server, "meet")} == {1}
    nothing_is_left(server, "meet", place)
    for run in map(server.runs.get, runs_of(server, "meet")):
        [placement] = server.executors.placements(run.id)
        assert run.cost == placement.cost
        assert run.cost is not None
        assert run.cost >= (run.ended_at or 0.0) - (run.started_at or 0.0), "a dollar for each second"


@pytest.mark.parametrize("place", ["slurm"], indirect=True)
def test_a_call_whose_placed_worker_is_killed_is_tried_again(
    server: Corral, place: Place, tmp_path: Path
) -> None:
    call = corral.function("yard.second_time").spawn(str(tmp_path))
    eventually((tmp_path / "begun").exists, "the call to begin")
    [run_id] = runs_of(server, "second_time")

    worker = next(up for up in children(run_id)[0].parents() if _is_placed_worker(up))
    os.kill(worker.pid, signal.SIGKILL)

    assert call.result() == "done"
    assert len(runs_of(server, "second_time")) == 2
    nothing_is_left(server, "second_time", place)


def _is_placed_worker(process: psutil.Process) -> bool:
    return process.cmdline() == WORKER


@pytest.mark.parametrize("place", ["slurm"], indirect=True)
def test_a_server_that_dies_while_an_instance_is_brought_up_makes_no_second_one(
    cluster: LocalCluster, server: Corral, place: Place, tmp_path: Path
) -> None:
    (tmp_path / "begun").touch()
    before = set(runs_of(server, "second_time"))
    call = corral.function("yard.second_time").spawn(str(tmp_path))
    eventually(lambda: {one.state for one in endpoint(server, "second_time").standings} == {"placing"}, "it")
    cluster.kill_server()
    cluster.start_server()

    assert call.result() == "done"
    [run_id] = set(runs_of(server, "second_time")) - before
    assert len(server.executors.placements(run_id)) == 1
    nothing_is_left(server, "second_time", place)


def test_stopping_a_function_takes_away_what_is_still_brought_up(server: Corral, place: Place) -> None:
    """`fn stop` with an instance that is always kept: also where no worker has come yet."""
    kept = endpoint(server, "meet").scaling.model_copy(update={"min": 1})
    server.endpoints.scale("default", "yard.meet", kept)
    eventually(lambda: endpoint(server, "meet").standings, "an instance to be made")
    server.endpoints.stop("default", "yard.meet")
    nothing_is_left(server, "meet", place)


def test_what_no_executor_could_ever_hold_is_refused_when_it_is_deployed(
    server: Corral, place: Place
) -> None:
    with pytest.raises(InvalidInput, match=f"executor {place.name}: .*(512|cores)"):
        deploy(server, "meet", cores=512, executors=(place.name,))
    with pytest.raises(InvalidInput, match=f"names elsewhere; there is {place.name}, fleet"):
        deploy(server, "meet", executors=("elsewhere",))
