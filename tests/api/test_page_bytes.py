"""Lists whose items are large: no page is larger than a few megabytes, page after page tells everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from support.fake_instance import deploy, inline, outcome
from support.live_server import (
    FakeHost,
    Json,
    Lease,
    LiveServer,
    error_of,
    fresh,
    named,
    new_host,
    record,
    serve,
)

from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.server.pages import PAGE_BYTES
from corral.wire.logs import LogLine

# The largest item that any of these lists has.
LARGEST = 1 << 20
# JSON makes six characters of it.
WIDE = "\x01"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """With bodies as large as a server takes them by default."""
    with serve(tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture
def worker(live: LiveServer) -> FakeHost:
    return new_host(live)


def page_of(live: LiveServer, path: str, **params: str | int) -> Json:
    answer = live.call("GET", path, params=params)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) < PAGE_BYTES + LARGEST
    page: Json = answer.json()
    return page


def pages_of(live: LiveServer, path: str, cursor: str, **params: str | int) -> list[Json]:
    """All pages, until one has no `next`."""
    pages = [page_of(live, path, **params)]
    while pages[-1]["next"] is not None:
        pages.append(page_of(live, path, **params, **{cursor: pages[-1]["next"]}))
    return pages


def items_of(pages: list[Json]) -> list[Json]:
    assert len(pages) > 1
    return [item for page in pages for item in page["items"]]


@pytest.fixture(scope="module")
def chatty(live: LiveServer) -> Lease:
    """A run that ended, with thirty lines of output that take twelve megabytes."""
    lease = new_host(live).run()
    texts = [f"{n} {WIDE * 65_000}" for n in range(30)]
    lines = [{"at": 1.0, "stream": "stdout", "text": text} for text in texts]
    lease.ok("POST", "events", {"seq": 1, "logs": lines})
    lease.ok("POST", "finish", {})
    return lease


def numbers(lines: list[LogLine]) -> list[int]:
    return [int(line.text.partition(" ")[0]) for line in lines]


def test_a_page_of_long_lines_is_no_larger_than_any_other(chatty: Lease, live: LiveServer) -> None:
    """ATK-27: one page had 360 MB, and was rendered on the event loop."""
    path = f"/v1/runs/{chatty.run_id}/logs"
    pages = [page_of(live, path, limit=10_000)]
    while not pages[-1]["ended"]:
        pages.append(page_of(live, path, limit=10_000, cursor=pages[-1]["next"]))
    assert numbers([LogLine.model_validate(line) for line in items_of(pages)]) == list(range(30))
    assert page_of(live, path, cursor=pages[-1]["next"])["items"] == []


def test_a_client_reads_all_of_long_lines_or_their_end(chatty: Lease, live: LiveServer) -> None:
    """ATK-27."""
    with Corral(live.url, live.operator) as corral:
        assert numbers(list(corral.runs.iter_logs(chatty.run_id))) == list(range(30))
        assert numbers(list(corral.runs.iter_logs(chatty.run_id, tail=25))) == list(range(5, 30))


def test_a_stream_of_long_lines_goes_on_at_once(chatty: Lease, live: LiveServer) -> None:
    """ATK-27: a look at the run that has enough for now is not the last one."""
    headers = {"Authorization": f"Bearer {live.operator}"}
    where = f"{live.url}/v1/runs/{chatty.run_id}/logs?follow=true"
    text = httpx.get(where, headers=headers, timeout=60, trust_env=False).text
    events = [part.partition("\n")[0] for part in text.split("event: ")[1:]]
    assert [kind for kind in events if kind != "state"] == ["log"] * 30 + ["end"]
    assert "still here" not in text


def test_pages_of_metrics_with_long_names_are_bounded(live: LiveServer, worker: FakeHost) -> None:
    """ATK-27."""
    lease = worker.run()
    points = [{"at": 1.0, "name": WIDE * 128, "value": 1.0, "step": n} for n in range(8000)]
    lease.ok("POST", "events", {"seq": 1, "metrics": points})
    lease.ok("POST", "finish", {})
    page_of(live, f"/v1/runs/{lease.run_id}/metrics", limit=10_000)
    with Corral(live.url, live.operator) as corral:
        assert [point.step for point in corral.runs.iter_metrics(lease.run_id)] == list(range(8000))


def test_pages_of_runs_with_large_params_are_bounded(live: LiveServer) -> None:
    """ATK-31: a thousand of them had up to 1 MiB each."""
    project = named("project")
    given = {"a": WIDE * 160_000}
    ids = [live.submit(project=project, params=given) for _ in range(10)]
    where: dict[str, str | int] = {"project": project, "params": "true", "limit": 1000}

    items = items_of(pages_of(live, "/v1/runs", "cursor", **where))

    assert [item["id"] for item in items] == ids[::-1]
    assert all(item["params"] == given for item in items)
    with Corral(live.url, live.operator) as corral:
        found = corral.runs.iter(RunQuery(project=project, with_params=True))
        assert [run.id for run in found] == ids[::-1]
    # Without them a page is as long as it was asked to be.
    assert len(page_of(live, "/v1/runs", project=project, limit=1000)["items"]) == 10


def test_pages_of_events_with_long_notes_are_bounded(live: LiveServer, worker: FakeHost) -> None:
    """ATK-27: of one run, and of all of them."""
    start = live.ok("GET", "/v1/events", params={"limit": 1000})["next"]
    lease = worker.run()
    notes = [f"{n} {WIDE * 19_000}" for n in range(60)]
    lease.ok("POST", "events", {"seq": 1, "notes": notes})

    path = f"/v1/runs/{lease.run_id}/events"
    own = items_of(pages_of(live, path, "after", limit=1000))
    assert [one["data"]["text"] for one in own if one["type"] == "note"] == notes

    feed = [page_of(live, "/v1/events", cursor=start, limit=1000)]
    while feed[-1]["items"]:
        feed.append(page_of(live, "/v1/events", cursor=feed[-1]["next"], limit=1000))
    found = [one for one in items_of(feed) if one["run_id"] == lease.run_id]
    assert [(one["n"], one["type"]) for one in found] == [(one["n"], one["type"]) for one in own]
    lease.ok("POST", "finish", {})


def test_pages_of_artifacts_and_of_their_files_are_bounded(live: LiveServer) -> None:
    """ATK-27, ATK-31."""
    project, data = named("project"), b"x"
    live.ok("PUT", f"/v1/projects/{project}/blobs/{record('x', data)['sha256']}", content=data)
    folder = "/".join(["d" * 250] * 15)
    files = [record(f"{folder}/{n:05}", data) for n in range(1200)]
    meta = {"a": "x" * 900_000}
    made = []
    for n in range(6):
        body = {"kind": "input", "files": [*files, record(f"own{n}", data)][-1200 if n == 0 else -1 :]}
        made.append(live.ok("POST", f"/v1/projects/{project}/artifacts", {**body, "meta": meta})["id"])

    listed = items_of(pages_of(live, "/v1/artifacts", "cursor", project=project, limit=1000))
    assert [one["id"] for one in listed] == made[::-1]
    found = items_of(pages_of(live, f"/v1/artifacts/{made[0]}/files", "after", limit=10_000))
    assert sorted(one["path"] for one in found) == sorted([*(f["path"] for f in files[1:]), "own0"])

    large = {"kind": "input", "files": files[:1], "meta": {"a": "x" * (1 << 20)}}
    refused = error_of(live.call("POST", f"/v1/projects/{project}/artifacts", large), 422, "invalid_input")
    assert "1048576 at most are kept" in refused.message


def test_what_calls_gave_comes_in_bounded_answers(live: LiveServer, worker: FakeHost) -> None:
    """ATK-27: chunks of a generator, and results that are collected."""
    functions = {"f": {}, "g": {"kind": "generator"}}
    endpoint = deploy(live, worker, functions=functions, scaling={"concurrency": 200})
    ids = endpoint.call(*[b"x"] * 70)
    asked = {"function": "g", "args": inline(b"x")}
    body = {"endpoint": endpoint.name, "calls": [asked]}
    (generator,) = [one["id"] for one in live.ok("POST", "/v1/calls", body)["calls"]]
    instance = endpoint.instance()
    taken: list[Json] = []
    while len(taken) < 71:
        taken += instance.exchange(want=200, wait_s=1, holding=[one["id"] for one in taken])["calls"]
    value = bytes(64 << 10)
    (own,) = [one for one in taken if one["id"] == generator]
    given = {"call_id": generator, "attempt": own["attempt"], "first": 1, "chunks": [inline(value)] * 70}
    ended = [outcome(one, value) for one in taken if one["id"] != generator]
    instance.exchange(chunks=[given], outcomes=[*ended, outcome(own, b"", chunks=70)])

    left = set(ids)
    answers = 0
    while left:
        answer = live.call("POST", "/v1/calls/collect", {"ids": sorted(left), "wait_s": 10})
        assert len(answer.content) < PAGE_BYTES * 4 / 3 + LARGEST
        found = {one["id"] for one in answer.json()["calls"]}
        assert found <= left
        left -= found
        answers += 1
    assert answers > 1

    seen: list[int] = []
    page: Json = {"ended": False}
    while not page["ended"]:
        after = seen[-1] if seen else 0
        answer = live.call("GET", f"/v1/calls/{generator}/chunks", params={"after": after, "limit": 1000})
        assert len(answer.content) < PAGE_BYTES * 4 / 3 + LARGEST
        page = answer.json()
        assert len(page["chunks"]) < 70
        seen += [one["n"] for one in page["chunks"]]
    assert seen == list(range(1, 71))
    live.ok("DELETE", f"/v1/endpoints/default/{endpoint.name}")


def test_lists_that_are_read_in_portions_have_everything(live: LiveServer) -> None:
    """ATK-31: also those whose items are small, and their rows large."""
    project = named("project")
    run = {"argv": ["true"], "project": project, "resources": {"hosts": ["nobody"]}}
    when = {"cron": "0 0 1 1 *"}
    names = [f"s{n}-{fresh()[:6]}" for n in range(19)]
    for name in names:
        live.ok("POST", "/v1/schedules", {"name": name, "schedule": when, "runs": [run]})
        live.ok("POST", "/v1/manifests", {"project": project, "name": name, "mode": "apply"})
    for path in ("/v1/schedules", "/v1/manifests"):
        for limit in (4, 8, 16, 1000):
            pages = pages_of(live, path, "cursor", limit=limit)
            found = [one["name"] for page in pages for one in page["items"]]
            assert len(found) == len(set(found))
            assert set(names) <= set(found)


def test_what_came_out_of_a_group_is_compared_up_to_a_limit(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATK-31: ten thousand runs with params of 1 MiB were read for one answer."""
    run = {"argv": ["true"], "resources": {"hosts": ["nobody"]}, "params": {"a": "x" * 500}}
    body = {"request_id": fresh(), "runs": [{**run, "seed": n} for n in range(100)], "group": named("grid")}
    group = live.ok("POST", "/v1/runs", body)["group_id"]
    (variant,) = live.ok("GET", f"/v1/groups/{group}/results")["variants"]
    assert len(variant["runs"]) == 100

    monkeypatch.setattr(live.services, "limits", replace(live.services.limits, group_chars=50_000))
    refused = error_of(live.call("GET", f"/v1/groups/{group}/results"), 413, "too_large")
    assert "more than 50000 characters" in refused.message
    assert "corral ls --group" in json.dumps(refused.model_dump())


