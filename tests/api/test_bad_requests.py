"""Requests that are malformed, hostile or oversized: refused in one shape, and nothing changes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from support.fake_instance import deploy
from support.live_server import FakeHost, Json, LiveServer, error_of, fresh, named, new_host, record, sha

from corral import __version__
from corral.functions.options import seconds

PLAIN = {"Content-Type": "application/json"}
# The busiest calls have a short way of their own for the client's exact header; both ways must hold.
FORMS = [PLAIN, {"Content-Type": "application/json; charset=utf-8"}]
BAD_IDS = [
    "..",
    ".",
    "../../etc/passwd",
    "r-bcdfghjkmnpq\n",
    "r-bcdfghjkmnpq\0",
    "r-bcdfghjkmn/q",
    "r-BCDFGHJKMNPQ",
    "r-bcdfghjkmnpq ",
    "ｒ-bcdfghjkmnpq",
    "r-%",
    "r-_",
    "'; DROP TABLE runs; --",
    "x" * 5000,
]


@pytest.fixture(autouse=True)
def nothing_breaks(live: LiveServer) -> Iterator[None]:
    """Whatever a test sends, the server goes on and has not failed inside."""
    yield
    assert live.ok("GET", "/v1/health", token=None)["ok"] is True
    failed = {key: n for key, n in live.services.counters.requests.items() if key[1] >= 500}
    assert failed == {}


@pytest.mark.parametrize("bad", BAD_IDS)
def test_an_id_is_matched_as_a_whole_by_every_entry(bad: str, live: LiveServer, worker: FakeHost) -> None:
    """FL-D21, FL-D22, MT-C26: `..`, newlines, NUL and slashes never reach a path or a query."""
    part = quote(bad, safe="")
    calls = [
        ("GET", f"/v1/runs/{part}", live.operator),
        ("GET", f"/v1/runs/{part}/logs", live.operator),
        ("POST", f"/v1/runs/{part}/cancel", live.operator),
        ("GET", f"/v1/artifacts/{part}", live.operator),
        ("GET", f"/v1/blobs/{part}", live.operator),
        ("PUT", f"/v1/projects/{part}/blobs/{'0' * 64}", live.operator),
        ("PUT", f"/v1/projects/default/blobs/{part}", live.operator),
        ("PUT", f"/v1/projects/default/secrets/{part}", live.operator),
        ("POST", f"/v1/hosts/{part}/drain", live.operator),
        ("DELETE", f"/v1/tokens/{part}", live.operator),
        ("POST", f"/v1/leases/{part}/beat?epoch=1", worker.token),
        ("PUT", f"/v1/leases/{part}/blobs/{'0' * 64}?epoch=1", worker.token),
    ]
    for method, path, token in calls:
        # Sent as it is: a client library would tidy `..` away.
        status, body = _raw(live, method, path, token, b"{}")
        assert status in (404, 405, 422), (method, path, status)
        assert set(json.loads(body)) == {"code", "message", "hint", "fields"}


def _raw(live: LiveServer, method: str, path: str, token: str, body: bytes) -> tuple[int, bytes]:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    first, _, rest = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), rest


@pytest.mark.parametrize("key", ["..", "a/../b", "/abs", "a//b", "a\nb", "a\\b", "ü", "x" * 200, "a/" * 9])
def test_an_object_key_is_plain(key: str, live: LiveServer, worker: FakeHost) -> None:
    lease = worker.run()
    status, _ = _raw(
        live, "PUT", f"{lease.path}/objects/{quote(key, safe='')}?epoch=2", worker.token, b"data"
    )
    assert status in (404, 422)
    lease.ok("POST", "finish", {})


@pytest.mark.parametrize("name", ["..", "a..b", "a/b", "a\n", "-a", "a" * 65, "", "naïve", "a b", "a\0"])
def test_a_name_that_is_no_name_is_refused_at_its_place(name: str, live: LiveServer) -> None:
    for place in ({"name": name}, {"project": name}, {"labels": {name: "x"}}, {"params": {name: 1}}):
        body = {"request_id": fresh(), "runs": [{"argv": ["true"], **place}]}
        error = error_of(live.call("POST", "/v1/runs", body), 422, "invalid_input")
        assert error.fields[0].path.startswith(f"runs.0.{next(iter(place))}")


def test_an_announced_body_that_is_too_large_is_refused_unread(live: LiveServer) -> None:
    head = (
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {live.operator}\r\n"
        "Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", live.port), timeout=120) as connection:
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", ["/v1/runs", "/v1/tokens", "/v1/projects/default/blobs/pack"])
def test_a_body_of_unknown_length_is_cut_off_at_the_limit(
    path: str, form: dict[str, str], live: LiveServer
) -> None:
    endless = (b'{"request_id": "' + b"x" * 65536 for _ in range(64))

    assert error_of(live.call("POST", path, content=endless, headers=form), 413, "too_large")


def test_a_blob_over_its_limit_is_refused_also_without_a_length(live: LiveServer) -> None:
    path = f"/v1/projects/default/blobs/{'0' * 64}"
    old = live.services.limits
    live.services.limits = type(old)(old.max_body_bytes, 100_000)
    try:
        error_of(live.call("PUT", path, content=b"x" * 100_001), 413, "too_large")
        pieces = (b"x" * 10_000 for _ in range(20))
        error_of(live.call("PUT", path, content=pieces), 413, "too_large")
    finally:
        live.services.limits = old
    assert live.ok("POST", "/v1/projects/default/blobs/query", {"blobs": ["0" * 64]})["missing"]


@pytest.mark.parametrize(
    ("method", "path", "body", "said", "hint"),
    [
        ("GET", "/v1/runs?label=vision", None, "`label` is not a label and its value, as team=vision", ""),
        ("GET", "/v1/usage?month=May", None, "`month` is not a month, as 2026-11", ""),
        ("PUT", "/v1/projects/default/secrets/1A", {"value": "x"}, "`name` is not a variable's name", ""),
        ("POST", "/v1/tokens", {"scope": "king"}, "`scope` must be 'user', 'operator'", "/v1/openapi.json"),
        ("POST", "/v1/runs", {"request_id": "12345678", "runs": [{}]}, "`runs.0", "`corral schema`"),
    ],
)
def test_a_refusal_is_in_plain_words_and_its_hint_fits(
    method: str, path: str, body: Json | None, said: str, hint: str, live: LiveServer
) -> None:
    """Every refusal named `corral schema`, also that of a label or a token, in pydantic's words."""
    error = error_of(live.call(method, path, body), 422, "invalid_input")

    assert said in error.message
    assert (hint in error.hint) if hint else (error.hint == "")


