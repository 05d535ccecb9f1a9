"""A host killed in the middle of calls, streams and maps; a caller killed in the middle of a map.

Everything ends once, and what had ended is not run again.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.local_cluster import WorkerProcess
from support.waiting import eventually

import corral
from calls.conftest import Scene
from corral.functions import backend
from corral.wire.calls import CallView


@pytest.fixture(scope="module", autouse=True)
def scene(three_hosts: Scene) -> Iterator[Scene]:
    three_hosts.use()
    yield three_hosts
    backend.set_backend(None)


def runs_of(path: Path) -> Counter[str]:
    return Counter(path.read_text().split("\n")[:-1]) if path.exists() else Counter()


def calls_of(scene: Scene, name: str) -> list[CallView]:
    return scene.stack.client().calls.page(endpoint=scene.endpoint(name), limit=1000).items


def kill_the_host_of(scene: Scene, call_id: str) -> WorkerProcess:
    """kill -9 of the worker that has the call now, with its instances; it comes back at once."""
    client = scene.stack.client()
    run = eventually(lambda: client.calls.get(call_id).run, "the call to be somewhere")
    host = client.runs.get(run).host
    worker = next(one for one in scene.workers if one.home.name == host)
    scene.stack.kill_worker(worker)
    scene.stack.start_worker(worker)
    return worker


def once(path: Path, lines: int) -> Callable[[], bool]:
    return lambda: sum(runs_of(path).values()) >= lines


def test_calls_spread_over_the_instances_and_a_long_one_keeps_its_own(scene: Scene, tmp_path: Path) -> None:
    """RF-D65: not all to one. RF-D33: a sync function that sleeps for longer than a lease loses none."""
    long = scene.function("work").spawn(str(tmp_path / "long"), "sleeper", 9.0)
    eventually(once(tmp_path / "long", 1), "it to sleep")
    calls = [scene.function("work").spawn(str(tmp_path / "log"), f"s-{n}", 0.1) for n in range(30)]

    assert [call.result(100) for call in calls] == [f"S-{n}" for n in range(30)]

    seen = {one.id: one for one in calls_of(scene, "work")}
    assert len({seen[call.id].run for call in calls}) > 1
    assert long.result(100) == "SLEEPER"
    client = scene.stack.client()
    assert (client.calls.get(long.id).attempt, client.calls.get(long.id).lost) == (1, 0)


def test_calls_whose_host_is_killed_end_once(scene: Scene, tmp_path: Path) -> None:
    """RF-D26, RF-D65: what had an outcome is not run again; only what the dead host had is."""
    log = tmp_path / "log"
    work = scene.function("work")
    names = [f"boat-{n}" for n in range(40)]
    # One lasts, so that it is under way when its host is killed, however busy this machine is.
    calls = [work.spawn(str(log), name, 5.0 if name == "boat-9" else 0.1) for name in names]
    eventually(lambda: "boat-9" in runs_of(log), "the long one to have begun")

    kill_the_host_of(scene, calls[9].id)

    assert [call.result(100) for call in calls] == [name.upper() for name in names]
    ran = runs_of(log)
    seen = {one.id: one for one in calls_of(scene, "work")}
    for name, call in zip(names, calls, strict=True):
        assert seen[call.id].state == "succeeded"
        assert ran[name] <= 1 + seen[call.id].lost, f"{name} was run again although it was never lost"
    assert sum(one.lost for one in seen.values()) >= 1, "the kill came too late to prove anything"


def test_a_stream_goes_on_on_another_host_with_no_chunk_lost_or_doubled(scene: Scene, tmp_path: Path) -> None:
    log = tmp_path / "log"
    given: list[int] = []
    stream = scene.function("count").stream(str(log), 40, 0.05)
    for _ in range(5):
        given.append(next(stream))
    (call,) = eventually(
        lambda: [one for one in calls_of(scene, "count") if one.state == "assigned"], "it to run"
    )

    kill_the_host_of(scene, call.id)
    given.extend(stream)

    assert given == [n * n for n in range(40)]
    assert runs_of(log) == {"count 40": 2}


def test_a_map_whose_host_is_killed_gives_everything_in_order(scene: Scene, tmp_path: Path) -> None:
    log = tmp_path / "log"
    names = [f"m-{n}" for n in range(100)]
    found: list[str] = []
    mapped = threading.Thread(
        target=lambda: found.extend(scene.function("work").map([str(log)] * 100, names, takes_s=0.03))
    )
    mapped.start()
    eventually(once(log, 20), "a fifth of it")

    ended = [one for one in calls_of(scene, "work") if one.ended_at is not None]
    kill_the_host_of(scene, max(ended, key=lambda one: one.ended_at or 0).id)
    mapped.join(120)

    assert found == [name.upper() for name in names]
    assert set(runs_of(log)) == set(names)


CALLER = """
import sys
import corral
from corral.functions import backend
from corral.functions.http_backend import HttpBackend
from corral.client.corral import Corral
backend.set_backend(HttpBackend(Corral(sys.argv[1], sys.argv[2]), "default"))
names = [f"r-{n}" for n in range(200)]
work = corral.function("pier.work")
for one in work.map([sys.argv[3]] * 200, names, takes_s=0.02, resume=sys.argv[4]):
    print(one, flush=True)
"""


def test_a_map_of_200_goes_on_after_its_caller_was_killed(scene: Scene, tmp_path: Path) -> None:
    """The same map again asks for what it has not got, and nothing is run a second time."""
    log = tmp_path / "log"
    argv = [sys.executable, "-c", CALLER, scene.stack.url, scene.stack.token, str(log), tmp_path.name]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        first = [caller.stdout.readline() for _ in range(20)]
        caller.kill()

    again = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout

    lines = again.splitlines()
    assert lines == [f"R-{n}" for n in range(200)]
    assert [one.strip() for one in first] == lines[:20]
    assert runs_of(log) == {f"r-{n}": 1 for n in range(200)}


def test_a_caller_that_vanishes_leaves_its_call_to_be_fetched(scene: Scene, tmp_path: Path) -> None:
    """RF-D26: of whoever goes away while waiting, the result is kept and can be had by the call's id."""
    log = tmp_path / "log"
    code = (
        "import sys, corral\nfrom corral.functions import backend\nfrom corral.client.corral import Corral\n"
        "from corral.functions.http_backend import HttpBackend\n"
        "backend.set_backend(HttpBackend(Corral(sys.argv[1], sys.argv[2]), 'default'))\n"
        "corral.function('pier.work').remote(sys.argv[3], 'orphan', 0.5)\n"
    )
    argv = [sys.executable, "-c", code, scene.stack.url, scene.stack.token, str(log)]
    with subprocess.Popen(argv) as caller:
        eventually(once(log, 1), "it to be run")
        caller.kill()

    newest = calls_of(scene, "work")[0]

    assert corral.Call.from_id(newest.id).result(60) == "ORPHAN"
    assert runs_of(log) == {"orphan": 1}
