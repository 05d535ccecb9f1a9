"""Whoever connects without a token holds little of the server, and not for long."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import resource
import socket
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.installation import CLEAN
from support.live_server import LiveServer, serve, sha
from support.waiting import eventually

from corral.wire.errors import ErrorBody

MAX_HEAD_BYTES, MAX_FIELDS = 64 << 10, 100
BEGUN = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n"
UNREAD = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(tmp_path_factory.mktemp("hasty"), head_s=1) as live:
        yield live


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(tmp_path_factory.mktemp("narrow"), head_s=600, waiting_per_address=8) as live:
        yield live


def connect(live: LiveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", live.port), timeout=10)


def until_closed(connection: socket.socket) -> bytes:
    """All that comes; TimeoutError if the server leaves it open."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def listed(live: LiveServer, connection: socket.socket) -> None:
    """A call with a token on a connection that stays open."""
    request = f"GET /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {live.operator}\r\n\r\n"
    connection.sendall(request.encode())
    answer(connection, 200)


def answer(connection: socket.socket, status: int) -> bytes:
    """The answer's body, which has a length."""
    found = b""
    while True:
        head, separator, body = found.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if separator and length and len(body) >= int(length[1]):
            assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
            return body
        part = connection.recv(65536)
        assert part, found
        found += part


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /v1/health?", b"a" * 65536),
        (BEGUN + b"X: ", b"a" * 65536),
        (BEGUN, b"".join(b"X-%d: a\r\n" % number for number in range(1000))),
        (BEGUN, b"X" * 65536),
        (b"", b"\r\n" * 32768),
    ],
    ids=["address", "value", "fields", "name", "empty lines"],
)
def test_a_head_without_end_is_refused_and_the_connection_closed(
    begin: bytes, piece: bytes, live: LiveServer
) -> None:
    """SEC-02: 99 MiB of headers took the server from 107 to 656 MiB, before any token was asked for."""
    with connect(live) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(begin)
            for _ in range(64):
                connection.sendall(piece)
        said = until_closed(connection)

    # Where the client went on sending, the system may have thrown the answer away.
    assert said == b"" or said.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("piece", [b"0\r\nX: ", b"1;"], ids=["trailer", "extension"])
def test_what_follows_an_answer_is_not_kept_without_end(piece: bytes, live: LiveServer) -> None:
    """SEC-02: the fields behind a body and the extensions of its pieces are limited like the head."""
    with connect(live) as connection:
        connection.sendall(UNREAD)
        answer(connection, 401)
        with contextlib.suppress(ConnectionError):
            connection.sendall(piece)
            for _ in range(64):
                connection.sendall(b"a" * 65536)
        assert not until_closed(connection).startswith(b"HTTP/1.1 2")


def test_the_limits_of_a_head_are_told_and_a_large_head_within_them_is_read(live: LiveServer) -> None:
    """SEC-02: 64 KiB and 100 fields."""
    fields = b"".join(b"X-%d: %s\r\n" % (n, b"a" * 600) for n in range(MAX_FIELDS - 1))
    assert len(BEGUN + fields) < MAX_HEAD_BYTES

    with connect(live) as connection:
        connection.sendall(BEGUN + fields + b"\r\n")
        answer(connection, 200)
    with connect(live) as connection:
        connection.sendall(BEGUN + fields + b"One: more\r\n\r\n")
        error = ErrorBody.model_validate_json(answer(connection, 431))
        assert (error.code, "100 fields" in error.message) == ("too_large", True)
        until_closed(connection)


@pytest.mark.parametrize(
    "begin", [b"", b"GET", BEGUN, b"\r\n"], ids=["nothing", "word", "field", "empty line"]
)
def test_a_request_whose_head_does_not_come_ends(begin: bytes, hasty: LiveServer) -> None:
    """SEC-03: 1,100 half-open requests stopped all service until they were closed."""
    with connect(hasty) as connection:
        connection.sendall(begin)
        assert until_closed(connection) == b""


def test_the_next_request_of_a_connection_has_no_more_time(hasty: LiveServer) -> None:
    """SEC-03: also where a caller is known; but between its requests it may rest."""
    with connect(hasty) as resting:
        listed(hasty, resting)
        with connect(hasty) as halting:
            listed(hasty, halting)
            halting.sendall(BEGUN)
            assert until_closed(halting) == b""
        listed(hasty, resting)


def test_a_stranger_does_not_keep_a_connection_by_asking_in_vain(hasty: LiveServer) -> None:
    """SEC-03: refused, it may neither rest nor send the rest of its body for ever."""
    with connect(hasty) as resting, connect(hasty) as sending:
        resting.sendall(BEGUN + b"\r\n")
        sending.sendall(UNREAD)
        answer(sending, 401)
        sending.sendall(b"1\r\na\r\n")
        assert until_closed(sending) == b""
        assert until_closed(resting).startswith(b"HTTP/1.1 200 ")