HOSTILE_JSON = {
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000,
    "deep in a field": b'{"request_id":"12345678","runs":' + b"[" * 600 + b"]" * 600 + b"}",
    "a number of 5,000 digits": b'{"request_id":"12345678","runs":' + b"9" * 5000 + b"}",
    "NaN": b'{"request_id":"12345678","runs":[{"argv":["x"],"wall_limit":NaN}]}',
    "Infinity": b'{"request_id":"12345678","runs":[{"argv":["x"],"wall_limit":Infinity}]}',
    "1e999": b'{"request_id":"12345678","runs":[{"argv":["x"],"wall_limit":1e999}]}',
    "NaN in params": b'{"request_id":"12345678","runs":[{"argv":["x"],"params":{"lr":NaN}}]}',
    "half a surrogate pair": b'{"request_id":"12345678","runs":[{"argv":["\\ud800"]}]}',
    "not UTF-8": b'{"request_id":"12345678","runs":[{"argv":["\xff\xfe"]}]}',
    "UTF-16": '{"request_id":"12345678","runs":[{"argv":["x"],"nam":"x"}]}'.encode("utf-16"),
    "cut short": b'{"request_id":"1234',
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "NUL in argv": b'{"request_id":"12345678","runs":[{"argv":["a\\u0000b"]}]}',
    "no runs": b'{"request_id":"12345678","runs":[]}',
    "a huge seed": b'{"request_id":"12345678","runs":[{"argv":["x"],"seed":99999999999999999999}]}',
    "a huge size": b'{"request_id":"12345678","runs":[{"argv":["x"],"resources":{"min_ram":1e30}}]}',
    "many arguments": b'{"request_id":"12345678","runs":[{"argv":[' + b'"x",' * 5000 + b'"x"]}]}',
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", HOSTILE_JSON)
def test_hostile_json_is_refused_and_stores_nothing(
    what: str, form: dict[str, str], live: LiveServer
) -> None:
    before = live.ok("GET", "/v1/runs", params={"limit": 1})["items"]

    answer = live.call("POST", "/v1/runs", content=HOSTILE_JSON[what], headers=form)

    assert answer.status_code in (400, 422), answer.text
    error = error_of(answer, answer.status_code, "invalid_input")
    assert error.hint
    assert len(answer.content) < 20_000
    assert live.ok("GET", "/v1/runs", params={"limit": 1})["items"] == before


HOSTILE_PROGRESS = [b"NaN", b"-Infinity", b'"\\ud800"', b'{"\\udfff":1}', b"[" * 500 + b"]" * 500]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", HOSTILE_PROGRESS)
def test_progress_and_meta_take_only_json_that_can_be_stored(
    value: bytes, form: dict[str, str], live: LiveServer, worker: FakeHost
) -> None:
    lease = worker.run()
    beat = lease.call("POST", "beat", content=b'{"progress":{"x":' + value + b"}}", headers=form)
    error_of(beat, 422, "invalid_input")
    body = b'{"kind":"output","files":[],"meta":{"x":' + value + b"}}"
    assert error_of(lease.call("POST", "artifacts", content=body, headers=form), 422, "invalid_input")
    lease.ok("POST", "finish", {})


def test_times_that_no_calendar_holds_are_refused(live: LiveServer, worker: FakeHost) -> None:
    """A sum of such times would be infinite, and a client could not show them."""
    lease = worker.run()
    for at in (1e300, -1e300):
        logs = {"seq": 1, "logs": [{"at": at, "stream": "stdout", "text": "x"}]}
        error_of(lease.call("POST", "events", logs), 422, "invalid_input")
    assert error_of(lease.call("POST", "finish", {"ran_s": 1e308}), 422, "invalid_input")
    lease.ok("POST", "finish", {})


@pytest.mark.parametrize("short", [5e-324, 1e-9, 0.0009])
def test_a_duration_that_no_clock_can_tell_is_refused(short: float, live: LiveServer) -> None:
    """ATK-19: of runs, calls, functions and tokens alike; a millisecond is enough."""
    for limit in ("wall_limit", "stall_limit"):
        run = {"argv": ["true"], "resources": {"hosts": ["nobody"]}, limit: short}
        body = {"request_id": fresh(), "runs": [run]}
        error = error_of(live.call("POST", "/v1/runs", body), 422, "invalid_input")
        assert limit in error.message
        run[limit] = 0.001
        live.ok("POST", "/v1/runs", body)
    for limit in ("timeout_s", "ttl_s"):
        call = {"function": "f", "args": {"format": "json", "body": ""}, "options": {limit: short}}
        body = {"endpoint": "none", "calls": [call]}
        assert limit in error_of(live.call("POST", "/v1/calls", body), 422, "invalid_input").message
    token = {"name": named("token"), "scope": "user", "expires_in_s": short}
    error_of(live.call("POST", "/v1/tokens", token), 422, "invalid_input")
    with pytest.raises(ValueError, match="a millisecond or more"):
        seconds(short, "timeout")


def test_binary_last_words_are_kept_without_their_nul(live: LiveServer, worker: FakeHost) -> None:
    lease = worker.run()
    lease.ok("POST", "fail", {"reason": "code_error", "detail": "died:\0\x01 \U0001f4a5"})

    assert live.ok("GET", f"/v1/runs/{lease.run_id}")["detail"] == "died:\ufffd\x01 \U0001f4a5"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_json_under_another_name_is_not_taken_for_json(kind: str, live: LiveServer) -> None:
    body = json.dumps({"request_id": fresh(), "runs": [{"argv": ["true"]}]}).encode()

    answer = live.call("POST", "/v1/runs", content=body, headers={"Content-Type": kind})

    assert error_of(answer, 422, "invalid_input")


def test_another_method_is_told_apart_from_another_path(live: LiveServer) -> None:
    error_of(live.call("PATCH", "/v1/runs"), 405, "method_not_allowed")
    assert error_of(live.call("GET", "/v1/run"), 404, "not_found")


CURSORS = [
    "garbage",
    "1",
    "1_",
    "nan_r-bcdfghjkmnpq",
    "1e400_r-bcdfghjkmnpq",
    "1.2.3",
    "-1.0.0.0",
    "½.0.0.0",
    "\n",
]


@pytest.mark.parametrize("cursor", CURSORS)
def test_a_cursor_that_no_page_gave_is_refused(cursor: str, live: LiveServer) -> None:
    """FL-D35: every list has pages."""
    run = live.submit()
    lists = ["/v1/runs", "/v1/artifacts", "/v1/hosts", "/v1/tokens", f"/v1/runs/{run}/logs"]
    for path in (*lists, f"/v1/runs/{run}/metrics", "/v1/events"):
        answer = live.call("GET", path, params={"cursor": cursor})
        assert error_of(answer, 422, "invalid_input")


@pytest.mark.parametrize("limit", ["0", "-1", "1000000", "1e3", "ten", "99999999999999999999999"])
def test_a_limit_out_of_range_is_refused(limit: str, live: LiveServer) -> None:
    run = live.submit()
    for path in ("/v1/runs", "/v1/artifacts", "/v1/hosts", "/v1/events", f"/v1/runs/{run}/logs"):
        assert error_of(live.call("GET", path, params={"limit": limit}), 422, "invalid_input")


def test_pages_of_every_list_hold_each_item_once(live: LiveServer) -> None:
    """FL-D35."""
    project = named("paged")
    made = {live.submit(project=project) for _ in range(7)}
    seen: list[str] = []
    cursor = ""
    while True:
        page = live.ok("GET", "/v1/runs", params={"project": project, "limit": 3, "cursor": cursor})
        seen += [run["id"] for run in page["items"]]
        if page["next"] is None:
            break
        cursor = page["next"]

    assert sorted(seen) == sorted(made)


def test_a_range_that_is_no_range_gives_the_whole(live: LiveServer) -> None:
    data = b"0123456789"
    live.ok("PUT", f"/v1/projects/default/blobs/{sha(data)}", content=data)
    path = f"/v1/blobs/{sha(data)}"

    def read(header: bytes) -> tuple[int, bytes]:
        request = (
            b"GET " + path.encode() + b"?project=default HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Authorization: Bearer " + live.operator.encode() + b"\r\nRange: " + header + b"\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", live.port), timeout=120) as connection:
            connection.sendall(request)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    assert read(b"bytes=4-") == (206, b"456789")
    for header in (
        b"bytes=\xb2-",
        b"bytes=-",
        b"bytes=-3",
        b"bytes=99-",
        b"lines=1-",
        b"bytes=" + b"9" * 40 + b"-",
    ):
        assert read(header) == (200, data), header


