"""A request that comes twice, a stream taken up again, and a server newer than its client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from support.live_server import FakeHost, Json, Lease, LiveServer, error_of, fresh, named, new_host, record

from corral.client.corral import Corral
from corral.client.leases import Leases
from corral.wire.leases import ClaimRequest


def _runs(live: LiveServer, project: str) -> list[Json]:
    items: list[Json] = live.ok("GET", "/v1/runs", params={"project": project, "limit": 1000})["items"]
    return items


def _events(live: LiveServer, run: str) -> list[Json]:
    items: list[Json] = live.ok("GET", f"/v1/runs/{run}/events", params={"limit": 1000})["items"]
    return items


def test_a_submission_that_comes_twice_makes_its_runs_once(live: LiveServer) -> None:
    """FL-D30."""
    project = named("twice")
    nobody = {"hosts": ["nobody"]}
    runs = [{"argv": ["true"], "project": project, "seed": n, "resources": nobody} for n in range(3)]
    body = {"request_id": fresh(), "runs": runs, "group": "three"}

    answers = [live.ok("POST", "/v1/runs", body) for _ in range(3)]

    assert answers[0] == answers[1] == answers[2]
    assert len(_runs(live, project)) == 3
    changed = {**body, "runs": runs[:1]}
    error_of(live.call("POST", "/v1/runs", changed), 409, "conflict")
    assert len(_runs(live, project)) == 3


def test_a_claim_that_comes_twice_gives_the_same_lease(live: LiveServer, worker: FakeHost) -> None:
    """FL-D30: an answer that was lost on the way costs nothing."""
    live.submit(host=worker.name)
    live.submit(host=worker.name)
    ask = worker.ask()

    first = live.ok("POST", "/v1/claims", ask, token=worker.token)["leases"]
    again = live.ok("POST", "/v1/claims", ask, token=worker.token)["leases"]

    assert [lease["id"] for lease in first] == [lease["id"] for lease in again]
    assert first[0]["epoch"] == again[0]["epoch"]
    for lease in (Lease(worker, first[0]), worker.claim()):
        lease.ok("POST", "finish", {})


OUTCOMES: dict[str, Json] = {
    "finish": {"metrics": {"loss": 0.5}, "ran_s": 1.5},
    "fail": {"reason": "code_error", "detail": "boom", "exit_code": 3},
    "stopped": {"reason": "wall_limit"},
}


def test_outcomes_told_together_are_answered_as_if_told_alone(live: LiveServer, worker: FakeHost) -> None:
    """FL-D30: again in one call, or by the lease's own, the answers stay the same."""
    leases = [worker.run() for _ in OUTCOMES]
    stale = {"lease_id": leases[0].about["id"], "epoch": leases[0].about["epoch"] + 1, "finish": {}}
    reports = [
        {"lease_id": lease.about["id"], "epoch": lease.about["epoch"], verb: OUTCOMES[verb]}
        for lease, verb in zip(leases, OUTCOMES, strict=True)
    ]

    first = live.ok("POST", "/v1/outcomes", {"reports": [stale, *reports]}, token=worker.token)["results"]
    again = live.ok("POST", "/v1/outcomes", {"reports": reports}, token=worker.token)["results"]

    assert [result["outcome"]["run_state"] for result in again] == ["succeeded", "failed", "failed"]
    assert first[1:] == again
    assert (first[0]["outcome"], first[0]["error"]["code"]) == (None, "lease_lost")
    for lease, verb, result in zip(leases, OUTCOMES, again, strict=True):
        assert lease.ok("POST", verb, OUTCOMES[verb]) == result["outcome"]


def test_another_hosts_lease_is_not_ended_together_with_ones_own(live: LiveServer, worker: FakeHost) -> None:
    """FL-D31."""
    lease = worker.run()
    stranger = new_host(live)
    report = {"lease_id": lease.about["id"], "epoch": lease.about["epoch"], "finish": {}}

    answer = live.ok("POST", "/v1/outcomes", {"reports": [report]}, token=stranger.token)

    assert answer["results"][0]["error"]["code"] == "not_found"
    assert live.ok("GET", f"/v1/runs/{lease.run_id}")["state"] == "running"
    lease.ok("POST", "finish", {})


