"""A certificate authority of one cluster, and the certificate of its API server."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def write_certificates(folder: Path) -> tuple[Path, Path]:
    """The authority's certificate, and the server's with its key in one file."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _sign("kubernetes", authority_key, "kubernetes", authority_key, server=False)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _sign("kube-apiserver", key, "kubernetes", authority_key, server=True)
    ca_path, server_path = folder / "ca.crt", folder / "server.pem"
    ca_path.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    server_path.touch(mode=0o600)
    server_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return ca_path, server_path


def _sign(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    server: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    issuer_id = x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=not server, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False
        )
        .add_extension(_usage(server=server), critical=True)
    )
    if server:
        names = [x509.DNSName("localhost"), x509.DNSName("kubernetes.default.svc")]
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([*names, address]), critical=False)
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(purpose, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(*, server: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=not server,
        crl_sign=not server,
        encipher_only=False,
        decipher_only=False,
    )
