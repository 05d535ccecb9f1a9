"""A pin stands for one certificate, and nothing that comes with it is trusted."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.live_server import Json

from corral.adapters.tls.authority import load_or_make
from corral.client.corral import Corral
from corral.client.hosts.enroll import HostPreferences, JoinableServer, parse_join_token
from corral.client.http.discovery import discover
from corral.client.http.errors import UntrustedServer
from corral.client.http.transport import Backoff
from corral.domain.tokens import with_pin
from corral.files.atomic import write_private


@contextmanager
def stranger_between(shown: str, leaf: Path) -> Iterator[tuple[str, list[str]]]:
    """A server that shows this text as its authority; its address, and the tokens that it was sent."""
    sent: list[str] = []

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"ca": shown})

        def do_POST(self) -> None:
            sent.append(self.headers["Authorization"])
            self._answer({})

        def _answer(self, said: Json) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(leaf)
    server.socket = own.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}", sent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reach(url: str, tls: ssl.SSLContext | None) -> None:
    with Corral(url, None, tls=tls, backoff=Backoff(tries=1)) as corral:
        corral.health()


@pytest.mark.parametrize("order", ["real first", "own first"])
def test_who_adds_a_certificate_to_the_pinned_one_gets_no_token(tmp_path: Path, order: str) -> None:
    """ATK4-04: the pin was that of the first of two certificates, and both were trusted."""
    make = partial(load_or_make, now=time.time(), write_private=write_private)
    # Of about three authorities two end with padding, where a lenient reader stops.
    made = (make(tmp_path / f"real{n}") for n in range(100))
    real = next(one.ca_pem for one in made if "=\n--" in one.ca_pem)
    own = make(tmp_path / "own")
    (tmp_path / "leaf.pem").write_text(own.make_leaf(["127.0.0.1"], now=time.time(), lifetime_s=3600.0))
    pinned = hashlib.sha256(ssl.PEM_cert_to_DER_cert(real)).hexdigest()
    token = with_pin("corral_t-bcdfghjkmnpq_" + "s" * 43, pinned)
    both = [real, own.ca_pem] if order == "real first" else [own.ca_pem, real]

    with stranger_between("".join(both), tmp_path / "leaf.pem") as (url, sent):
        joined = JoinableServer(url, parse_join_token(token))
        joined.verify()
        with pytest.raises(UntrustedServer):
            joined.join(tmp_path / "host", HostPreferences())
        address = discover(url=url, token=token, home=tmp_path / "user")
        with pytest.raises(UntrustedServer):
            reach(url, address.tls)
    assert sent == []
    assert address.ca == real


def test_a_text_of_two_certificates_that_an_older_version_kept_is_not_trusted(tmp_path: Path) -> None:
    """ATK4-04: what was fetched once is read from the disk for ever."""
    make = partial(load_or_make, now=time.time(), write_private=write_private)
    real, own = make(tmp_path / "real").ca_pem, make(tmp_path / "own").ca_pem
    pinned = hashlib.sha256(ssl.PEM_cert_to_DER_cert(real)).hexdigest()
    (tmp_path / "trusted").mkdir()
    (tmp_path / "trusted" / f"{pinned}.pem").write_text(real + own)

    token = with_pin("corral_t-bcdfghjkmnpq_" + "s" * 43, pinned)
    assert discover(url="https://127.0.0.1:1", token=token, home=tmp_path).ca == real
