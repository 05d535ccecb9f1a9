"""What clients learn of clusters and of what runs there, and what one that does not answer holds up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.live_server import Json, LiveServer, fresh, named, serve
from support.waiting import eventually

from corral.core.placements.cluster_calls import MOST_ASKED

# Slurm's commands, as far as a launch needs them: nodes, an empty queue, and the number of a job.
COMMANDS = "case $(cat) in sinfo*) echo 'n1|64|64000||' ;; *launch*) echo 7 ;; *) echo ;; esac"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(tmp_path_factory.mktemp("home")) as server:
        yield server


def slurm(live: LiveServer, *prefix: str) -> str:
    """An executor whose commands are these."""
    options = {"folder": "/nowhere", "command_prefix": prefix, "url": live.url, "timeout_s": 600}
    made = live.ok("POST", "/v1/executors", {"name": named("slurm"), "kind": "slurm", "options": options})
    return str(made["name"])


def on(executor: str, project: str, name: str = "x") -> Json:
    return {"argv": ["true"], "project": project, "name": name, "placement": {"executors": [executor]}}


def test_a_cluster_that_does_not_answer_holds_up_nobody_else(live: LiveServer, tmp_path: Path) -> None:
    """ATK5-01: whoever may submit could have all threads wait for it, and with them every log and upload."""
    silent = tmp_path / "silent"
    os.mkfifo(silent)
    executor = slurm(live, "cat", str(silent))
    user = live.token("user", project="alpha")["token"]
    body = {"runs": [on(executor, "alpha")], "dry_run": True}

    def submit() -> None:
        live.ok("POST", "/v1/runs", {**body, "request_id": fresh()}, token=user)

    waiting = [threading.Thread(target=submit) for _ in range(2 * MOST_ASKED)]
    for one in waiting:
        one.start()
    eventually(lambda: len(listeners(silent)) >= MOST_ASKED, "clients to wait for the cluster")

    assert live.call("GET", "/v1/health", token=None).status_code == 200
    submit()
    # And the loop that tends placements.
    assert len(listeners(silent)) <= MOST_ASKED + 1

    # From now on it answers: with nothing.
    silent.unlink()
    silent.touch()
    for command in listeners(silent):
        command.kill()
    for one in waiting:
        one.join()


def listeners(pipe: Path) -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if str(pipe) in " ".join(child.cmdline())]


def test_what_runs_for_one_project_is_told_to_no_other(live: LiveServer) -> None:
    """ATK5-03: neither by the list of hosts, nor by why a run waits."""
    executor = slurm(live, "sh", "-c", COMMANDS)
    beta = live.token("user", project="beta")["token"]
    body = {"request_id": fresh(), "runs": [on(executor, "beta", "secret-plan")]}
    run_id = live.ok("POST", "/v1/runs", body, token=beta)["ids"][0]
    host = f"run-{run_id.removeprefix('r-')}-0"
    eventually(lambda: host in live.call("GET", "/v1/hosts?limit=1000").text, "its worker to be known")
    other = live.submit(project="alpha")

    for scope in ("user", "read"):
        alpha = live.token(scope, project="alpha")["token"]
        for path in ("hosts?limit=1000", f"hosts/{host}", f"hosts/{host}/samples", f"runs/{other}/why"):
            answer = live.call("GET", f"/v1/{path}", token=alpha).text
            assert "secret-plan" not in answer
            assert f'"{host}"' not in answer
    assert live.call("GET", f"/v1/hosts/{host}", token=beta).status_code == 200
    live.ok("POST", f"/v1/runs/{run_id}/cancel", {}, token=beta)


def test_the_options_of_an_executor_are_for_operators(live: LiveServer) -> None:
    """ATK5-05: what opens a cluster may stand in them."""
    options = {"url": live.url, "environ": {"RAY_AUTH_TOKEN": "opens-the-cluster"}}
    name = named("ray")
    live.ok("POST", "/v1/executors", {"name": name, "kind": "ray", "options": options})
    for scope in ("user", "read"):
        token = live.token(scope)["token"]
        for path in ("/v1/executors", f"/v1/executors/{name}"):
            answer = live.call("GET", path, token=token)
            assert name in answer.text
            assert "opens-the-cluster" not in answer.text
    assert "opens-the-cluster" in live.call("GET", f"/v1/executors/{name}").text