def test_a_newer_clients_unknown_key_is_named(live: LiveServer) -> None:
    """An answer that says only `invalid` would not tell which side is older."""
    for form in FORMS:
        run = {"argv": ["true"], "from_the_future": 1, "resources": {"qubits": 2}}
        body = json.dumps({"request_id": fresh(), "runs": [run]}).encode()
        answer = live.call("POST", "/v1/runs", content=body, headers=form)
        error = error_of(answer, 422, "invalid_input")
        assert {f.path for f in error.fields} == {"runs.0.from_the_future", "runs.0.resources.qubits"}


def test_an_older_client_leaves_out_what_is_optional(live: LiveServer) -> None:
    worker = new_host(live)
    live.submit(host=worker.name)
    capability = {"hostname": "old", "os": "linux", "arch": "x86_64"}
    ask = {"request_id": fresh(), "boot_id": worker.boot_id, "slots": 1, "capability": capability}
    lease = live.ok("POST", "/v1/claims", ask, token=worker.token)["leases"][0]

    beaten = live.ok(
        "POST", f"/v1/leases/{lease['id']}/beat", {}, token=worker.token, params={"epoch": lease["epoch"]}
    )

    assert beaten["action"] == "continue"


def test_every_answer_says_the_servers_version(live: LiveServer) -> None:
    answers = [
        live.call("GET", "/v1/health", token=None),
        live.call("GET", "/v1/runs"),
        live.call("GET", "/v1/runs", token=None),
        live.call("POST", "/v1/runs", {"request_id": "x", "runs": []}),
        live.call("GET", "/v1/nowhere"),
    ]

    assert {answer.headers["corral-version"] for answer in answers} == {__version__}


