"""What one submission may name is bounded: it is looked up and written in a transaction that all wait for."""

from __future__ import annotations

from support.live_server import Json, LiveServer, error_of, fresh, named

from corral.core.runs.bounds import MOST_LINKS, MOST_NEEDS, names_too_much
from corral.core.runs.needs import RunNeeds
from corral.domain.ids import new_artifact_id


def runs(name: str, count: int, project: str, **more: object) -> list[Json]:
    run = {"argv": ["true"], "name": name, "project": project, "resources": {"hosts": ["nobody"]}, **more}
    return [{**run, "seed": seed} for seed in range(count)]


def ask(*parts: list[Json]) -> Json:
    return {"request_id": fresh(), "runs": [run for part in parts for run in part], "group": "g"}


def test_runs_that_wait_for_each_other_by_name_are_no_more_than_can_be_written(live: LiveServer) -> None:
    """ATK7-01: a thousand that wait for a thousand stopped the server for minutes, by 100 kB of a user's."""
    project, each = named("p"), int(MOST_LINKS**0.5) + 1
    body = ask(runs("first", each, project), runs("then", each, project, after=["first"]))

    refused = error_of(live.call("POST", "/v1/runs", body), 413, "too_large")

    assert str(each * each) in refused.message
    assert live.ok("GET", "/v1/runs", params={"project": project})["items"] == []
    few = ask(runs("first", 5, project), runs("then", 5, project, after=["first"]))
    assert len(live.ok("POST", "/v1/runs", few)["ids"]) == 10


def test_what_runs_read_is_looked_up_only_so_often() -> None:
    """ATK7-08: six thousand runs with 200 inputs each were a transaction of many seconds."""
    inputs = {f"i{number}": new_artifact_id() for number in range(250)}
    needs, most = RunNeeds(inputs=inputs), MOST_NEEDS // 250

    assert names_too_much(["a"] * most, [[]] * most, [needs] * most) is None
    refused = names_too_much(["a"] * (most + 1), [[]] * (most + 1), [needs] * (most + 1))
    assert refused is not None
    assert str(250 * (most + 1)) in refused.message


def test_an_error_says_no_more_than_can_be_read(live: LiveServer) -> None:
    """ATK7-08: five thousand runs with 64 secrets each, of which none was there, were an answer of 46 MB."""
    secrets = [f"S{number}" for number in range(64)]
    answer = live.call("POST", "/v1/runs", ask(runs("reads", 100, named("p"), secrets=secrets)))

    refused = error_of(answer, 422, "invalid_input")
    assert "and 6380 more" in refused.message
    assert len(refused.fields) == 100
    assert len(answer.content) < 64 << 10
