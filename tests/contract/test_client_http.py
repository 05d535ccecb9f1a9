"""The client against a server that misbehaves: breaks off, lies, stays silent, is away."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from corral.client.corral import Corral
from corral.client.files.blobs import BlobSink, BlobSource
from corral.client.files.digest import FileChanged
from corral.client.files.tree import scan
from corral.client.files.upload import upload
from corral.client.http.stream import ServerEvent, lines, parse_events
from corral.client.http.transport import Backoff, Transport, quoted
from corral.domain.errors import (
    CorralError,
    DiskFull,
    InvalidInput,
    NotFound,
    ServerUnreachable,
    StoreUnavailable,
)
from corral.wire.health import Health
from corral.wire.logs import LogLine
from corral.wire.runs import RunView

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Gives each request to the test's own function."""

    protocol_version = "HTTP/1.1"
    answer: Answer

    def do_GET(self) -> None:
        type(self).answer(self)

    do_POST = do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        return None

    def send(
        self, status: int, body: bytes, kind: str = "application/json", length: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    @property
    def query(self) -> dict[str, str]:
        return {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}

    def cut(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(2)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    started: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(answer: Answer) -> str:
        handler = type("Given", (Handler,), {"answer": staticmethod(answer)})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        started.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in started:
        server.shutdown()
        server.server_close()
        thread.join(timeout=120)


def transport(url: str, tries: int = 3) -> Transport:
    return Transport(url, "corral_t_s", backoff=Backoff(tries=tries), sleep=lambda _: None)


def test_an_error_comes_back_as_the_class_that_the_server_raised(serve: Callable[[Answer], str]) -> None:
    body = {"code": "disk_full", "message": "no room", "hint": "Free some.", "fields": []}
    url = serve(lambda handler: handler.send(507, json.dumps(body).encode()))

    with transport(url) as client, pytest.raises(DiskFull, match="no room") as caught:
        client.once("GET", "/v1/health", Health)

    assert caught.value.hint == "Free some."


def test_an_unknown_code_keeps_its_message_and_fields(serve: Callable[[Answer], str]) -> None:
    body = {"code": "novel", "message": "new thing", "hint": "h", "fields": [{"path": "a", "message": "b"}]}
    url = serve(lambda handler: handler.send(400, json.dumps(body).encode()))

    with transport(url) as client, pytest.raises(CorralError, match="new thing") as caught:
        client.get("/v1/health", Health)

    assert type(caught.value) is CorralError
    assert caught.value.fields[0].path == "a"


@pytest.mark.parametrize("status", [200, 404, 500])
def test_what_is_not_json_is_said_to_be_no_corral_server(status: int, serve: Callable[[Answer], str]) -> None:
    url = serve(lambda handler: handler.send(status, b"<html>nginx</html>", "text/html"))

    with transport(url) as client, pytest.raises(CorralError, match=r"not as Corral does.*nginx"):
        client.get("/v1/health", Health)


def test_an_answer_of_another_version_names_the_field(serve: Callable[[Answer], str]) -> None:
    url = serve(lambda handler: handler.send(200, b'{"ok": true}'))

    with transport(url) as client, pytest.raises(CorralError, match="version is required"):
        client.get("/v1/health", Health)


def test_a_refused_connection_is_unreachable_with_a_hint() -> None:
    with transport("http://127.0.0.1:9") as client, pytest.raises(ServerUnreachable) as caught:
        client.get("/v1/health", Health)

    assert "http://127.0.0.1:9" in caught.value.message
    assert "corral up" in caught.value.hint


def test_a_repeatable_call_outlasts_a_server_that_is_away_for_a_moment(
    serve: Callable[[Answer], str],
) -> None:
    calls: list[str] = []

    def answer(handler: Handler) -> None:
        calls.append(handler.path)
        if len(calls) == 1:
            handler.cut()
        elif len(calls) == 2:
            handler.send(503, b'{"code": "store_unavailable", "message": "locked"}')
        else:
            handler.send(200, b'{"ok": true, "version": "1"}')

    with transport(serve(answer)) as client:
        assert client.get("/v1/health", Health).ok

    assert len(calls) == 3


def test_a_call_that_must_not_happen_twice_is_tried_once(serve: Callable[[Answer], str]) -> None:
    calls: list[str] = []

    def answer(handler: Handler) -> None:
        calls.append(handler.path)
        handler.send(503, b'{"code": "store_unavailable", "message": "locked"}')

    with transport(serve(answer)) as client, pytest.raises(StoreUnavailable):
        client.once("POST", "/v1/tokens", Health)

    assert len(calls) == 1


@pytest.mark.parametrize("text", ["../x", "a/b", "a\nb", "a\0b", "ü", "?x=1", "%2e"])
def test_an_id_stays_one_segment_of_the_path(text: str) -> None:
    assert not set(quoted(text)) & set("/\n\0?#ü")


@pytest.mark.parametrize("text", ["", ".", ".."])
def test_an_id_that_is_no_segment_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        quoted(text)


def test_lines_end_at_newlines_only() -> None:
    chunks = ["a\u2028b\x85", "c\n", "\r\n", "last"]

    assert list(lines(chunk.encode() for chunk in chunks)) == ["a\u2028b\x85c", "", "last"]


def test_events_are_parsed_across_comments_and_joined_data() -> None:
    text = [": ping", "", "id: 7", "event: log", "data: a", "data: b", "", "data:c", "", "data: cut off"]

    assert list(parse_events(text)) == [ServerEvent("log", "a\nb", "7"), ServerEvent("message", "c", "7")]


def run_json(state: str) -> str:
    fields = {"id": "r-bcdfghjkmnpq", "project": "p", "name": "n", "kind": "command", "state": state}
    return json.dumps({**fields, "priority": 0, "created_at": 0})


def test_a_broken_stream_goes_on_after_the_last_line_that_arrived(serve: Callable[[Answer], str]) -> None:
    cursors: list[tuple[str | None, str | None]] = []

    def answer(handler: Handler) -> None:
        cursors.append((handler.query.get("cursor"), handler.query.get("tail")))
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        n = len(cursors)
        line = json.dumps({"at": 0, "stream": "stdout", "text": f"line {n}"})
        handler.wfile.write(f"id: c{n}\nevent: log\ndata: {line}\n\n".encode())
        if n < 3:
            # Half an event, which must not be delivered.
            handler.wfile.write(b"id: lost\nevent: log\ndata: {")
        else:
            handler.wfile.write(f"event: end\ndata: {run_json('succeeded')}\n\n".encode())
        handler.cut()

    told: list[CorralError] = []
    with Corral(serve(answer), "t", backoff=Backoff(first_s=0, most_s=0)) as corral:
        items = list(corral.runs.follow("r-bcdf", tail=5, reconnecting=lambda error, _: told.append(error)))

    assert [item.text for item in items if isinstance(item, LogLine)] == ["line 1", "line 2", "line 3"]
    assert isinstance(items[-1], RunView)
    # Asked for again, the tail would repeat what was shown.
    assert cursors == [(None, "5"), ("c1", None), ("c2", None)]
    assert len(told) == 2


def test_a_stream_that_the_server_refuses_is_not_tried_again(serve: Callable[[Answer], str]) -> None:
    url = serve(lambda handler: handler.send(404, b'{"code": "not_found", "message": "no run r-x"}'))

    with Corral(url, "t") as corral, pytest.raises(NotFound):
        list(corral.runs.follow("r-x"))


class Store:
    """Keeps blobs as the real server does, and breaks where it is told to."""

    def __init__(self, break_after: int | None = None) -> None:
        self.blobs: dict[str, bytes] = {}
        self.partial: dict[str, bytes] = {}
        self.break_after = break_after
        self.packs = 0
        self.lock = threading.Lock()

    def answer(self, handler: Handler) -> None:
        path = urlsplit(handler.path).path
        if path.endswith("/query"):
            wanted = json.loads(handler.body())["blobs"]
            missing = [digest for digest in wanted if digest not in self.blobs]
            offsets = {digest: len(self.partial[digest]) for digest in missing if digest in self.partial}
            handler.send(200, json.dumps({"missing": missing, "offsets": offsets}).encode())
        elif path.endswith("/pack"):
            self._pack(handler)
        elif handler.command == "PUT":
            self._put(handler, path.rpartition("/")[2])
        else:
            self._get(handler, path.rpartition("/")[2])

    def _pack(self, handler: Handler) -> None:
        body, stored = handler.body(), []
        self.packs += 1
        while body:
            digest, size = body[:64].decode(), int(body[64:80], 16)
            data, body = body[80 : 80 + size], body[80 + size :]
            assert hashlib.sha256(data).hexdigest() == digest
            with self.lock:
                self.blobs[digest] = data
            stored.append({"sha256": digest, "size": size, "existed": False})
        handler.send(200, json.dumps(stored).encode())

    def _put(self, handler: Handler, digest: str) -> None:
        offset = int(handler.query.get("offset", "0"))
        have = self.partial.get(digest, b"")[:offset]
        length = int(handler.headers["Content-Length"])
        if self.break_after is not None:
            self.partial[digest] = have + handler.rfile.read(self.break_after)
            self.break_after = None
            handler.cut()
            return
        data = have + handler.rfile.read(length)
        if hashlib.sha256(data).hexdigest() != digest:
            handler.send(422, b'{"code": "digest_mismatch", "message": "not the announced bytes"}')
            return
        with self.lock:
            self.blobs[digest] = data
        handler.send(200, json.dumps({"sha256": digest, "size": len(data), "existed": False}).encode())

    def _get(self, handler: Handler, digest: str) -> None:
        start = int((handler.headers["Range"] or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        data = self.blobs[digest][start:]
        if self.break_after is not None:
            handler.send(200, data[: self.break_after], "application/octet-stream", len(data))
            self.break_after = None
            handler.cut()
            return
        handler.send(206 if start else 200, data, "application/octet-stream")


def test_a_tree_arrives_whole_and_what_is_there_is_not_sent_again(
    serve: Callable[[Answer], str], tmp_path: Path
) -> None:
    for n in range(1200):
        (tmp_path / f"small-{n}").write_bytes(b"" if n == 0 else f"content {n % 600}".encode())
    (tmp_path / "large").write_bytes(bytes(range(256)) * 1024)
    tree, store, seen = scan(tmp_path, ignore=None), Store(), list[tuple[int, int, int]]()
    with transport(serve(store.answer)) as client:
        sink = BlobSink.of_project(client, "p")
        upload(tree, tmp_path, sink, progress=lambda *counts: seen.append(counts))
        packs = store.packs
        upload(tree, tmp_path, sink)

    assert set(store.blobs) == {entry.digest for entry in tree.files}
    assert seen[-1] == (tree.total_bytes, tree.total_bytes, len(tree.files))
    assert store.packs == packs == 2


def test_a_broken_upload_goes_on_where_it_broke(serve: Callable[[Answer], str], tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(range(256)) * 32768)
    tree, store, seen = scan(tmp_path, ignore=None), Store(break_after=3_000_000), list[int]()
    with transport(serve(store.answer)) as client:
        sink = BlobSink.of_lease(client, "l-bcdfghjkmnpq", 3)
        upload(tree, tmp_path, sink, progress=lambda done, total, files: seen.append(done))

    assert store.blobs[tree.files[0].digest] == (tmp_path / "large").read_bytes()
    assert len(store.partial[tree.files[0].digest]) == 3_000_000
    assert seen == sorted(seen)
    assert seen[-1] == tree.total_bytes


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_file_that_changed_since_the_scan_is_named(
    size: int, serve: Callable[[Answer], str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"a" * size)
    tree = scan(tmp_path, ignore=None)
    (tmp_path / "file").write_bytes(b"b" * (size + 1))

    with transport(serve(Store().answer)) as client, pytest.raises(FileChanged, match="file changed"):
        upload(tree, tmp_path, BlobSink.of_project(client, "p"))


def test_a_broken_download_goes_on_where_it_broke(serve: Callable[[Answer], str]) -> None:
    data = bytes(range(256)) * 20000
    digest = hashlib.sha256(data).hexdigest()
    store = Store(break_after=1_500_000)
    store.blobs[digest] = data
    with transport(serve(store.answer)) as client:
        received = b"".join(BlobSource.of_project(client, "p").read(digest))

    assert received == data