def test_what_hosts_leave_in_the_rows_of_lists_is_bounded(live: LiveServer, worker: FakeHost) -> None:
    """ATK6-02: at the end of a run a name of a metric could have 30 MiB, which every list of runs read."""
    lease = worker.run()
    told = [{"at": 1.0, "name": f"first-{n}", "value": 1.0} for n in range(256)]
    lease.ok("POST", "events", {"seq": 1, "metrics": told})
    error_of(lease.call("POST", "finish", {"metrics": {"x" * 129: 1.0}}), 422, "invalid_input")

    lease.ok("POST", "finish", {"metrics": {f"last-{n}": 1.0 for n in range(1024)}})

    kept = live.ok("GET", f"/v1/runs/{lease.run_id}")["metrics"]
    assert len(kept) == 1024
    assert "last-1023" in kept


def test_an_error_of_a_call_is_no_larger_than_what_is_read_of_it(live: LiveServer, worker: FakeHost) -> None:
    """ATK6-03: all that an error had beside message and traceback was kept, and counted against no quota."""
    endpoint = deploy(live, worker)
    endpoint.call()
    instance = endpoint.instance()
    call = instance.next_call()
    error = {
        "type": "T" * (1 << 20),
        "message": ["m" * (1 << 20)],
        "bases": ["ValueError"],
        "args": "a" * 11_000,
        "notes": ["n" * (1 << 20)],
        **{f"{n}-{'k' * 1000}": "x" * 1000 for n in range(1000)},
    }

    instance.exchange(outcomes=[outcome(call, error=error)])

    kept = live.ok("GET", f"/v1/calls/{call['id']}")["error"]
    assert len(json.dumps(kept)) < 64 << 10
    assert (kept["bases"], kept["args"], kept["notes"]) == (["ValueError"], "a" * 11_000, None)
    live.ok("DELETE", f"/v1/endpoints/default/{endpoint.name}")
