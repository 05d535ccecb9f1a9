"""Acting on many runs, holding and removing them: over the real API, each an event with who did it."""

from __future__ import annotations

from typing import Any

import pytest
from support.live_server import FakeHost, Json, LiveServer, error_of, fresh, named, record

from corral.client.corral import Corral
from corral.wire.runs import RunSelection


def group(live: LiveServer, count: int = 3, *, host: str = "nobody", **more: Any) -> tuple[str, list[str]]:
    name = named("group")
    run = {"argv": ["true"], "resources": {"hosts": [host]}, **more.pop("spec", {})}
    runs = [{**run, "name": name, "seed": n} for n in range(count)]
    answer = live.ok("POST", "/v1/runs", {"request_id": fresh(), "runs": runs, "group": name, **more})
    return name, answer["ids"]


def states(live: LiveServer, ids: list[str]) -> list[str]:
    return [live.ok("GET", f"/v1/runs/{one}")["state"] for one in ids]


def events(live: LiveServer, run: str) -> list[Json]:
    items: list[Json] = live.ok("GET", f"/v1/runs/{run}/events", params={"limit": 1000})["items"]
    return items


def cancel(live: LiveServer, which: Json, **more: Any) -> Json:
    answer: Json = live.ok("POST", "/v1/runs/cancel", {"which": which, **more})
    return answer


def test_a_group_is_cancelled_page_by_page_and_each_run_says_who_did_it(live: LiveServer) -> None:
    """FL-C09, FL-D03."""
    name, ids = group(live, 5)
    preview = cancel(live, {"group": name}, dry_run=True)
    assert {one["id"] for one in preview["done"]} == set(ids)
    assert set(states(live, ids)) == {"queued"}

    seen, cursor = [], None
    while True:
        page = cancel(live, {"group": name}, limit=2, cursor=cursor, reason="enough")
        seen += [one["id"] for one in page["done"]]
        cursor = page["next"]
        if cursor is None:
            break

    assert sorted(seen) == sorted(ids)
    assert set(states(live, ids)) == {"cancelled"}
    last = events(live, ids[0])[-1]
    assert (last["type"], last["actor"], last["data"]["reason"]) == ("cancel", "operator:operator", "enough")
    assert cancel(live, {"group": name}) == {"done": [], "skipped": [], "next": None}


def test_who_acts_on_many_hears_how_far_it_is(live: LiveServer) -> None:
    name, ids = group(live, 201)
    heard: list[int] = []

    with Corral(live.url, live.operator) as corral:
        done = corral.runs.cancel_all(RunSelection(group=name), told=heard.append)

    assert (heard, len(done.done)) == ([200], len(ids))


@pytest.mark.parametrize("by", ["label", "name", "project", "state"])
def test_what_a_filter_does_not_name_is_left_alone(live: LiveServer, by: str) -> None:
    project, word = named("p"), named("w")
    mine = live.submit(project=project, name=word, labels={"team": word})
    other = live.submit(name="other", labels={"team": "other"})
    filters: dict[str, Json] = {
        "label": {"label": f"team={word}"},
        "name": {"name": word},
        "project": {"project": project},
        "state": {"project": project, "states": ["queued"]},
    }

    done = cancel(live, filters[by])["done"]

    assert [one["id"] for one in done] == [mine]
    assert states(live, [mine, other]) == ["cancelled", "queued"]


def test_a_filter_that_says_nothing_is_refused_unless_all_are_meant(live: LiveServer) -> None:
    body = error_of(live.call("POST", "/v1/runs/cancel", {"which": {}}), 422, "invalid_input")
    assert "all" in body.message
    wrong = {"which": {"states": ["failed"]}}
    assert (
        "nothing to cancel"
        in error_of(live.call("POST", "/v1/runs/cancel", wrong), 422, "invalid_input").message
    )


def test_a_token_of_one_project_reaches_no_other(live: LiveServer) -> None:
    project = named("p")
    run = live.submit()
    token = live.token("user", project=project)["token"]

    answer = live.ok("POST", "/v1/runs/cancel", {"which": {"all": True}}, token=token)
    assert answer["done"] == []
    refused = live.call("POST", "/v1/runs/cancel", {"which": {"project": "default"}}, token=token)
    error_of(refused, 403, "forbidden")
    assert states(live, [run]) == ["queued"]


