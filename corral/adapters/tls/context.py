"""The server's TLS context. New connections see a new certificate; the server goes on."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Protocol

from cryptography import x509

from corral.adapters.tls.authority import OwnAuthority, WritePrivate
from corral.domain.errors import CorralError

log = logging.getLogger("corral.server.tls")
RENEW_AT = 1 / 3


class BadCertificate(CorralError):
    code = "bad_certificate"
    hint = "Check CORRAL_TLS_CERT and CORRAL_TLS_KEY: PEM files, the certificate first in its chain."


class Chain(Protocol):
    def load(self, context: ssl.SSLContext) -> None:
        """Put the certificate that holds now into the context."""
        ...

    def refresh(self, context: ssl.SSLContext) -> bool:
        """Load it anew if it changed or ends soon; whether it was."""
        ...


@dataclass(frozen=True)
class OwnChain:
    """A leaf of our own authority, made anew well before it ends, or when this machine's names change."""

    authority: OwnAuthority
    path: Path
    _: KW_ONLY
    names: Callable[[], list[str]]
    lifetime_s: float
    now: Callable[[], float]
    write_private: WritePrivate

    def load(self, context: ssl.SSLContext) -> None:
        if not self.refresh(context):
            context.load_cert_chain(self.path)

    def refresh(self, context: ssl.SSLContext) -> bool:
        if not self._is_due():
            return False
        names = self.names()
        leaf = self.authority.make_leaf(names, now=self.now(), lifetime_s=self.lifetime_s)
        self.write_private(self.path, leaf)
        log.info("made a certificate for %s", ", ".join(names))
        context.load_cert_chain(self.path)
        return True

    def _is_due(self) -> bool:
        try:
            pem = self.path.read_bytes()
            leaf = x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :])
            leaf.verify_directly_issued_by(self.authority.certificate)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, a new one is right
            return True
        left_s = leaf.not_valid_after_utc.timestamp() - self.now()
        return left_s < self.lifetime_s * RENEW_AT or not set(self.names()) <= set(names_of(leaf))


class GivenChain:
    """Files that somebody else keeps fresh."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._seen: tuple[int, ...] = ()

    def load(self, context: ssl.SSLContext) -> None:
        self._seen = self._look()
        try:
            context.load_cert_chain(self._certificate, self._key)
        except (ssl.SSLError, OSError) as error:
            raise BadCertificate(
                f"{self._certificate} and {self._key} are not a certificate and its key: {error}"
            ) from error

    def refresh(self, context: ssl.SSLContext) -> bool:
        try:
            if self._look() == self._seen:
                return False
            # First into a context that nobody uses: a certificate without its key would spoil the one in use.
            self.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self.load(context)
        except BadCertificate as error:
            # Half written, perhaps; the certificate of before serves on.
            log.warning("the new certificate is not taken yet: %s", error.message)
            return False
        return True

    def _look(self) -> tuple[int, ...]:
        try:
            seen = [path.stat() for path in (self._certificate, self._key)]
        except OSError as error:
            raise BadCertificate(f"{error.filename} cannot be read: {error.strerror}") from error
        return tuple(number for one in seen for number in (one.st_mtime_ns, one.st_ino, one.st_size))


class ServerTls:
    def __init__(self, chain: Chain, *, trusted_clients: str | None) -> None:
        """`trusted_clients` is the authority of client certificates; without it none is asked for."""
        self._chain = chain
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        if trusted_clients is not None:
            self.context.load_verify_locations(cadata=trusted_clients)
            # Optional here: users have only tokens. The middleware demands it of hosts.
            self.context.verify_mode = ssl.CERT_OPTIONAL
        chain.load(self.context)

    def refresh(self) -> None:
        if self._chain.refresh(self.context):
            log.warning("new connections see a new certificate")


def names_of(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    ]


def first_name(path: Path) -> str | None:
    """What a server with this certificate can be called; None if it says nothing usable."""
    names = names_of(x509.load_pem_x509_certificate(path.read_bytes()))
    return next((name for name in names if not name.startswith("*")), None)