HOSTILE_PATHS: dict[str, list[str]] = {
    "absolute": ["/etc/passwd"],
    "parent": ["../x"],
    "parent inside": ["a/../../x"],
    "dot": ["./x"],
    "empty part": ["a//b"],
    "backslash": ["a\\b"],
    "newline": ["a\nb"],
    "NUL": ["a\0b"],
    "twice": ["a", "a"],
    "file and folder": ["a", "a/b"],
    "long name": ["x" * 256],
    "long path": ["x/" * 2000 + "x" * 200],
    "5000 characters": ["x" * 5000],
}


@pytest.mark.parametrize("what", HOSTILE_PATHS)
def test_a_manifest_with_a_hostile_path_is_refused_for_users_and_workers(
    what: str, live: LiveServer, worker: FakeHost
) -> None:
    """FL-D47."""
    data = b"content"
    lease = worker.run()
    live.ok("PUT", f"/v1/projects/default/blobs/{sha(data)}", content=data)
    files = [record(path, data) for path in HOSTILE_PATHS[what]]
    for kind, call in (("input", live.call), ("output", lease.call)):
        path = "/v1/projects/default/artifacts" if kind == "input" else "artifacts"
        answer = call("POST", path, {"kind": kind, "files": files})
        assert answer.status_code == 422, answer.text
        assert answer.json()["code"] in ("bad_path", "invalid_input")
    assert lease.ok("POST", "finish", {})["run_state"] == "succeeded"