def test_failed_runs_of_a_group_are_queued_again_once(live: LiveServer, worker: FakeHost) -> None:
    """FL-C09: and a second time changes nothing."""
    name, ids = group(live, 3, host=worker.name)
    for _ in range(2):
        worker.claim().ok("POST", "fail", {"reason": "code_error", "exit_code": 1})
    worker.claim().ok("POST", "finish", {})
    body = {"which": {"group": name, "states": ["failed"]}, "request_id": fresh()}

    first = live.ok("POST", "/v1/runs/requeue", body)
    replay = live.ok("POST", "/v1/runs/requeue", body)
    again = live.ok("POST", "/v1/runs/requeue", {**body, "request_id": fresh()})

    assert len(first["done"]) == 2
    assert replay == first
    assert again["done"] == []
    assert {one["why"] for one in again["skipped"]} == {"was queued again before"}
    new = [run for one in first["done"] for run in one["new"]]
    assert states(live, new) == ["queued", "queued"]
    assert sorted(states(live, ids)) == ["failed", "failed", "succeeded"]


def test_a_failed_parent_is_queued_again_with_its_children(live: LiveServer, worker: FakeHost) -> None:
    """FL-D06, FL-C03."""
    parent = live.submit(host=worker.name)
    child = live.submit(host=worker.name, after=[parent])
    grandchild = live.submit(host=worker.name, after=[{"run": child, "on_failure": "cancel"}])
    worker.claim().ok("POST", "fail", {"reason": "code_error", "exit_code": 1})
    assert states(live, [parent, child, grandchild]) == ["failed", "failed", "cancelled"]
    shown = live.ok("GET", f"/v1/runs/{child}")
    assert shown["reason"] == "parent_failed"
    assert parent in shown["detail"]

    alone = live.call("POST", f"/v1/runs/{child}/requeue", {"request_id": fresh()})
    assert "--with-children" in error_of(alone, 409, "conflict").hint
    body = {"request_id": fresh(), "with_children": True}
    answer = live.ok("POST", f"/v1/runs/{parent}/requeue", body)
    assert live.ok("POST", f"/v1/runs/{parent}/requeue", body) == answer

    assert states(live, answer["ids"]) == ["queued", "held", "held"]
    for _ in range(3):
        worker.claim().ok("POST", "finish", {})
    assert states(live, answer["ids"]) == ["succeeded"] * 3


def test_a_requeue_checks_that_what_the_run_needs_is_still_there(live: LiveServer) -> None:
    live.ok("PUT", "/v1/projects/default/secrets/GONE_SOON", {"value": "not-a-secret-1"})
    run = live.submit(secrets=["GONE_SOON"])
    live.ok("POST", f"/v1/runs/{run}/cancel", {})
    live.ok("DELETE", "/v1/projects/default/secrets/GONE_SOON")

    refused = live.call("POST", f"/v1/runs/{run}/requeue", {"request_id": fresh()})

    assert "GONE_SOON" in error_of(refused, 422, "invalid_input").message


def test_a_run_is_held_and_released_by_hand(live: LiveServer, worker: FakeHost) -> None:
    run = live.submit(host=worker.name)

    held = live.ok("POST", f"/v1/runs/{run}/hold")
    assert (held["state"], held["hold_reason"]) == ("held", "held by operator")
    assert live.ok("POST", f"/v1/runs/{run}/hold") == held
    assert live.ok("POST", "/v1/claims", worker.ask(), token=worker.token)["leases"] == []
    assert "held by operator" in live.ok("GET", f"/v1/runs/{run}/why")["summary"]
    assert live.ok("POST", f"/v1/runs/{run}/release")["state"] == "queued"
    lease = worker.claim()
    assert lease.run_id == run
    error_of(live.call("POST", f"/v1/runs/{run}/hold"), 409, "conflict")
    error_of(live.call("POST", f"/v1/runs/{run}/release"), 409, "conflict")
    lease.ok("POST", "finish", {})
    assert [event["type"] for event in events(live, run)][:3] == ["submit", "hold", "release"]