@pytest.mark.parametrize("verb", OUTCOMES)
def test_an_outcome_that_comes_twice_counts_once(verb: str, live: LiveServer, worker: FakeHost) -> None:
    """FL-D30: the same answer for ever, and another body is refused."""
    lease = worker.run()
    first = lease.ok("POST", verb, OUTCOMES[verb])
    run, events = live.ok("GET", f"/v1/runs/{lease.run_id}"), _events(live, lease.run_id)

    assert [lease.ok("POST", verb, OUTCOMES[verb]) for _ in range(3)] == [first] * 3

    assert live.ok("GET", f"/v1/runs/{lease.run_id}") == run
    assert _events(live, lease.run_id) == events
    error_of(lease.call("POST", verb, {**OUTCOMES[verb], "ran_s": 99}), 409, "already_final")
    for other in OUTCOMES.keys() - {verb}:
        error_of(lease.call("POST", other, OUTCOMES[other]), 409, "already_final")
    assert live.ok("GET", f"/v1/runs/{lease.run_id}") == run


def test_a_requeue_that_comes_twice_makes_one_run(live: LiveServer, worker: FakeHost) -> None:
    """FL-D30."""
    project = named("again")
    lease = worker.run(project=project)
    lease.ok("POST", "fail", {"reason": "code_error"})
    body = {"request_id": fresh()}
    path = f"/v1/runs/{lease.run_id}/requeue"

    first, second = live.ok("POST", path, body), live.ok("POST", path, body)

    assert first == second
    assert len(_runs(live, project)) == 2
    assert live.ok("GET", f"/v1/runs/{first['ids'][0]}")["generation"] == 2
    live.ok("POST", f"/v1/runs/{first['ids'][0]}/cancel", {})


def test_a_cancel_that_comes_twice_changes_nothing_more(live: LiveServer) -> None:
    """MT-C35."""
    run = live.submit()
    live.ok("POST", f"/v1/runs/{run}/cancel", {"reason": "enough"})
    events = _events(live, run)

    assert live.call("POST", f"/v1/runs/{run}/cancel", {"reason": "enough"}).status_code in (200, 409)

    assert _events(live, run) == events
    assert live.ok("GET", f"/v1/runs/{run}")["state"] == "cancelled"


def test_a_run_that_finishes_before_its_cancel_reaches_it_has_succeeded(
    live: LiveServer, worker: FakeHost
) -> None:
    """MT-C35: a real finish wins, and a cancel of what has ended changes nothing."""
    lease = worker.run()
    live.ok("POST", f"/v1/runs/{lease.run_id}/cancel", {})
    assert live.ok("GET", f"/v1/runs/{lease.run_id}")["state"] == "stopping"

    lease.ok("POST", "finish", {})

    events = _events(live, lease.run_id)
    live.call("POST", f"/v1/runs/{lease.run_id}/cancel", {})
    assert live.ok("GET", f"/v1/runs/{lease.run_id}")["state"] == "succeeded"
    assert _events(live, lease.run_id) == events


def test_a_commit_that_comes_twice_is_one_artifact(live: LiveServer, worker: FakeHost) -> None:
    lease = worker.run()
    lease.put(b"result")
    body = {"kind": "output", "files": [record("r", b"result")]}

    assert lease.ok("POST", "artifacts", body)["id"] == lease.ok("POST", "artifacts", body)["id"]
    assert len(live.ok("GET", f"/v1/runs/{lease.run_id}/artifacts")["items"]) == 1


def _batch(seq: int, count: int = 10) -> Json:
    logs = [{"at": 1.0 * i, "stream": "stdout", "text": f"line {seq}.{i}"} for i in range(count)]
    return {"seq": seq, "logs": logs}


def test_log_batches_are_taken_once_and_in_order(live: LiveServer, worker: FakeHost) -> None:
    lease = worker.run()
    lease.ok("POST", "events", _batch(1))
    assert lease.ok("POST", "events", _batch(1)) == {"accepted": False, "next_seq": 2}
    error_of(lease.call("POST", "events", _batch(3)), 409, "sequence_gap")
    lease.ok("POST", "events", _batch(2))

    page = live.ok("GET", f"/v1/runs/{lease.run_id}/logs")

    assert [line["text"] for line in page["items"]] == [f"line {b}.{i}" for b in (1, 2) for i in range(10)]
    lease.ok("POST", "finish", {})


