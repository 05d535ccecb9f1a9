"""The server behind TLS: who is trusted, for how long, and whose certificate belongs to whom."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.clock import JumpingClock
from support.live_server import Json, LiveServer, error_of, fresh, named, serve

from corral.adapters.tls.authority import load_or_make
from corral.adapters.tls.context import BadCertificate, names_of
from corral.bootstrap.server import build_transport
from corral.client.corral import Corral
from corral.client.hosts.key import make_key
from corral.client.http.discovery import discover
from corral.client.http.errors import UntrustedServer
from corral.client.http.transport import Backoff
from corral.client.http.trust import context, fetch_ca
from corral.domain.errors import CorralError, InvalidInput, ServerUnreachable
from corral.domain.ids import new_host_id
from corral.domain.tokens import split_pin, with_pin
from corral.files.atomic import write_private
from corral.settings import Settings

DAY_S = 86400.0
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("home")
    with serve(
        home, tls="on", tls_clients="require", tls_names="corral.example", tls_leaf_s=HOUR_S
    ) as server:
        yield server


def trust_of(live: LiveServer) -> str:
    assert live.transport is not None
    assert live.transport.trust.ca_pem is not None
    return live.transport.trust.ca_pem


def pin(live: LiveServer) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(trust_of(live))).hexdigest()


class JoinedHost:
    """With a key that was made here, and the certificate that the server signed for it."""

    def __init__(self, live: LiveServer, folder: Path) -> None:
        self.live = live
        self.name = named("host")
        token = live.ok("POST", "/v1/tokens", {"scope": "join"})["token"]
        key = make_key()
        body = {
            "request_id": fresh(),
            "hostname": self.name,
            "certificate_request": key.request_pem,
        }
        made = live.ok("POST", "/v1/hosts/enroll", body, token=token)
        self.id, self.token, self.certificate = made["host_id"], made["token"], made["certificate"]
        self.pem = folder / f"{self.name}.pem"
        self.pem.write_text(key.with_certificate(self.certificate) or "")

    def call(self, path: str, body: Json, *, pem: Path | None = None, method: str = "POST") -> httpx.Response:
        with httpx.Client(verify=context(trust_of(self.live), pem), trust_env=False, timeout=30) as client:
            headers = {"Authorization": f"Bearer {self.token}"}
            return client.request(method, f"{self.live.url}{path}", json=body, headers=headers)


def claim() -> Json:
    return {"request_id": fresh(), "boot_id": fresh(), "slots": 1, "max_leases": 1}


def served_certificate(live: LiveServer, trusted: ssl.SSLContext) -> x509.Certificate:
    raw = socket.create_connection(("127.0.0.1", live.port), timeout=120)
    with trusted.wrap_socket(raw, server_hostname="127.0.0.1") as shown:
        der = shown.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


def test_off_loopback_there_is_tls_unless_it_is_refused_in_words(tmp_path: Path) -> None:
    """FL-C12: never loopback or nothing."""
    clock = JumpingClock()

    def has_tls(**given: Any) -> bool:
        return build_transport(Settings(home=tmp_path, **given), clock.now).tls is not None

    assert [has_tls(host=host) for host in ("0.0.0.0", "::", "192.0.2.7", "box.example")] == [True] * 4
    assert [has_tls(host=host) for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8")] == [False] * 4
    assert has_tls(host="127.0.0.1", tls="on")
    assert not has_tls(host="0.0.0.0", tls="off")
    with pytest.raises(InvalidInput, match="CORRAL_TLS is off"):
        has_tls(host="0.0.0.0", tls="off", tls_clients="require")
    with pytest.raises(InvalidInput, match="go together"):
        has_tls(tls_cert=tmp_path / "cert.pem")


def test_the_authoritys_key_is_private_and_stays_the_same(tmp_path: Path) -> None:
    first = load_or_make(tmp_path / "tls", now=1e9, write_private=write_private)
    again = load_or_make(tmp_path / "tls", now=2e9, write_private=write_private)

    assert first.ca_pem == again.ca_pem == (tmp_path / "tls" / "ca.pem").read_text()
    assert stat.S_IMODE((tmp_path / "tls" / "authority.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    assert "PRIVATE" not in (tmp_path / "tls" / "ca.pem").read_text()
    (tmp_path / "tls" / "authority.pem").write_text("not a key")
    with pytest.raises(CorralError, match="cannot be read"):
        load_or_make(tmp_path / "tls", now=2e9, write_private=write_private)


def test_a_pinned_authority_is_fetched_checked_and_kept(live: LiveServer, tmp_path: Path) -> None:
    made = live.token("user")
    assert made["ca_pin"] == pin(live)

    address = discover(url=live.url, token=with_pin(made["token"], made["ca_pin"]), home=tmp_path)

    with Corral(address.url, address.token, tls=address.tls) as corral:
        assert corral.runs.page().items == []
    assert (tmp_path / "trusted" / f"{pin(live)}.pem").read_text() == trust_of(live)
    # The second time nothing is fetched: the address need not even be there.
    gone = "https://127.0.0.1:1"
    assert discover(url=gone, token=with_pin(made["token"], pin(live)), home=tmp_path).ca == trust_of(live)


def test_a_wrong_pin_is_refused_before_the_token_is_sent(live: LiveServer) -> None:
    with pytest.raises(UntrustedServer, match="is not the server that made this token") as caught:
        fetch_ca(live.url, "0" * 64)
    assert "do not go on" in caught.value.hint
    with pytest.raises(InvalidInput, match="not https"):
        fetch_ca(live.url.replace("https", "http"), pin(live))


def test_a_pin_does_not_change_what_the_server_is_shown() -> None:
    text = "corral_t-bcdfghjkmnpq_" + "s" * 43
    assert split_pin(with_pin(text, "a" * 64)) == (text, "a" * 64)
    assert split_pin(with_pin(text, None)) == (text, None)
    assert split_pin(text + ".short") == (text + ".short", None)


def reach(url: str, tls: ssl.SSLContext | None = None) -> None:
    with Corral(url, None, tls=tls, backoff=Backoff(tries=1)) as corral:
        corral.health()


def test_what_is_wrong_with_a_certificate_is_said_with_what_to_do(live: LiveServer, tmp_path: Path) -> None:
    with pytest.raises(UntrustedServer, match="nobody that is trusted here") as caught:
        reach(live.url)
    assert "CORRAL_CA" in caught.value.hint
    other = load_or_make(tmp_path / "other", now=live.clock.now(), write_private=write_private)
    with pytest.raises(UntrustedServer, match="nobody that is trusted here"):
        reach(live.url, context(other.ca_pem))
    cert, key = given_files(tmp_path / "given", tmp_path / "other", "elsewhere.example")
    with serve(tmp_path / "home", tls_cert=cert, tls_key=key) as elsewhere:
        with pytest.raises(UntrustedServer, match="other names") as caught:
            reach(elsewhere.url, context(other.ca_pem))
        assert "CORRAL_TLS_NAMES" in caught.value.hint


def test_the_wrong_scheme_is_told_apart_from_a_server_that_is_away(live: LiveServer, tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachable) as caught:
        reach(live.url.replace("https://", "http://"))
    assert "https://" in caught.value.hint
    with serve(tmp_path / "plain") as plain:
        with pytest.raises(ServerUnreachable) as caught:
            reach(plain.url.replace("http://", "https://"), context(trust_of(live)))
        assert "http://" in caught.value.hint


def test_the_certificate_names_what_the_server_is_called(live: LiveServer) -> None:
    names = names_of(served_certificate(live, context(trust_of(live))))
    assert {"localhost", "127.0.0.1", "::1", "corral.example"} <= set(names)


def test_a_certificate_is_renewed_without_a_restart(live: LiveServer) -> None:
    """A connection that is open goes on; the next one sees the new certificate. FL-C12."""
    assert live.transport is not None
    assert live.transport.tls is not None
    trusted = context(trust_of(live))
    before = served_certificate(live, trusted)
    with httpx.Client(verify=trusted, trust_env=False) as client:
        assert client.get(f"{live.url}/v1/health").json()["ok"]
        live.transport.tls.refresh()
        assert served_certificate(live, trusted) == before
        live.clock.ahead_s += HOUR_S * 0.7
        try:
            live.transport.tls.refresh()
        finally:
            live.clock.ahead_s -= HOUR_S * 0.7
        assert client.get(f"{live.url}/v1/health").json()["ok"]
    after = served_certificate(live, trusted)
    assert after.serial_number != before.serial_number
    assert after.not_valid_after_utc > before.not_valid_after_utc


def test_a_name_that_this_machine_gains_is_added(tmp_path: Path) -> None:
    clock = JumpingClock()
    first = Settings(home=tmp_path, host="0.0.0.0")
    build_transport(first, clock.now)
    leaf = tmp_path / "tls" / "leaf.pem"
    before = leaf.read_bytes()
    build_transport(first, clock.now)
    assert leaf.read_bytes() == before

    build_transport(Settings(home=tmp_path, host="0.0.0.0", tls_names="new.example"), clock.now)

    pem = leaf.read_bytes()
    assert "new.example" in names_of(x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERT") :]))


def given_files(folder: Path, authority: Path, *names: str) -> tuple[Path, Path]:
    """As another authority would write them: key and certificate apart."""
    folder.mkdir(exist_ok=True)
    made = load_or_make(authority, now=JumpingClock().now(), write_private=write_private)
    leaf = made.make_leaf(names, now=JumpingClock().now(), lifetime_s=DAY_S)
    key, found, certificate = leaf.partition("-----BEGIN CERTIFICATE")
    (folder / "key.pem").write_text(key)
    (folder / "cert.pem").write_text(found + certificate)
    return folder / "cert.pem", folder / "key.pem"


def test_given_certificates_are_used_and_picked_up_when_they_change(tmp_path: Path) -> None:
    cert, key = given_files(tmp_path / "given", tmp_path / "theirs", "first.example", "127.0.0.1")
    ca = tmp_path / "theirs" / "ca.pem"
    with serve(tmp_path / "home", tls_cert=cert, tls_key=key, tls_ca=ca) as live:
        assert live.transport is not None
        assert live.transport.tls is not None
        assert live.transport.name == "first.example"
        assert not (tmp_path / "home" / "tls").exists()
        trusted = context(ca.read_text())
        assert names_of(served_certificate(live, trusted))[0] == "first.example"
        # Half of a change: the certificate of before serves on.
        kept = key.read_text()
        key.write_text("half")
        live.transport.tls.refresh()
        assert names_of(served_certificate(live, trusted))[0] == "first.example"
        key.write_text(kept)

        given_files(tmp_path / "given", tmp_path / "theirs", "second.example", "127.0.0.1")
        live.transport.tls.refresh()

        assert names_of(served_certificate(live, trusted))[0] == "second.example"


def test_a_certificate_without_its_key_is_refused_at_the_start(tmp_path: Path) -> None:
    cert, _ = given_files(tmp_path / "one", tmp_path / "theirs", "a.example")
    _, key = given_files(tmp_path / "two", tmp_path / "theirs", "b.example")
    settings = Settings(home=tmp_path, tls_cert=cert, tls_key=key)
    with pytest.raises(BadCertificate, match="not a certificate and its key"):
        build_transport(settings, JumpingClock().now)
    missing = Settings(home=tmp_path, tls_cert=tmp_path / "none.pem", tls_key=key)
    with pytest.raises(CorralError, match=r"none\.pem"):
        build_transport(missing, JumpingClock().now)


def test_a_hosts_certificate_is_bound_to_its_token(live: LiveServer, tmp_path: Path) -> None:
    """On the short path (claims) and on the long one (a route of the framework) alike."""
    one, other = JoinedHost(live, tmp_path), JoinedHost(live, tmp_path)
    certificate = x509.load_pem_x509_certificate(one.certificate.encode())
    assert certificate.subject.rfc4514_string() == f"CN={one.id}"
    for path, body, method in [("/v1/claims", claim(), "POST"), ("/v1/hosts/self", {}, "GET")]:
        assert one.call(path, body, pem=one.pem, method=method).status_code == 200
        without = error_of(one.call(path, body, method=method), 403, "forbidden")
        assert "corral host enroll" in without.hint
        wrong = error_of(one.call(path, body, pem=other.pem, method=method), 403, "forbidden")
        assert "another host" in wrong.message


def test_a_connection_that_is_known_is_bound_too(live: LiveServer, tmp_path: Path) -> None:
    """The server remembers tokens by connection; another's token on it is refused all the same."""
    one, other = JoinedHost(live, tmp_path), JoinedHost(live, tmp_path)
    with httpx.Client(verify=context(trust_of(live), one.pem), trust_env=False, timeout=30) as client:

        def call(token: str) -> httpx.Response:
            return client.post(
                f"{live.url}/v1/claims", json=claim(), headers={"Authorization": f"Bearer {token}"}
            )

        assert [call(one.token).status_code for _ in range(3)] == [200] * 3
        assert [call(other.token).status_code for _ in range(2)] == [403] * 2
        assert call(one.token).status_code == 200


