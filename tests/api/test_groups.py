"""Which run `latest` is, which group a name means, and what came out of a group: over the real API."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.live_server import FakeHost, Json, LiveServer, error_of, fresh, named
from support.waiting import eventually

from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.domain.errors import NotFound
from corral.wire.runs import RunSelection


def submit(live: LiveServer, name: str, *specs: Json, project: str = "default") -> tuple[str, list[str]]:
    run = {"argv": ["true"], "name": name, "project": project, "resources": {"hosts": ["nobody"]}}
    runs = [{**run, **spec} for spec in specs]
    answer = live.ok("POST", "/v1/runs", {"request_id": fresh(), "runs": runs, "group": name})
    return answer["group_id"], answer["ids"]


def test_latest_is_the_newest_that_the_caller_submitted(live: LiveServer, worker: FakeHost) -> None:
    """NEW-06: not somebody else's, and no instance of a function."""
    mine, other = (str(live.token("user", named("user"))["token"]) for _ in range(2))
    own = live.submit(token=mine)
    live.submit(token=other)
    app = named("app")
    spec = {"kind": "service", "service": {"entry": {}}, "resources": {"hosts": ["nobody"]}}
    body = {"name": app, "spec": spec, "functions": {"f": {}}, "scaling": {"min": 1}}
    live.ok("POST", "/v1/endpoints", body, token=mine)
    eventually(lambda: live.ok("GET", "/v1/runs", params={"name": app})["items"], "its instance")

    with Corral(live.url, mine) as corral, Corral(live.url, str(live.token("user")["token"])) as nobody:
        assert corral.runs.get("latest").id == own
        assert corral.runs.cancel("latest").id == own
        with pytest.raises(NotFound, match="you have submitted no run yet"):
            nobody.runs.get("latest")
    live.ok("DELETE", f"/v1/endpoints/default/{app}")


def test_a_name_means_the_newest_group_and_an_id_that_group_alone(live: LiveServer) -> None:
    """NEW-07: `cancel --group` ended runs of an older group too."""
    name = named("grid")
    old, old_runs = submit(live, name, {"seed": 1}, {"seed": 2})
    new, new_runs = submit(live, name, {"seed": 1}, {"seed": 2})
    with Corral(live.url, live.operator) as corral:
        assert [group.id for group in corral.groups.named(name)] == [new, old]
        assert [group.id for group in corral.groups.named(old)] == [old]
        assert {run.id for run in corral.runs.iter(RunQuery(group=name))} == set(new_runs)
        assert {run.id for run in corral.runs.iter(RunQuery(group=old))} == set(old_runs)

        done = corral.runs.cancel_all(RunSelection(group=name))

        assert {one.id for one in done.done} == set(new_runs)
        assert {corral.runs.get(run).state for run in old_runs} == {"queued"}


def test_a_name_that_two_projects_have_is_asked_about(live: LiveServer) -> None:
    """NEW-07."""
    name = named("grid")
    submit(live, name, {}, project="one")
    group_id, runs = submit(live, name, {}, project="two")

    body = {"which": {"group": name}, "dry_run": True}
    assert group_id in error_of(live.call("POST", "/v1/runs/cancel", body), 409, "ambiguous").message
    found = live.ok("GET", "/v1/runs", params={"group": name, "project": "two"})["items"]
    assert [run["id"] for run in found] == runs


def test_a_list_says_what_its_runs_were_given_where_it_is_asked(live: LiveServer) -> None:
    """NEW-05."""
    name = named("given")
    submit(live, name, {"params": {"lr": 0.1, "on": True}}, {"params": {"lr": 1e-4, "on": True}})

    with Corral(live.url, live.operator) as corral:
        found = [run.params for run in corral.runs.iter(RunQuery(group=name, with_params=True))]
        assert [run.params for run in corral.runs.iter(RunQuery(group=name))] == [None, None]

    assert sorted(str(params) for params in found) == [
        *("{'lr': 0.0001, 'on': True}", "{'lr': 0.1, 'on': True}")
    ]