def _follow(live: LiveServer, run: str, cursor: str, stop_after: int) -> tuple[list[str], str, bool]:
    """Lines from the cursor on, the last cursor, and whether the stream said that the run ended."""
    lines, ended = [], False
    headers = {"Authorization": f"Bearer {live.operator}"}
    url = f"{live.url}/v1/runs/{run}/logs"
    params = {"follow": "true", "cursor": cursor}
    with httpx.stream("GET", url, params=params, headers=headers, timeout=120, trust_env=False) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        kind, ident = "", ""
        for row in answer.iter_lines():
            name, _, value = row.partition(": ")
            kind = value if name == "event" else kind
            ident = value if name == "id" else ident
            if name == "data" and kind == "log":
                lines.append(str(json.loads(value)["text"]))
                cursor = ident
            ended = ended or (name == "data" and kind == "end")
            if ended or len(lines) == stop_after:
                break
    return lines, cursor, ended


def test_a_stream_taken_up_by_its_cursor_gives_each_line_once(live: LiveServer, worker: FakeHost) -> None:
    """MT-D26: pushed, and a reconnect loses and repeats nothing."""
    lease = worker.run()
    seen: list[str] = []
    cursor = ""
    for seq in range(1, 6):
        lease.ok("POST", "events", _batch(seq))
        # Broken off in the middle of a batch, each time at another place.
        lines, cursor, _ = _follow(live, lease.run_id, cursor, stop_after=7)
        seen += lines
    lease.ok("POST", "finish", {})

    rest, _, ended = _follow(live, lease.run_id, cursor, stop_after=1000)

    assert ended
    assert seen + rest == [f"line {b}.{i}" for b in range(1, 6) for i in range(10)]


# Objects whose keys are the user's own.
MAPS = {
    "labels",
    "params",
    "env",
    "inputs",
    "input_digests",
    "origins",
    "metrics",
    "progress",
    "data",
    "retries_used",
    "forecast_s",
    "input_paths",
    "system",
    "sample",
    "meta",
}


def _grown(value: Any) -> Any:
    """The same answer from a later version: one more key in every object."""
    if isinstance(value, dict):
        grown = {key: inner if key in MAPS else _grown(inner) for key, inner in value.items()}
        return {**grown, "from_the_future": {"x": [1]}}
    return [_grown(item) for item in value] if isinstance(value, list) else value


@contextmanager
def _newer_server(live: LiveServer) -> Iterator[str]:
    """Passes calls on, and adds to the answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            token = self.headers["Authorization"].removeprefix("Bearer ")
            kind = {"Content-Type": self.headers.get("Content-Type", "")}
            answer = live.call(self.command, self.path, content=body, token=token, headers=kind)
            data = json.dumps(_grown(answer.json())).encode()
            self.send_response(answer.status_code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Not into the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_client_reads_the_answers_of_a_newer_server(live: LiveServer, worker: FakeHost) -> None:
    """What it does not know it ignores, also deep inside: in specs, capabilities and files."""
    lease = worker.run(params={"lr": 0.1})
    with _newer_server(live) as url, Corral(url, live.operator) as corral:
        found = corral.runs.get(lease.run_id)
        assert (found.state, found.spec.params["lr"]) == ("running", 0.1)
        assert corral.runs.page().items
        assert corral.runs.events(lease.run_id).items
        assert corral.runs.why(lease.run_id).run_id == lease.run_id
        assert corral.hosts.page().items
    lease.ok("POST", "finish", {})


def test_a_worker_claims_from_a_newer_server(live: LiveServer, worker: FakeHost) -> None:
    live.submit(host=worker.name)
    with _newer_server(live) as url, Corral(url, worker.token) as corral:
        answer = Leases(corral.transport).claim(ClaimRequest.model_validate(worker.ask()))
    assert answer.leases[0].spec.argv == ["true"]
