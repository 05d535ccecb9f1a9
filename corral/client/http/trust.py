"""Which servers are trusted: those whose certificate comes from a pinned authority, or the system's."""

from __future__ import annotations

import hmac
import ssl
from contextlib import suppress
from pathlib import Path

import httpx

from corral.client.http.connection import is_loopback
from corral.client.http.errors import UntrustedServer, from_response, unreachable
from corral.domain.errors import CorralError, InvalidInput
from corral.domain.hosts.certificates import certificates, first_pin, pin_of
from corral.files.atomic import write_private
from corral.wire.hosts import CaAnswer

_TIMEOUT_S = 10.0


class BadTrust(CorralError):
    code = "bad_trust"


def context(ca_pem: str | None, client_pem: Path | None = None) -> ssl.SSLContext:
    """Trusts that authority alone, or else the system's; shows the client certificate if there is one."""
    try:
        made = ssl.create_default_context(cadata=ca_pem) if ca_pem else httpx.create_ssl_context()
    except (ssl.SSLError, ValueError) as error:
        raise BadTrust(
            f"the authority's certificate cannot be read: {error}", hint="CORRAL_CA names a PEM file."
        ) from error
    if client_pem is not None:
        try:
            made.load_cert_chain(client_pem)
        except (ssl.SSLError, OSError) as error:
            raise BadTrust(
                f"{client_pem} is not a key with its certificate: {error}",
                hint="Enrol this host again with `corral host enroll`.",
            ) from error
    return made


def read_ca(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrust(
            f"the authority's certificate {path} cannot be read: {error}",
            hint="CORRAL_CA names a PEM file; the server keeps its own as `tls/ca.pem` in its home.",
        ) from error


def _pinned(text: str, pin: str) -> str | None:
    """The one certificate of a text that has this pin, written anew; None if there is none.

    Nothing else of the text is trusted: whoever stands between could add a certificate of their own.
    """
    for one in certificates(text):
        if hmac.compare_digest(pin_of(one), pin):
            return ssl.DER_cert_to_PEM_cert(one)
    return None


def fetch_ca(url: str, pin: str) -> str:
    """The certificate of the server's authority, over a connection that proves nothing yet; it must match.

    Nothing secret is sent before it has.
    """
    if not url.startswith("https://"):
        raise InvalidInput(
            f"the token pins a certificate, but {url} is not https://",
            hint="Write the address with https://, as the server's log and `corral status` show it.",
        )
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname = False
    nobody.verify_mode = ssl.CERT_NONE
    try:
        with httpx.Client(verify=nobody, trust_env=not is_loopback(url), timeout=_TIMEOUT_S) as client:
            answer = client.get(f"{url.rstrip('/')}/v1/ca")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise unreachable(url, error) from error
    if not answer.is_success:
        raise from_response(answer)
    try:
        shown = CaAnswer.model_validate_json(answer.content).ca or ""
        found, ca = first_pin(shown), _pinned(shown, pin)
    except ValueError:
        # Pydantic's errors are among them.
        found = ca = None
    if found is None:
        raise UntrustedServer(
            f"{url} shows no authority that could be checked against the token's pin",
            hint="Check that the address is that of the server which made the token.",
        )
    if ca is None:
        raise UntrustedServer(
            f"{url} is not the server that made this token: its authority is {found}, the token pins {pin}",
            hint="Check the address. If it is right, somebody may stand between: do not go on.",
        )
    return ca


def pinned_ca(url: str, pin: str, folder: Path) -> str:
    """The authority with this pin, fetched once and kept in the folder."""
    kept = folder / f"{pin}.pem"
    if kept.exists():
        # An earlier version kept the whole of what it was shown.
        with suppress(ValueError):
            if (ca := _pinned(read_ca(kept), pin)) is not None:
                return ca
    ca = fetch_ca(url, pin)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(kept, ca)
    return ca