def test_a_run_says_its_command_with_everything_filled_in(live: LiveServer) -> None:
    """NEW-26."""
    run_id = live.submit(argv=["go", "{params.lr}", "{seed}", "{x}"], params={"lr": 0.1}, seed=3)

    assert live.ok("GET", f"/v1/runs/{run_id}")["command"] == ["go", "0.1", "3", "{x}"]


def test_results_are_params_by_seeds(live: LiveServer, worker: FakeHost) -> None:
    """NEW-05: with mean and spread over the seeds, and the best marked."""
    name = named("sweep")
    loss = {}
    specs = []
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            specs.append({"params": {"lr": lr}, "seed": seed, "resources": {"hosts": [worker.name]}})
    group_id, runs = submit(live, name, *specs)
    for run_id, value in zip(runs, (1.0, 2.0, 0.5, 0.7), strict=True):
        loss[run_id] = value
    for _ in runs:
        lease = worker.claim()
        lease.ok("POST", "finish", {"metrics": {"loss": loss[lease.run_id]}, "ran_s": 1})

    with Corral(live.url, live.operator) as corral:
        found = corral.groups.results(name)

    assert (found.group_id, found.swept, found.better) == (group_id, ["lr"], {"loss": "min"})
    assert [variant.params for variant in found.variants] == [{"lr": 0.1}, {"lr": 0.2}]
    first, second = (variant.metrics["loss"] for variant in found.variants)
    assert (first.mean, first.count, first.best) == (1.5, 2, False)
    assert (round(second.mean, 6), second.best) == (0.6, True)
    assert [run.run_id for run in found.variants[1].runs] == runs[2:]


def test_the_seeds_of_a_group_run_at_once_where_there_is_room(live: LiveServer, worker: FakeHost) -> None:
    """MT-D42: on the slots that are free, of one host or of several."""
    seeds = [{"seed": seed, "resources": {"hosts": [worker.name]}} for seed in (1, 2, 3)]
    _, runs = submit(live, named("seeds"), *seeds)

    answer = live.ok("POST", "/v1/claims", worker.ask(max_leases=3), token=worker.token)

    assert {lease["run_id"] for lease in answer["leases"]} == set(runs)
    assert {live.ok("GET", f"/v1/runs/{run}")["state"] for run in runs} == {"running"}


def test_a_group_that_is_followed_ends_with_its_counts(
    live: LiveServer, worker: FakeHost, tmp_path: Path
) -> None:
    """They stood above the last lines that its runs had printed."""
    group, _ = submit(live, named("grid"), *({"resources": {"hosts": [worker.name]}} for _ in range(3)))
    for _ in range(3):
        lease = worker.claim()
        lines = [{"at": 1.0, "stream": "stdout", "text": f"line {n}"} for n in range(50)]
        lease.ok("POST", "events", {"seq": 1, "logs": lines})
        lease.ok("POST", "finish", {})
    env = {**os.environ, "CORRAL_HOME": str(tmp_path), "CORRAL_URL": live.url, "CORRAL_TOKEN": live.operator}

    command = [sys.executable, "-m", "corral", "logs", "--follow", "--group", group]
    said = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )

    lines_seen = said.stdout.splitlines()
    assert len(lines_seen) == 151
    assert lines_seen[-1] == "corral: 3 succeeded"


def test_the_runs_of_a_group_start_in_their_order(live: LiveServer, worker: FakeHost) -> None:
    """HOUR4-07: runs of one submission wait equally long, and began in random order."""
    here = {"argv": ["true"], "resources": {"hosts": [worker.name]}}
    _, ids = submit(live, "ordered", *({**here, "params": {"n": n}} for n in range(8)))
    assert [worker.claim().run_id for _ in ids] == ids
