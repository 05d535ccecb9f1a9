"""A host's own key, which never leaves it."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class HostKey:
    key_pem: str
    request_pem: str

    def with_certificate(self, certificate: str | None) -> str | None:
        """One file for both, so that no kill can part them; None where the server signs none."""
        return None if certificate is None else self.key_pem + certificate


def make_key() -> HostKey:
    key = ec.generate_private_key(ec.SECP256R1())
    # The server writes the subject: what a host calls itself here is not believed.
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    kind = serialization.PrivateFormat.PKCS8
    return HostKey(
        key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()).decode(),
        request.public_bytes(serialization.Encoding.PEM).decode(),
    )
