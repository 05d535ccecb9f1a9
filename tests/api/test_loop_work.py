"""What is large is read, built and rendered outside the event loop, which everybody waits for."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from support.live_server import (
    FakeHost,
    Json,
    LiveServer,
    error_of,
    fresh,
    named,
    new_host,
    record,
    serve,
    sha,
)

from corral.domain.artifacts import listing_digest
from corral.domain.paths import check_paths
from corral.server.new_runs import new_run
from corral.server.pages import filled
from corral.server.routes.endpoints import _new_version
from corral.server.views import run_detail
from corral.wire.artifacts import _plain_mode
from corral.wire.runs import SubmitRequest
from corral.wire.spec.run_file import RunSpec

WATCHED: dict[Any, str] = {
    function.__code__: function.__name__
    for function in (
        *(new_run, filled, run_detail, RunSpec.checked, _new_version),
        *(_plain_mode, listing_digest, check_paths),
    )
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """With bodies as large as a server takes them by default."""
    with serve(tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture
def worker(live: LiveServer) -> FakeHost:
    return new_host(live)


@contextmanager
def on_the_loop(live: LiveServer) -> Iterator[Counter[str]]:
    """How often each of the watched functions is called by the event loop's own thread."""
    seen: Counter[str] = Counter()

    def watch(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code in WATCHED:
            seen[WATCHED[frame.f_code]] += 1

    in_loop(live, lambda: sys.setprofile(watch))
    try:
        yield seen
    finally:
        in_loop(live, lambda: sys.setprofile(None))


def in_loop(live: LiveServer, act: Callable[[], None]) -> None:
    live.write(lambda tx: act())


def runs(count: int, **more: object) -> list[Json]:
    return [{"argv": ["true"], "resources": {"hosts": ["nobody"]}, "seed": n, **more} for n in range(count)]


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8"])
@pytest.mark.parametrize("dry", [True, False])
def test_runs_of_a_large_body_are_built_outside_the_loop(kind: str, dry: bool, live: LiveServer) -> None:
    """ATK-30: each took 0.45 s of it, stored or not; what is small is not sent to a thread."""
    headers = {"Content-Type": kind}
    for params, built in (({}, 3), ({"a": "x" * 30_000}, 0)):
        body = {"request_id": fresh(), "runs": runs(3, params=params), "group": "g", "dry_run": dry}
        with on_the_loop(live) as seen:
            live.ok("POST", "/v1/runs", body, headers=headers)
        assert seen["new_run"] == built
        assert seen["checked"] == built


def test_what_is_deployed_scheduled_or_declared_is_built_outside_the_loop(live: LiveServer) -> None:
    """ATK-30."""
    name = named("app")
    code = {"kind": "service", "service": {"entry": {}}, "resources": {"hosts": ["nobody"]}}
    with on_the_loop(live) as seen:
        live.ok("POST", "/v1/endpoints", {"name": name, "spec": code, "functions": {"f": {}}})
        live.ok("POST", "/v1/schedules", {"name": name, "schedule": {"cron": "0 0 1 1 *"}, "runs": runs(2)})
        live.ok("POST", f"/v1/schedules/{name}/run", {"request_id": fresh()})
    assert (seen["new_run"], seen["_new_version"]) == (0, 0)


def test_answers_that_may_be_large_are_rendered_outside_the_loop(live: LiveServer, worker: FakeHost) -> None:
    """ATK-27, ATK-31: a page of logs, and one of runs with their params, were rendered on it."""
    lease = worker.run(params={"a": "x"})
    lease.ok("POST", "events", {"seq": 1, "logs": [{"at": 1.0, "stream": "stdout", "text": "hello"}]})
    lease.ok("POST", "finish", {})
    run = f"/v1/runs/{lease.run_id}"
    paths = ["/v1/runs?params=true", run, f"{run}/logs", f"{run}/metrics", f"{run}/events", "/v1/events"]
    paths += ["/v1/artifacts", "/v1/calls", "/v1/endpoints", "/v1/schedules", "/v1/manifests", "/v1/hosts"]
    with on_the_loop(live) as seen:
        for path in paths:
            live.ok("GET", path)
    assert seen["filled"] == seen["run_detail"] == 0


def test_the_watch_sees_what_the_loop_does(live: LiveServer) -> None:
    body = {"request_id": fresh(), "runs": runs(1)}
    with on_the_loop(live) as seen:
        in_loop(live, lambda: [new_run(one) for one in SubmitRequest.model_validate(body).runs].clear())
    assert (seen["new_run"], seen["checked"]) == (1, 1)


def test_a_large_body_is_validated_outside_the_loop(live: LiveServer) -> None:
    """ATK7-05: 200,000 files of one artifact took seconds of it, and more of a volume; wrong ones too."""
    project = named("p")
    data = b"x"
    live.call("PUT", f"/v1/projects/{project}/blobs/{sha(data)}", content=data)
    files = [record(f"f{number}", data) for number in range(1500)]
    path = f"/v1/projects/{project}"
    with on_the_loop(live) as seen:
        live.ok("POST", f"{path}/artifacts", {"kind": "code", "files": files})
        live.ok("POST", f"{path}/volumes/v/versions", {"base": 0, "files": files})
        wrong = live.call("POST", f"{path}/artifacts", {"kind": "code", "files": [*files, {"path": "x"}]})
    assert (seen["_plain_mode"], seen["listing_digest"], seen["check_paths"]) == (0, 0, 0)
    refused = error_of(wrong, 422, "invalid_input")
    assert "files.1500.sha256" in refused.message
    error_of(live.call("POST", f"{path}/artifacts", content=b"{" * 70_000), 422, "invalid_input")