def test_a_run_held_by_hand_is_not_released_by_its_parent(live: LiveServer, worker: FakeHost) -> None:
    parent = live.submit(host=worker.name)
    child = live.submit(host="nobody", after=[parent])
    refused = live.call("POST", f"/v1/runs/{child}/release")
    assert "waits for" in error_of(refused, 409, "conflict").message
    live.ok("POST", f"/v1/runs/{child}/hold")

    worker.claim().ok("POST", "finish", {})

    assert states(live, [child]) == ["held"]
    assert live.ok("POST", f"/v1/runs/{child}/release")["state"] == "queued"


def test_a_group_says_how_it_stands_and_why_runs_failed(live: LiveServer, worker: FakeHost) -> None:
    name, ids = group(live, 4, host=worker.name, max_running=2)
    for detail, metric in (("out of luck", None), ("out of luck", None), (None, 0.25)):
        lease = worker.claim()
        if metric is None:
            body = {"reason": "code_error", "exit_code": 1, "detail": detail}
            lease.ok("POST", "fail", body)
        else:
            lease.ok("POST", "finish", {"metrics": {"loss": metric}})

    shown = live.ok("GET", f"/v1/groups/{name}")

    assert (shown["runs"], shown["max_running"]) == (4, 2)
    assert shown["states"] == {"failed": 2, "queued": 1, "succeeded": 1}
    (why,) = shown["ended_with"]
    assert (why["runs"], why["reason"], why["detail"]) == (2, "code_error", "out of luck")
    assert why["example"] in ids
    assert shown["least"][0]["metric"] == "loss"
    assert shown["least"][0]["value"] == 0.25
    listed = live.ok("GET", "/v1/groups", params={"limit": 1000})["items"]
    assert shown["id"] in {one["id"] for one in listed}
    error_of(live.call("GET", "/v1/groups/absent"), 404, "not_found")


def finished(worker: FakeHost, data: bytes = b"weights", **spec: Any) -> tuple[str, str]:
    lease = worker.run(**spec)
    lease.put(data)
    made = lease.ok("POST", "artifacts", {"kind": "output", "files": [record("model.bin", data)]})
    lease.ok("POST", "finish", {"artifact_id": made["id"]})
    return lease.run_id, made["id"]


def test_a_run_that_has_ended_is_removed_with_what_is_its_own(live: LiveServer, worker: FakeHost) -> None:
    """MT-D50: and that it was is in the audit."""
    run, artifact = finished(worker, named("bytes").encode())

    answer = live.ok("DELETE", f"/v1/runs/{run}")

    assert answer == {"id": run, "artifacts": 1, "kept": []}
    error_of(live.call("GET", f"/v1/runs/{run}"), 404, "not_found")
    error_of(live.call("GET", f"/v1/artifacts/{artifact}"), 404, "not_found")
    error_of(live.call("DELETE", f"/v1/runs/{run}"), 404, "not_found")
    fsck = live.call("POST", "/v1/fsck")
    assert run not in fsck.text
    assert ("run.remove", run) in {
        (entry["action"], entry["target"]) for entry in live.ok("GET", "/v1/audit")["items"]
    }


def test_what_others_need_is_not_removed(live: LiveServer, worker: FakeHost) -> None:
    run, artifact = finished(worker, named("bytes").encode())
    child = live.submit(host=worker.name, after=[{"run": run, "input": "model"}])
    shown = live.ok("GET", f"/v1/runs/{child}")
    assert shown["spec"]["inputs"] == {"model": artifact}
    assert shown["after"][0]["run_id"] == run

    refused = error_of(live.call("DELETE", f"/v1/runs/{run}"), 409, "conflict")
    assert child in refused.message
    error_of(live.call("DELETE", f"/v1/runs/{child}"), 409, "conflict")
    worker.claim().ok("POST", "finish", {})
    answer = live.ok("DELETE", f"/v1/runs/{run}")

    assert answer["kept"] == [artifact]
    assert live.ok("GET", f"/v1/artifacts/{artifact}")["id"] == artifact
    assert live.ok("GET", f"/v1/runs/{child}")["state"] == "succeeded"