def test_a_certificate_of_a_stranger_does_not_get_in(live: LiveServer, tmp_path: Path) -> None:
    """Signed by another authority, in the name of a host of ours."""
    host = JoinedHost(live, tmp_path)
    stranger = load_or_make(tmp_path / "stranger", now=live.clock.now(), write_private=write_private)
    forged = tmp_path / "forged.pem"
    forged.write_text(stranger.make_client(host.id, now=live.clock.now(), lifetime_s=DAY_S))
    with pytest.raises(httpx.TransportError):
        host.call("/v1/hosts/self", {}, pem=forged, method="GET")
    # Nor does the server's own certificate: it is not one of a client.
    with pytest.raises(httpx.TransportError):
        host.call("/v1/hosts/self", {}, pem=live.home / "tls" / "leaf.pem", method="GET")


def test_users_need_no_certificate(live: LiveServer) -> None:
    assert live.ok("GET", "/v1/hosts")["items"]


@pytest.mark.parametrize("request_pem", ["", "not a request", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"])
def test_a_bad_certificate_request_uses_no_token_up(request_pem: str, live: LiveServer) -> None:
    token = live.ok("POST", "/v1/tokens", {"scope": "join"})["token"]
    body = {"request_id": fresh(), "hostname": named("h"), "certificate_request": request_pem}

    error_of(live.call("POST", "/v1/hosts/enroll", body, token=token), 422, "invalid_input")

    assert live.call(
        "POST", "/v1/hosts/enroll", {**body, "certificate_request": None}, token=token
    ).is_success


def test_a_host_cannot_choose_whose_certificate_it_gets(live: LiveServer) -> None:
    victim = new_host_id()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, victim)])
    asked = x509.CertificateSigningRequestBuilder().subject_name(name)
    asked = asked.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pem = asked.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    text = pem.public_bytes(serialization.Encoding.PEM).decode()
    token = live.ok("POST", "/v1/tokens", {"scope": "join"})["token"]
    body = {"request_id": fresh(), "hostname": named("h"), "certificate_request": text}

    made = live.ok("POST", "/v1/hosts/enroll", body, token=token)

    got = x509.load_pem_x509_certificate(made["certificate"].encode())
    assert got.subject.rfc4514_string() == f"CN={made['host_id']}"
    assert not got.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert got.not_valid_after_utc > datetime.now(UTC)


