"""FL-D12: logs outlive the machine that they came from."""

from __future__ import annotations

from support.live_server import FakeHost, LiveServer


def _lines(live: LiveServer, run: str) -> list[str]:
    found: list[str] = []
    cursor = ""
    while True:
        page = live.ok("GET", f"/v1/runs/{run}/logs", params={"cursor": cursor, "limit": 100})
        found += [line["text"] for line in page["items"]]
        if not page["items"]:
            return found
        cursor = page["next"]


def test_after_a_host_is_gone_for_good_its_whole_log_is_readable(live: LiveServer, worker: FakeHost) -> None:
    lease = worker.run(retries={"infrastructure": 0})
    for batch in range(3):
        texts = [f"line {batch * 150 + n}" for n in range(150)]
        logs = [{"at": 1.0, "stream": "stdout", "text": text} for text in texts]
        lease.ok("POST", "events", {"seq": batch + 1, "logs": logs})
    # It dies without a word, and its token is revoked.
    token = next(t for t in live.ok("GET", "/v1/tokens?limit=1000")["items"] if t["name"] == worker.name)
    live.ok("DELETE", f"/v1/tokens/{token['id']}")
    assert lease.call("POST", "beat", {}).status_code == 401

    assert _lines(live, lease.run_id) == [f"line {n}" for n in range(450)]
