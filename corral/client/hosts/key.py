"""A host's private key, and the request for a certificate that goes with it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from corral.domain.errors import CorralError


class KeyFailed(CorralError):
    code = "key_failed"
    hint = "See the words above; the package `cryptography` must be installed."


@dataclass(frozen=True)
class HostKey:
    """A host's own key, which never leaves it, and what it asks a certificate with."""

    key_pem: str
    request_pem: str

    def with_certificate(self, certificate: str | None) -> str | None:
        """One file for both, so that no kill can part them; None where the server signs none."""
        return None if certificate is None else self.key_pem + certificate


def make_key() -> HostKey:
    """In a process of its own: a worker needs a key once in weeks, and would keep the library in memory."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "corral.client.hosts.key_maker"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise KeyFailed(f"no key could be made: {done.stderr.strip()[-500:]}")
    return HostKey(*json.loads(done.stdout))