def test_the_short_path_works_over_tls(live: LiveServer, tmp_path: Path) -> None:
    """Submit, claim, beat and finish over one connection."""
    host = JoinedHost(live, tmp_path)
    run = live.submit(host=host.name)
    with httpx.Client(verify=context(trust_of(live), host.pem), trust_env=False, timeout=30) as client:
        headers = {"Authorization": f"Bearer {host.token}", "Content-Type": "application/json"}

        def post(path: str, body: Json) -> Json:
            answer = client.post(f"{live.url}{path}", content=json.dumps(body), headers=headers)
            assert answer.is_success, answer.text
            found: Json = answer.json()
            return found

        capability = {"hostname": "box", "os": "linux", "arch": "x86_64", "cores": 1}
        lease = post("/v1/claims", {**claim(), "capability": capability})["leases"][0]
        assert lease["run_id"] == run
        path = f"/v1/leases/{lease['id']}"
        assert post(f"{path}/beat?epoch={lease['epoch']}", {})["action"] == "continue"
        assert post(f"{path}/finish?epoch={lease['epoch']}", {})["run_state"] == "succeeded"


def test_no_executor_is_added_where_its_workers_could_not_get_in(live: LiveServer, tmp_path: Path) -> None:
    """They come with a token alone, which is worth nothing where certificates are required."""
    options = {"url": live.url, "folder": str(tmp_path)}

    refused = live.call("POST", "/v1/executors", {"name": "hpc", "kind": "slurm", "options": options})

    assert refused.status_code == 409
    assert "CORRAL_TLS_CLIENTS=require" in refused.json()["message"]
    assert "let hosts join" in refused.json()["hint"]
    assert live.ok("GET", "/v1/executors")["items"] == []
