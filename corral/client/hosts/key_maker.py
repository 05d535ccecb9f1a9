"""`python -m corral.client.hosts.key_maker`: prints a new key and a request for its certificate, as JSON."""

from __future__ import annotations

import json
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def new_key() -> tuple[str, str]:
    """Both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    # The server writes the subject: what a host calls itself here is not believed.
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    kind = serialization.PrivateFormat.PKCS8
    return (
        key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()).decode(),
        request.public_bytes(serialization.Encoding.PEM).decode(),
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(new_key()))
