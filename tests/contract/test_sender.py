"""FL-D48: notices over real sockets: where they go, under which name, and what is believed of the answer."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from corral.adapters.webhook_sender import HttpSender
from corral.domain.errors import AddressRefused
from corral.domain.webhooks.addresses import parse_networks, parse_url
from corral.domain.webhooks.deliveries import DeliveryResult

LOOPBACK = parse_networks("127.0.0.0/8")
NAME = "hooks.example.com"


@dataclass
class Receiver:
    """What came, and what to answer."""

    port: int = 0
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b"ok"
    silent: threading.Event | None = None
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    receiver: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.receiver.got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        if self.receiver.silent is not None:
            self.receiver.silent.wait(30)
            return
        self.send_response(self.receiver.status)
        for name, value in self.receiver.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(self.receiver.answer)))
        self.end_headers()
        try:
            self.wfile.write(self.receiver.answer)
        except ConnectionError:
            return

    def log_message(self, *_: object) -> None:
        pass


def _serve(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (_Handler,), {"receiver": receiver}), bind_and_activate=True
    )
    server.daemon_threads = True
    if tls is not None:
        tls.sni_callback = lambda _, name, __: receiver.names.append(name)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        if receiver.silent is not None:
            receiver.silent.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    yield from _serve()


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's side with a certificate for NAME alone, and the client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "both.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cafile=str(path))


@pytest.fixture
def secure(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[Receiver]:
    yield from _serve(tls[0])


def _send(
    sender: HttpSender, url: str, body: bytes = b"{}", headers: dict[str, str] | None = None
) -> DeliveryResult:
    async def main() -> DeliveryResult:
        try:
            return await sender.send(parse_url(url), headers or {}, body)
        finally:
            await sender.close()

    return asyncio.run(main())


class Names:
    """A resolver that gives one answer after the other, as a hostile name server may."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers.pop(0)


def test_a_body_arrives_as_it_is_with_its_headers(receiver: Receiver) -> None:
    url = f"http://127.0.0.1:{receiver.port}/a/path?x=1"

    assert _send(HttpSender(LOOPBACK), url, b'{"a":1}', {"webhook-id": "d-1"}) == DeliveryResult(200)
    ((path, headers, body),) = receiver.got
    assert (path, body, headers["webhook-id"]) == ("/a/path?x=1", b'{"a":1}', "d-1")
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0"],
)
def test_nothing_is_sent_to_this_machine_however_it_is_called(host: str, receiver: Receiver) -> None:
    """FL-D48."""
    sender = HttpSender()

    sent = _send(sender, f"https://{host}:{receiver.port}/")

    assert sent.status is None
    assert "nothing is sent" in str(sent.detail) or "looked up" in str(sent.detail), sent
    with pytest.raises(AddressRefused):
        asyncio.run(sender.check(parse_url(f"https://{host}:{receiver.port}/")))
    assert receiver.got == []


def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    sent = _send(HttpSender(resolve=Names(["8.8.8.8", "10.0.0.1"])), f"https://{NAME}/")

    assert sent.detail == f"nothing is sent to {NAME}: 10.0.0.1 is a private address"


def test_plain_http_is_only_for_what_was_allowed() -> None:
    sent = _send(HttpSender(LOOPBACK, resolve=Names(["8.8.8.8"])), f"http://{NAME}/")

    assert sent.detail == f"nothing is sent to {NAME} without TLS: use https://"


def test_a_name_is_looked_up_once_and_the_judged_address_is_called(receiver: Receiver) -> None:
    """A second answer of the name server has nobody to hear it."""
    names = Names(["127.0.0.1"], ["10.0.0.1"])

    sent = _send(HttpSender(LOOPBACK, resolve=names), f"http://{NAME}:{receiver.port}/x")

    assert (sent.status, names.asked) == (200, [NAME])
    assert receiver.got[0][1]["host"] == f"{NAME}:{receiver.port}"


def test_the_certificate_must_be_that_of_the_name(
    secure: Receiver, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    good = HttpSender(LOOPBACK, resolve=Names(["127.0.0.1"]), tls=tls[1])
    other = HttpSender(LOOPBACK, resolve=Names(["127.0.0.1"]), tls=tls[1])
    unknown = HttpSender(LOOPBACK, resolve=Names(["127.0.0.1"]))

    assert _send(good, f"https://{NAME}:{secure.port}/").status == 200
    assert secure.names == [NAME]
    refused = _send(other, f"https://other.example.com:{secure.port}/")
    assert refused.status is None
    assert "certificate" in str(refused.detail).lower()
    assert _send(unknown, f"https://{NAME}:{secure.port}/").status is None
    assert len(secure.got) == 1


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.status = 307
    receiver.headers = {"location": f"http://127.0.0.1:{receiver.port}/elsewhere"}

    sent = _send(HttpSender(LOOPBACK), f"http://127.0.0.1:{receiver.port}/")

    assert (sent.status, len(receiver.got)) == (307, 1)
    assert "redirects are not followed" in str(sent.detail)


def test_only_the_status_of_an_answer_is_kept(receiver: Receiver) -> None:
    """What stands behind an address is not to be read through the server."""
    receiver.status, receiver.answer = 500, b"internal-document " * 1_000_000
    receiver.headers = {"retry-after": "120"}

    sent = _send(HttpSender(LOOPBACK), f"http://127.0.0.1:{receiver.port}/")

    assert sent == DeliveryResult(500, "it answered 500", 120.0)


def test_a_receiver_that_says_nothing_is_left(receiver: Receiver) -> None:
    receiver.silent = threading.Event()

    sent = _send(HttpSender(LOOPBACK, timeout_s=0.3), f"http://127.0.0.1:{receiver.port}/")

    assert sent.status is None
    assert "0.3 s" in str(sent.detail) or "Timeout" in str(sent.detail)


def test_a_closed_port_and_an_unknown_name_are_told(receiver: Receiver) -> None:
    async def nobody(host: str, port: int) -> list[str]:
        raise OSError("Name or service not known")

    refused = _send(HttpSender(LOOPBACK), "http://127.0.0.1:1/")
    unknown = _send(HttpSender(LOOPBACK, resolve=nobody), f"https://{NAME}/")

    assert refused.status is None
    assert "Connect" in str(refused.detail)
    assert unknown.detail == f"{NAME} cannot be looked up: Name or service not known"


def test_a_proxy_of_the_environment_is_not_asked(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    assert _send(HttpSender(LOOPBACK), f"http://127.0.0.1:{receiver.port}/").status == 200
