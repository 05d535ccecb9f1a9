"""Lists of runs: what people see of them, and what programs get."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support import forked
from support.fake_instance import deploy
from support.live_server import FakeHost, LiveServer, error_of, fresh, named
from support.waiting import eventually

from corral.client.corral import Corral
from corral.client.runs import RunQuery

CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key}


@pytest.fixture
def name(live: LiveServer, worker: FakeHost) -> str:
    """That of a run, of a function with two instances, and of another run."""
    name, scaling = named("app"), {"min": 2, "max": 2}
    live.submit(name=name)
    endpoint = deploy(live, worker, name=name, resources={"hosts": ["nowhere"]}, scaling=scaling)
    eventually(lambda: len(endpoint.runs()) == 3, "the instances")
    live.submit(name=name)
    return name


def corral(live: LiveServer, home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    server = {"CORRAL_HOME": str(home), "CORRAL_URL": live.url, "CORRAL_TOKEN": live.operator}
    return forked.run(arguments, {**CLEAN, **server, **more})


def completed(live: LiveServer, home: Path, words: str) -> list[str]:
    """What a shell offers for the last of the words."""
    count = str(len(words.split()) - 1)
    asked = {"_CORRAL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": count}
    return corral(live, home, **asked).stdout.split()


def test_a_list_for_people_has_their_runs_and_says_what_is_hidden(
    name: str, live: LiveServer, tmp_path: Path
) -> None:
    """`corral ls` showed the instances of functions among the runs that somebody had submitted."""
    short = corral(live, tmp_path, "ls", "--name", name)
    whole = corral(live, tmp_path, "ls", "--name", name, "--instances")
    plain, kinds = (
        [run["kind"] for run in json.loads(corral(live, tmp_path, "ls", "--name", name, *more).stdout)]
        for more in (["--json"], ["--json", "--instances"])
    )

    assert len(short.stdout.splitlines()) == 3
    assert short.stderr == "(2 instances of functions are not shown; --instances shows them)\n"
    assert len(whole.stdout.splitlines()) == 5
    assert whole.stderr == ""
    assert plain == ["command", "command"]
    assert sorted(kinds) == ["command", "command", "service", "service"]


def test_a_program_that_asks_as_before_gets_all_runs(name: str, live: LiveServer) -> None:
    """What an older client was given stays as it was."""
    page = live.ok("GET", "/v1/runs", params={"name": name})

    assert sorted(run["kind"] for run in page["items"]) == ["command", "command", "service", "service"]
    assert page["hidden"] is None


def test_each_page_counts_what_is_hidden_among_its_runs(name: str, live: LiveServer) -> None:
    """All pages together count each instance once, wherever it stands between the runs."""
    with Corral(live.url, live.operator) as client:
        pages = list(client.runs.pages(RunQuery(name=name, instances=False), page_size=1))

    assert [len(page.items) for page in pages] == [1, 1, 0]
    assert [page.hidden for page in pages] == [0, 2, 0]


def test_the_shell_completes_runs_however_old_they_are(live: LiveServer, tmp_path: Path) -> None:
    """Only the newest fifty were looked at."""
    oldest = live.submit(name="oldest")
    run = {"argv": ["true"], "resources": {"hosts": ["nobody"]}}
    live.ok("POST", "/v1/runs", {"request_id": fresh(), "runs": [run] * 60, "group": named("g")})

    assert completed(live, tmp_path, f"corral show {oldest[:7]}") == [oldest]
    assert len(completed(live, tmp_path, "corral show r-")) == 50


def test_runs_are_found_by_how_their_ids_begin_and_by_nobody_else(live: LiveServer) -> None:
    """What narrows a list down to a project still does."""
    run = live.submit(project="mine")
    found = live.ok("GET", "/v1/runs", params={"prefix": run[:8]})["items"]
    stranger = live.token("read", project="theirs")["token"]

    assert run in [one["id"] for one in found]
    assert all(one["id"].startswith(run[:8]) for one in found)
    assert live.ok("GET", "/v1/runs", params={"prefix": run[:8]}, token=stranger)["items"] == []
    said = error_of(live.call("GET", "/v1/runs", params={"prefix": "r-é"}), 422, "invalid_input")
    assert said.message == "the request is not valid: `prefix` is not the beginning of a run's id, as r-3gj5"


@pytest.mark.parametrize("command", ["fn show", "fn stop", "fn run", "fn token", "calls ls --endpoint"])
def test_the_shell_completes_endpoints(command: str, name: str, live: LiveServer, tmp_path: Path) -> None:
    """Nothing was offered for them."""
    assert name in completed(live, tmp_path, f"corral {command} {name[:3]}")
