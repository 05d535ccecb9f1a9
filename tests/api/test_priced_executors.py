"""Prices of executors over HTTP: what a placement costs, and why its executor was chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.live_server import LiveServer, named
from support.waiting import eventually

from corral.domain.ids import RunId
from corral.store.transaction import Tx


def test_a_placement_says_its_price_and_why_it_is_there(live: LiveServer, tmp_path: Path) -> None:
    dear, cheap = named("dear"), named("cheap")
    for name, price in ((dear, 90.0), (cheap, 0.5)):
        options = {
            "url": live.url,
            "folder": str(tmp_path),
            "command_prefix": ["false"],
            "price_per_hour": price,
        }
        live.ok("POST", "/v1/executors", {"name": name, "kind": "slurm", "options": options})
    run = live.submit(resources={}, placement={"executors": "cheapest"})
    path = f"/v1/runs/{run}/placements"
    eventually(lambda: live.ok("GET", path)["items"], "the intent")

    [placement] = live.ok("GET", path)["items"]
    shown = live.ok("GET", f"/v1/runs/{run}")

    # Neither answers: all is asked that is known, and the cheaper one is taken.
    assert (placement["executor"], placement["price_per_hour"], placement["cost"]) == (cheap, 0.5, 0.0)
    silent = "which does not answer now"
    expected = f"the cheapest: {cheap} $0.50/h, {silent}; {dear} $90.00/h, {silent}"
    assert placement["chosen"].startswith(expected)
    assert shown["spec"]["placement"]["executors"] == ["cheapest"]
    assert live.ok("GET", f"/v1/executors/{cheap}")["cost"] is None
    live.ok("POST", f"/v1/runs/{run}/cancel", {})
    for name in (dear, cheap):
        live.ok("DELETE", f"/v1/executors/{name}", params={"force": "true"})


def test_what_an_executor_cost_is_told_to_those_who_see_all_projects(
    live: LiveServer, tmp_path: Path
) -> None:
    """ATK6-04: a token of one project was told what all projects had spent on an executor."""
    name = named("far")
    options = {"url": live.url, "folder": str(tmp_path), "command_prefix": ["false"], "price_per_hour": 9.0}
    live.ok("POST", "/v1/executors", {"name": name, "kind": "slurm", "options": options})
    run = live.submit(project="alpha", resources={}, placement={"executors": [name]})
    path = f"/v1/runs/{run}/placements"
    eventually(lambda: live.ok("GET", path)["items"], "the intent")

    def held_for_an_hour(tx: Tx) -> None:
        (placement,) = tx.placements.of_run(RunId(run))
        tx.placements.save(placement._replace(held_at=live.clock.now() - 3600))

    live.write(held_for_an_hour)

    def cost(token: str) -> float | None:
        found: float | None = live.ok("GET", f"/v1/executors/{name}", token=token)["cost"]
        return found

    assert cost(live.token("read")["token"]) == pytest.approx(9.0, rel=0.1)
    assert cost(live.token("read", project="beta")["token"]) is None
    live.ok("POST", f"/v1/runs/{run}/cancel", {})
    live.ok("DELETE", f"/v1/executors/{name}", params={"force": "true"})


def test_why_says_that_what_executors_bring_up_fills_the_quota(live: LiveServer, tmp_path: Path) -> None:
    """ATK7-03: the quota counted nothing that had not begun; `why` said that it was asked next."""
    name, project = named("hpc"), named("p")
    options = {"url": live.url, "folder": str(tmp_path), "command_prefix": ["false"]}
    live.ok("POST", "/v1/executors", {"name": name, "kind": "slurm", "options": options})
    live.ok("PUT", f"/v1/quotas/{project}", {"max_running": 1})
    runs = [
        live.submit(project=project, resources={}, placement={"executors": [name]}, argv=["echo", word])
        for word in ("one", "two")
    ]

    def placed() -> list[str]:
        return [run for run in runs if live.ok("GET", f"/v1/runs/{run}/placements")["items"]]

    eventually(placed, "one of them to be placed")
    [waits] = set(runs) - set(placed())
    told = live.ok("GET", f"/v1/runs/{waits}/why")["summary"]
    assert f"project {project} has 1 run running, of 1 (max_running)" in told
    for run in runs:
        live.ok("POST", f"/v1/runs/{run}/cancel", {})
    live.ok("DELETE", f"/v1/executors/{name}", params={"force": "true"})