def test_a_manifest_must_tell_the_truth_about_its_blobs(live: LiveServer, worker: FakeHost) -> None:
    data, theirs = b"mine " + fresh().encode(), b"theirs " + fresh().encode()
    other = named("other")
    live.ok("PUT", f"/v1/projects/{other}/blobs/{sha(theirs)}", content=theirs)
    lease = worker.run()
    assert lease.put(data).status_code == 201

    def commit(*files: Json, **more: object) -> Json:
        answer = lease.call("POST", "artifacts", {"kind": "output", "files": list(files), **more})
        body: Json = {"status": answer.status_code, **answer.json()}
        return body

    assert commit(record("a", b"unknown"))["code"] == "blob_missing"
    assert commit(record("a", theirs))["code"] == "blob_missing"
    assert commit({**record("a", data), "size": len(data) + 1})["code"] == "invalid_input"
    two_sizes = [record("a", data), {**record("b", data), "size": 1}]
    assert commit(*two_sizes)["code"] == "invalid_input"
    assert commit({**record("a", data), "mode": 0o4755})["code"] == "invalid_input"
    assert commit({**record("a", data), "size": -1})["code"] == "invalid_input"
    assert commit(record("a", data), kind="code")["code"] == "invalid_input"
    assert live.ok("GET", f"/v1/runs/{lease.run_id}/artifacts")["items"] == []
    assert commit(record("a", data))["status"] == 201


