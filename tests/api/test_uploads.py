"""Bytes on their way in: wrong, cut short, resumed, twice at once, slow."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.live_server import FakeHost, LiveServer, error_of, fresh, named, packed, sha
from support.waiting import eventually

from corral.domain.ids import Digest
from corral.server.routes import blobs
from corral.server.services import Services

PATH = "/v1/projects/default/blobs"


def _unique(size: int) -> bytes:
    return (hashlib.sha256(fresh().encode()).digest() * (size // 32 + 1))[:size]


def _stored(live: LiveServer, data: bytes, project: str = "default") -> bytes | None:
    answer = live.call("GET", f"/v1/blobs/{sha(data)}", params={"project": project})
    return answer.content if answer.status_code == 200 else None


def _send_half(live: LiveServer, data: bytes, half: int) -> None:
    """Announce everything, send the first `half` bytes, and go away."""
    head = (
        f"PUT {PATH}/{sha(data)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {live.operator}\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", live.port), timeout=120) as connection:
        connection.sendall(head.encode() + data[:half])


def _offset(live: LiveServer, data: bytes) -> int:
    answer = live.ok("POST", f"{PATH}/query", {"blobs": [sha(data)]})
    assert answer["missing"] == [sha(data)]
    return int(answer["offsets"].get(sha(data), 0))


def _broken_off(live: LiveServer, data: bytes) -> int:
    """Send two thirds; how many of them the server kept."""
    _send_half(live, data, 2_000_000)
    return eventually(lambda: _offset(live, data), "the server to keep something")


@pytest.mark.parametrize("sent", [b"other bytes", b"", b"announce", b"announced and more"])
def test_bytes_that_are_not_the_announced_ones_are_refused(sent: bytes, live: LiveServer) -> None:
    error_of(live.call("PUT", f"{PATH}/{sha(b'announced')}", content=sent), 422, "digest_mismatch")

    assert _stored(live, b"announced") is None


@pytest.mark.parametrize(
    "digest", ["", "0" * 63, "0" * 65, "Z" * 64, sha(b"x").upper(), "sha256:" + "0" * 57]
)
def test_there_is_no_upload_without_a_digest(digest: str, live: LiveServer) -> None:
    """FL-C07, FL-D19: an empty or odd digest is refused, never skipped."""
    answer = live.call("PUT", f"{PATH}/{digest}", content=b"x")

    assert answer.status_code in (404, 405, 422), answer.text
    assert _stored(live, b"x") is None


def test_an_upload_that_broke_off_is_resumed_where_it_ended(live: LiveServer) -> None:
    data = _unique(3_000_000)
    at = _broken_off(live, data)
    assert _stored(live, data) is None

    answer = live.call("PUT", f"{PATH}/{sha(data)}", content=data[at:], params={"offset": at})

    assert answer.status_code == 201, answer.text
    assert _stored(live, data) == data


def test_a_resumed_upload_must_begin_where_the_partial_ends(live: LiveServer) -> None:
    data = _unique(3_000_000)
    at = _broken_off(live, data)
    for offset in (at + 1, len(data), 2**61):
        answer = live.call("PUT", f"{PATH}/{sha(data)}", content=data[at:], params={"offset": offset})
        error_of(answer, 409, "offset_mismatch")
    for wrong in ("-1", "x", str(2**70)):
        answer = live.call("PUT", f"{PATH}/{sha(data)}", content=b"", params={"offset": wrong})
        error_of(answer, 422, "invalid_input")

    assert live.call("PUT", f"{PATH}/{sha(data)}", content=data).status_code == 201
    assert _stored(live, data) == data


def test_a_wrong_rest_does_not_spoil_what_comes_after(live: LiveServer) -> None:
    data = _unique(3_000_000)
    at = _broken_off(live, data)
    rest = b"y" * (len(data) - at)
    answer = live.call("PUT", f"{PATH}/{sha(data)}", content=rest, params={"offset": at})
    error_of(answer, 422, "digest_mismatch")

    assert live.call("PUT", f"{PATH}/{sha(data)}", content=data).status_code == 201
    assert _stored(live, data) == data


def _slowly(data: bytes, barrier: threading.Barrier) -> Iterator[bytes]:
    yield data[: len(data) // 2]
    # Both are half way in before either goes on.
    barrier.wait(30)
    yield data[len(data) // 2 :]


def test_the_same_bytes_from_two_projects_at_once_both_arrive(live: LiveServer) -> None:
    """FL-D16: both succeed, and what is stored matches its digest."""
    data, projects = _unique(4_000_000), [named("one"), named("two")]
    barrier = threading.Barrier(2)

    def put(project: str) -> httpx.Response:
        path = f"/v1/projects/{project}/blobs/{sha(data)}"
        return live.call("PUT", path, content=_slowly(data, barrier))

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(put, projects))

    assert [answer.status_code for answer in answers] == [201, 201], [a.text for a in answers]
    assert [_stored(live, data, project) == data for project in projects] == [True, True]


def test_the_same_bytes_from_two_leases_at_once_both_arrive(live: LiveServer, worker: FakeHost) -> None:
    """FL-D16, FL-D18: each lease can commit them, with a provenance of its own."""
    data, barrier = _unique(4_000_000), threading.Barrier(2)
    leases = [worker.run(), worker.run()]

    with ThreadPoolExecutor(2) as pool:
        answers = list(
            pool.map(
                lambda lease: lease.call("PUT", f"blobs/{sha(data)}", content=_slowly(data, barrier)), leases
            )
        )

    assert [answer.status_code for answer in answers] == [201, 201], [a.text for a in answers]
    files = [{"path": "f", "sha256": sha(data), "size": len(data)}]
    made = [lease.ok("POST", "artifacts", {"kind": "output", "files": files}) for lease in leases]
    assert [artifact["run_id"] for artifact in made] == [lease.run_id for lease in leases]


def test_the_same_bytes_twice_from_one_user_at_once_never_store_anything_else(live: LiveServer) -> None:
    """FL-D16: they share a partial; one may be told to come again, but none is lied to."""
    data, barrier = _unique(4_000_000), threading.Barrier(2)

    def put(_: int) -> httpx.Response:
        return live.call("PUT", f"{PATH}/{sha(data)}", content=_slowly(data, barrier))

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(put, range(2)))

    assert 201 in [answer.status_code for answer in answers]
    assert all(a.status_code in (201, 409) for a in answers), [a.text for a in answers]
    assert _stored(live, data) == data


LIES: dict[str, Callable[[bytes], bytes]] = {
    "wrong digest": lambda data: packed((sha(b"other"), len(data), data)),
    "length past the end": lambda data: packed((sha(data), len(data) + 1, data)),
    "length too short": lambda data: packed((sha(data), len(data) - 1, data)),
    "huge length": lambda data: packed((sha(data), 2**63, data)),
    "header cut short": lambda data: sha(data).encode(),
    "no hex": lambda data: b"z" * 80 + data,
    "negative length": lambda data: sha(data).encode() + b"-000000000000001" + data,
    "second one lies": lambda data: packed((sha(data), len(data), data), (sha(b"x"), 1, b"y")),
}


@pytest.mark.parametrize("what", LIES)
def test_a_pack_that_lies_is_refused_as_a_whole(what: str, live: LiveServer) -> None:
    data = _unique(1000)

    answer = live.call("POST", f"{PATH}/pack", content=LIES[what](data))

    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] in ("digest_mismatch", "invalid_input")
    assert _stored(live, data) is None


def test_an_honest_pack_is_stored(live: LiveServer) -> None:
    items = [_unique(1000), b"", _unique(5)]
    body = packed(*((sha(data), len(data), data) for data in items))

    stored = live.ok("POST", f"{PATH}/pack", content=body)

    assert [item["sha256"] for item in stored] == [sha(data) for data in items]
    assert [_stored(live, data) for data in items] == items


def test_beats_are_answered_while_a_large_upload_is_in_flight(
    live: LiveServer, worker: FakeHost, capsys: pytest.CaptureFixture[str]
) -> None:
    """FL-D20: hashing and writing 200 MB does not stall the beats."""
    lease = worker.run()
    block = _unique(1 << 20)
    whole = hashlib.sha256()
    for _ in range(200):
        whole.update(block)
    begun, done = threading.Event(), threading.Event()
    answers: list[httpx.Response] = []

    def blocks() -> Iterator[bytes]:
        for number in range(200):
            if number == 10:
                begun.set()
            yield block

    def send() -> None:
        answers.append(lease.call("PUT", f"blobs/{whole.hexdigest()}", content=blocks()))
        done.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert begun.wait(30)
    took: list[float] = []
    while not done.is_set() and len(took) < 2000:
        start = time.perf_counter()
        assert lease.ok("POST", "beat", {})["action"] == "continue"
        took.append(time.perf_counter() - start)
    sender.join()

    assert answers[0].status_code == 201, answers[0].text
    assert len(took) > 1, "no beat was answered during the upload"
    took.sort()
    with capsys.disabled():
        middle, worst = took[len(took) // 2], took[-1]
        print(f"\n{len(took)} beats during 200 MB: median {middle * 1e3:.0f} ms, worst {worst * 1e3:.0f} ms")


def test_a_pack_holds_so_many_blobs_and_equal_ones_are_one(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATK7-07: 124,000 empty ones were a minute of the server's time, for 10 MB."""
    path, empty, asked = f"/v1/projects/{named('p')}/blobs/pack", (sha(b""), 0, b""), []

    async def watched(digest: Digest, svc: Services) -> None:
        asked.append(digest)

    monkeypatch.setattr(blobs, "wait_while_condemned", watched)
    error_of(live.call("POST", path, content=packed(*[empty] * (blobs.PACK_BLOBS + 1))), 413, "too_large")
    assert len(live.ok("POST", path, content=packed(*[empty] * 500))) == 500
    assert asked == [sha(b"")]