def test_an_address_holds_few_connections_that_send_nothing(narrow: LiveServer) -> None:
    """SEC-03: those that wait longest make room, and connections of known callers are not counted."""
    with contextlib.ExitStack() as stack:
        known = []
        for _ in range(12):
            known.append(stack.enter_context(connect(narrow)))
            listed(narrow, known[-1])
        silent = [stack.enter_context(connect(narrow)) for _ in range(40)]
        for connection in silent[:32]:
            assert until_closed(connection) == b""
        for connection in known:
            listed(narrow, connection)
        assert narrow.call("GET", "/v1/health", token=None).status_code == 200


@contextlib.contextmanager
def started(home: Path, *, files: tuple[int, int], **settings: str) -> Iterator[dict[str, Any]]:
    """A server in a process of its own, with these limits of open files."""
    own = {"CORRAL_HOME": str(home), "CORRAL_PORT": "0", **settings}
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {files});"
        "import sys; from corral.server.__main__ import main; sys.exit(main())"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**CLEAN, **own})
    try:
        note = home / "server.json"
        eventually(note.exists, "the server to listen")
        yield {**json.loads(note.read_text()), "hard": files[1]}
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A server with TLS in a process of its own, whose limit of open files is low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with started(tmp_path, files=(256, hard), CORRAL_TLS="on", CORRAL_HEAD_S="0.3") as about:
        yield about


@pytest.mark.skipif(not os.path.exists("/proc/self/limits"), reason="the limits of a process are in /proc")
def test_a_server_may_open_all_files_it_is_allowed_and_waits_for_no_handshake(
    process: dict[str, Any],
) -> None:
    """SEC-03: the soft limit of 1,024 files was left as it was; a TLS handshake may not take long either."""
    limits = Path(f"/proc/{process['pid']}/limits").read_text()
    soft = re.search(r"Max open files\s+(\d+)", limits)
    assert soft is not None
    assert int(soft[1]) == process["hard"]

    port = urlsplit(process["url"]).port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port), timeout=20) as silent:
        assert until_closed(silent) == b""


def silent_from(address: str, url: str, stack: contextlib.ExitStack) -> socket.socket:
    """A connection from one of the addresses of this machine, on which nothing is sent."""
    port = urlsplit(url).port
    assert port is not None
    return stack.enter_context(
        socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(address, 0))
    )


def healthy(about: dict[str, Any]) -> bool:
    verify = ssl.create_default_context(cafile=about["ca"]) if "ca" in about else False
    answer = httpx.get(f"{about['url']}/v1/health", verify=verify, timeout=20, trust_env=False)
    return answer.status_code == 200


def test_an_address_holds_few_connections_that_finish_no_handshake(tmp_path: Path) -> None:
    """ATK-11, SEC-03: under TLS they were counted from the end of the handshake on, which never came."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = {"CORRAL_TLS": "on", "CORRAL_HEAD_S": "600", "CORRAL_WAITING_PER_ADDRESS": "8"}
    with started(tmp_path, files=(256, hard), **limits) as about, contextlib.ExitStack() as stack:
        silent = [silent_from("127.0.0.1", about["url"], stack) for _ in range(40)]
        for connection in silent[:32]:
            assert until_closed(connection) == b""
        # Half of a handshake is none.
        silent[-1].sendall(b"\x16\x03\x01\x02\x00\x01")
        assert healthy(about)


@pytest.mark.skipif(sys.platform != "linux", reason="only there is all of 127.0.0.0/8 this machine")
@pytest.mark.parametrize("tls", ["on", "off"])
def test_connections_leave_the_server_files_of_its_own(tls: str, tmp_path: Path) -> None:
    """ATK-11, SEC-03: from many addresses they took every file, and the server could open none for itself."""
    with (
        started(tmp_path, files=(128, 128), CORRAL_TLS=tls, CORRAL_HEAD_S="600") as about,
        contextlib.ExitStack() as stack,
    ):
        for number in range(200):
            silent_from(f"127.0.0.{2 + number % 20}", about["url"], stack)
        assert healthy(about)
        files = Path(f"/proc/{about['pid']}/fd")
        eventually(lambda: len(list(files.iterdir())) <= 110, "some files to be free")
        data = os.urandom(1 << 20)
        uploaded = httpx.put(
            f"{about['url']}/v1/projects/default/blobs/{sha(data)}",
            content=data,
            headers={"Authorization": f"Bearer {(tmp_path / 'operator.token').read_text().strip()}"},
            verify=ssl.create_default_context(cafile=about["ca"]) if "ca" in about else False,
            timeout=20,
            trust_env=False,
        )
        assert uploaded.status_code == 201, uploaded.text


def test_a_server_that_stops_hangs_up_on_those_who_do_not_read(tmp_path: Path) -> None:
    data = os.urandom(16 << 20)
    with serve(tmp_path / "home") as live:
        live.ok("PUT", f"/v1/projects/default/blobs/{sha(data)}", content=data)
        slow, path = connect(live), f"/v1/blobs/{sha(data)}?project=default"
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {live.operator}\r\n\r\n"
        slow.sendall(request.encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 200")

    with warnings.catch_warnings(record=True) as left_open, slow:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
        assert len(until_closed(slow)) < len(data)

    assert not left_open
