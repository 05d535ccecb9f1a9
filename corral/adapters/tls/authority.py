"""An authority of our own, made at the first start and kept for years.

Its key and certificate are one file, so that a kill between two writes cannot part them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from corral.domain.errors import CorralError, InvalidInput
from corral.domain.ids import HostId

CA_LIFETIME = timedelta(days=3650)
# Clocks differ, and a machine without a battery may believe in yesterday.
BACKDATED = timedelta(days=1)
MIN_RSA_BITS = 2048

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
WritePrivate = Callable[[Path, str], None]


class BadAuthority(CorralError):
    code = "bad_authority"
    hint = "Restore it from a backup; if it is removed, a new one is made, and every host must enrol again."


class OwnAuthority:
    # Of its own certificate, from the day on which it was made.
    lifetime_s = CA_LIFETIME.total_seconds()

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self._key = key

    @property
    def ca_pem(self) -> str:
        return _pem(self.certificate)

    def sign_host(self, request_pem: str, host_id: HostId, *, now: float, lifetime_s: float) -> str:
        key = _sound_key(request_pem)
        return self._sign(host_id, key, ExtendedKeyUsageOID.CLIENT_AUTH, now=now, lifetime_s=lifetime_s)

    def make_leaf(self, names: Sequence[str], *, now: float, lifetime_s: float) -> str:
        """A fresh key with a server's certificate for these names and addresses, in one PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        return _key_pem(key) + self._sign(
            "corral server", key.public_key(), usage, names=names, now=now, lifetime_s=lifetime_s
        )

    def make_client(self, host_id: HostId, *, now: float, lifetime_s: float) -> str:
        """A key and a client certificate in one PEM, for the worker beside this server."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.CLIENT_AUTH
        return _key_pem(key) + self._sign(host_id, key.public_key(), usage, now=now, lifetime_s=lifetime_s)

    def _sign(
        self,
        subject: str,
        key: PublicKey,
        usage: x509.ObjectIdentifier,
        *,
        names: Sequence[str] = (),
        now: float,
        lifetime_s: float,
    ) -> str:
        at = datetime.fromtimestamp(now, UTC)
        ends = min(at + timedelta(seconds=lifetime_s), self.certificate.not_valid_after_utc)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        draft = (
            _draft(_name(subject), self.certificate.subject, key, begins=at, ends=ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(issuer, critical=False)
        )
        if names:
            general = x509.SubjectAlternativeName([_general(name) for name in names])
            draft = draft.add_extension(general, critical=False)
        return _pem(draft.sign(self._key, hashes.SHA256()))


def load_or_make(folder: Path, *, now: float, write_private: WritePrivate) -> OwnAuthority:
    """The authority of this folder; `ca.pem` in it is for others to read."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = folder / "authority.pem"
    try:
        made = _load(kept)
    except FileNotFoundError:
        write_private(kept, _make(now))
        made = _load(kept)
    public = folder / "ca.pem"
    if not public.exists() or public.read_text(encoding="ascii") != made.ca_pem:
        write_private(public, made.ca_pem)
    return made


def _load(path: Path) -> OwnAuthority:
    pem = path.read_bytes()
    try:
        key = serialization.load_pem_private_key(pem, password=None)
        certificate = x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :])
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadAuthority(f"{path} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise BadAuthority(f"{path} does not hold a certificate and the key of it")
    return OwnAuthority(certificate, key)


def _make(now: float) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("corral authority")
    at = datetime.fromtimestamp(now, UTC)
    certificate = (
        _draft(name, name, key.public_key(), begins=at, ends=at + CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _key_pem(key) + _pem(certificate)


def _draft(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, *, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - BACKDATED)
        .not_valid_after(ends)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _sound_key(pem: str) -> PublicKey:
    hint = "Update corral on that host: its worker makes the request itself."
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        key = request.public_key()
        # It proves that whoever asks has the private key.
        sound = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise InvalidInput(f"the certificate request cannot be read: {error}", hint=hint) from error
    if not sound:
        raise InvalidInput("the certificate request is not signed by its own key", hint=hint)
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= MIN_RSA_BITS:
        return key
    if isinstance(key, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey):
        return key
    raise InvalidInput("the certificate request has a weak or unknown kind of key", hint=hint)


def _usage(**given: bool) -> x509.KeyUsage:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: given.get(name, False) for name in names})


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()).decode()