def test_a_user_cannot_commit_an_output(live: LiveServer) -> None:
    for kind in ("output", "checkpoint"):
        answer = live.call("POST", "/v1/projects/default/artifacts", {"kind": kind, "files": []})
        error_of(answer, 422, "invalid_input")


def test_a_result_must_be_what_the_lease_itself_committed(live: LiveServer, worker: FakeHost) -> None:
    """FL-D38: an older artifact cannot pass for this attempt's."""
    other = live.ok("POST", "/v1/projects/default/artifacts", {"kind": "input", "files": []})["id"]
    lease = worker.run()
    for artifact in (other, "a-bcdfghjkmnpq"):
        error_of(lease.call("POST", "finish", {"artifact_id": artifact}), 409, "blob_missing")
    for artifact in ("../../x", "a-bcdfghjkmnpq\n", "a\0"):
        error_of(lease.call("POST", "finish", {"artifact_id": artifact}), 422, "invalid_input")

    assert live.ok("GET", f"/v1/runs/{lease.run_id}")["state"] == "running"


@pytest.mark.parametrize(
    "free", ["-1", "NaN", "Infinity", "1e400", "1.5", '"much"', str(2**62)], ids=lambda text: str(text)[:8]
)
def test_memory_that_no_host_can_have_is_not_believed(live: LiveServer, free: str) -> None:
    """What is free decides where runs go: what is no number of bytes is refused."""
    worker = new_host(live)
    body = json.dumps(worker.ask(ram={"free_bytes": 0})).replace('"free_bytes": 0', f'"free_bytes": {free}')
    headers = {"Content-Type": "application/json"}

    answer = live.call("POST", "/v1/claims", content=body.encode(), headers=headers, token=worker.token)

    assert answer.status_code in (400, 422), answer.text
    (host,) = [one for one in live.ok("GET", "/v1/hosts")["items"] if one["name"] == worker.name]
    assert host["ram_free_bytes"] is None
    live.ok("POST", "/v1/claims", worker.ask(ram={"free_bytes": 5 << 30}), token=worker.token)
    (host,) = [one for one in live.ok("GET", "/v1/hosts")["items"] if one["name"] == worker.name]
    assert host["ram_free_bytes"] == 5 << 30


@pytest.mark.parametrize("half", ["\ud800", "x\udfff"])
def test_half_a_character_breaks_no_request(half: str, live: LiveServer, worker: FakeHost) -> None:
    """ATK6-05: in these places it made the server fail."""
    spec = {"kind": "service", "service": {"entry": {"app": half}}}
    deployed = {"name": named("app"), "spec": spec, "functions": {"f": {}}}
    error_of(live.call("POST", "/v1/endpoints", deployed), 422, "invalid_input")
    options = {"url": live.url, "folder": "/nowhere", half: 1}
    added = live.call("POST", "/v1/executors", {"name": named("x"), "kind": "slurm", "options": options})
    error_of(added, 422, "invalid_input")

    lease = worker.run()
    lease.ok("POST", "events", {"seq": 1, "notes": [half]})
    lease.ok("POST", "fail", {"reason": "code_error", "detail": f"a {half}"})
    shown = live.ok("GET", f"/v1/runs/{lease.run_id}")
    assert shown["detail"].startswith("a ")


def test_a_body_that_is_not_ascii_is_no_base64(live: LiveServer, worker: FakeHost) -> None:
    """ATK6-05: it made the server fail."""
    endpoint = deploy(live, worker)
    call = {"function": "f", "args": {"format": "plain1", "body": "é" * 8}}
    body = {"endpoint": endpoint.name, "calls": [call]}

    assert error_of(live.call("POST", "/v1/calls", body), 422, "invalid_input")
    live.ok("DELETE", f"/v1/endpoints/default/{endpoint.name}")
