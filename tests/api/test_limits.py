"""Rates, bytes and counts: what is too much is refused in the one shape, and no run dies of it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.live_server import LiveServer, error_of, fresh, named, new_host, packed, record, serve, sha

from corral.client.corral import Corral
from corral.domain.errors import ProjectFull, RateLimited
from corral.wire.spec.run_file import RunSpec

# So slow that a busy machine does not keep within it.
RATE, BURST = 0.25, 20


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("home")
    with serve(
        home, rate=RATE, rate_burst=BURST, wrong_token_rate=0.5, open_rate=0.5, blob_grace_s=0
    ) as live:
        yield live


def _hasty(live: LiveServer) -> str:
    return str(live.token("user")["token"])


def test_a_token_that_calls_too_often_is_told_when_to_come_back(slow: LiveServer) -> None:
    """MT-D07, RF-C23: others are not slowed down."""
    token = _hasty(slow)
    answers = [slow.call("GET", "/v1/runs", token=token) for _ in range(BURST * 2)]

    assert [a.status_code for a in answers[: BURST // 2]] == [200] * (BURST // 2)
    refused = [a for a in answers if a.status_code != 200]
    assert refused
    for answer in refused:
        error_of(answer, 429, "rate_limited")
        assert int(answer.headers["retry-after"]) >= 1
    assert slow.call("GET", "/v1/runs", token=_hasty(slow)).status_code == 200


def test_the_short_path_counts_too(slow: LiveServer) -> None:
    """Submits on one connection are read by the protocol itself, once the caller is known."""
    token = _hasty(slow)
    run = {"argv": ["true"], "resources": {"hosts": ["nobody"]}}
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=slow.url, headers=headers, trust_env=False) as client:
        answers = [
            client.post("/v1/runs", json={"request_id": fresh(), "runs": [run]}) for _ in range(BURST * 2)
        ]

    refused = [a for a in answers if a.status_code == 429]
    assert refused
    error_of(refused[0], 429, "rate_limited")
    assert int(refused[0].headers["retry-after"]) >= 1
    assert {a.status_code for a in answers} == {201, 429}


def test_a_host_that_calls_too_often_keeps_its_runs(slow: LiveServer) -> None:
    """Claims, beats and outcomes are answered, whatever else the host is told to wait for."""
    worker = new_host(slow)
    lease = worker.run()
    batches = [lease.call("POST", "events", {"seq": 1, "logs": []}).status_code for _ in range(BURST * 2)]

    assert 429 in batches
    beats = [lease.call("POST", "beat", {}).status_code for _ in range(BURST * 2)]
    assert set(beats) == {200}
    assert lease.call("POST", "finish", {}).status_code == 200
    assert slow.call("POST", "/v1/claims", worker.ask(), token=worker.token).status_code == 200


def test_the_client_waits_as_it_is_told(slow: LiveServer) -> None:
    waits: list[float] = []
    with Corral(slow.url, _hasty(slow)) as corral:
        pause = corral.transport.sleep

        def patient(seconds: float) -> None:
            waits.append(seconds)
            pause(seconds)

        corral.transport.sleep = patient
        spec = RunSpec.model_validate({"argv": ["true"], "resources": {"hosts": ["nobody"]}})
        for _ in range(BURST + 1):
            assert len(corral.runs.submit([spec]).ids) == 1

    assert waits
    assert min(waits) >= 1.0


def test_a_client_that_may_not_wait_gets_the_error(slow: LiveServer) -> None:
    with Corral(slow.url, _hasty(slow)) as corral:
        corral.transport.sleep = lambda _: None
        with pytest.raises(RateLimited) as caught:
            [corral.runs.page() for _ in range(BURST * 3)]

    assert caught.value.retry_after_s >= 1
    assert "Retry-After" in caught.value.hint


def test_wrong_tokens_must_wait_and_right_ones_never(slow: LiveServer) -> None:
    """SEC-10: of 40 good tokens that the server had not seen yet, 39 from the same address were refused."""
    unseen = [str(slow.token("user")["token"]) for _ in range(5)]
    wrong = [slow.call("GET", "/v1/runs", token=f"{unseen[0]}{n}") for n in range(60)]

    error_of(wrong[0], 401, "unauthenticated")
    error_of(wrong[-1], 429, "rate_limited")
    assert [slow.call("GET", "/v1/runs", token=one).status_code for one in unseen] == [200] * 5


def test_calls_without_a_token_are_counted_by_address(slow: LiveServer) -> None:
    """SEC-13: 16 callers of `/v1/health` made other calls take up to 8 s."""
    answers = [slow.call("GET", f"/v1/{path}", token=None) for path in ("health", "openapi.json", "ca") * 5]

    assert answers[0].json()["ok"]
    error_of(answers[-1], 429, "rate_limited")
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert slow.call("GET", "/v1/runs", token=_hasty(slow)).status_code == 200


def test_health_reads_nothing_that_grows(tmp_path: Path) -> None:
    """SEC-13: it read every lane of the queue, for whoever asked."""
    with serve(tmp_path) as live:
        live.submit()
        with sqlite3.connect(live.home / "corral.db") as raw:
            raw.execute("ALTER TABLE runs RENAME TO runs_away")
        answer = live.call("GET", "/v1/health", token=None)
        with raw:
            raw.execute("ALTER TABLE runs_away RENAME TO runs")
        raw.close()

    assert (answer.status_code, answer.json()["ok"]) == (200, True)


def _limit(live: LiveServer, project: str, max_bytes: int | None) -> None:
    with sqlite3.connect(live.home / "corral.db") as raw:
        raw.execute(
            "INSERT INTO quotas (project, max_bytes, weight, updated_at, updated_by) "
            "VALUES (?, ?, 1, 0, 'test') "
            "ON CONFLICT (project) DO UPDATE SET max_bytes = excluded.max_bytes",
            [project, max_bytes],
        )
    raw.close()


def test_a_project_has_no_more_bytes_than_its_quota(live: LiveServer) -> None:
    """FL-D23: refused before and after the bytes came; what is there already costs nothing."""
    project, first, second = named("p"), b"a" * 600, b"b" * 500
    path = f"/v1/projects/{project}/blobs"
    _limit(live, project, 1000)
    live.ok("PUT", f"{path}/{sha(first)}", content=first)

    said = error_of(live.call("PUT", f"{path}/{sha(second)}", content=second), 507, "project_full")
    assert "has 600 bytes of files, of 1000 (max_bytes), and this would add 500" in said.message
    assert "corral artifacts rm" in said.hint
    # Not announced: it is known only once it came.
    unannounced = live.call("PUT", f"{path}/{sha(second)}", content=iter([second]))
    error_of(unannounced, 507, "project_full")
    pack = packed((sha(second), len(second), second), (sha(b"c"), 1, b"c"))
    error_of(live.call("POST", f"{path}/pack", content=pack), 507, "project_full")
    live.ok("PUT", f"{path}/{sha(first)}", content=first)
    live.ok("POST", f"{path}/pack", content=packed((sha(b"d"), 1, b"d"), (sha(first), 600, first)))
    manifest = {"kind": "input", "files": [record("f", first)]}
    live.ok("POST", f"/v1/projects/{project}/artifacts", manifest)
    missing = live.ok("POST", f"{path}/query", {"blobs": [sha(second)]})["missing"]
    assert missing == [sha(second)]

    _limit(live, project, None)
    live.ok("PUT", f"{path}/{sha(second)}", content=second)


def test_a_worker_of_a_full_project_is_told_to_wait_and_loses_nothing(live: LiveServer) -> None:
    project = named("p")
    _limit(live, project, 10)
    lease = new_host(live).run(project=project)
    data = b"the result of three days"

    error_of(lease.put(data), 507, "project_full")
    assert lease.call("POST", "beat", {}).status_code == 200
    _limit(live, project, 1000)
    lease.put(data).raise_for_status()
    files = [record("model.bin", data)]
    made = lease.ok("POST", "artifacts", {"kind": "output", "files": files})
    lease.ok("POST", "finish", {"artifact_id": made["id"]})

    assert live.ok("GET", f"/v1/runs/{lease.run_id}")["state"] == "succeeded"


def test_the_client_says_why_a_project_is_full(live: LiveServer, tmp_path: Path) -> None:
    project = named("p")
    _limit(live, project, 10)
    data = b"x" * 100
    with Corral(live.url, live.operator) as corral:
        corral.transport.sleep = lambda _: None
        with pytest.raises(ProjectFull, match="max_bytes"):
            corral.transport.repeat(
                "PUT",
                f"/v1/projects/{project}/blobs/{hashlib.sha256(data).hexdigest()}",
                dict,
                content=data,
            )


def test_the_log_quota_is_for_all_attempts_of_a_run(live: LiveServer) -> None:
    worker = new_host(live)
    first = worker.run(retries={"code": 3})
    assert first.about["log_quota_bytes"] == 256 << 20
    lines = [{"at": 1.0, "stream": "stdout", "text": "x" * 1000}] * 50
    first.ok("POST", "events", {"seq": 1, "logs": lines})
    first.ok("POST", "fail", {"reason": "host_lost", "detail": "gone"})

    second = worker.claim()

    assert second.run_id == first.run_id
    used = (256 << 20) - int(second.about["log_quota_bytes"])
    assert 50_000 < used < 60_000


def test_a_worker_that_keeps_no_quota_fills_no_disk(tmp_path: Path) -> None:
    """Logs and metrics; the batches are accepted, or the worker would send them for ever."""
    with serve(tmp_path / "home", log_quota_bytes=20_000) as live:
        lease = new_host(live).run()
        lines = [{"at": 1.0, "stream": "stdout", "text": "x" * 1000}] * 40
        points = [{"at": 1.0, "name": "loss", "value": 1.0, "step": n} for n in range(500)]
        for seq in range(1, 20):
            done = lease.ok("POST", "events", {"seq": seq, "logs": lines, "metrics": points})
            assert done["next_seq"] == seq + 1
        kept = live.ok("GET", f"/v1/runs/{lease.run_id}/logs", params={"limit": 1000})["items"]
        size = sum(
            path.stat().st_size for path in (tmp_path / "home" / "segments").rglob("*") if path.is_file()
        )

    assert 40 <= len(kept) < 19 * 40
    assert size < 4 * 20_000 + 100_000
