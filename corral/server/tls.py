"""What the server says of its certificates, and what it demands of those of hosts."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corral.domain.errors import Forbidden
from corral.domain.hosts.certificates import first_pin
from corral.domain.ids import HostId
from corral.domain.tokens import Scope, Token
from corral.ports.authority import Authority


@dataclass(frozen=True)
class TlsTrust:
    """`ca_pem` is what callers should trust; None for plain HTTP, or where every machine trusts it."""

    ca_pem: str | None = None
    authority: Authority | None = None
    hosts_need_certificates: bool = False

    @property
    def pin(self) -> str | None:
        return None if self.ca_pem is None else first_pin(self.ca_pem)

    @property
    def shuts_placed_workers_out(self) -> str | None:
        """Why no worker that an executor brings up could get in; None if it could."""
        if not self.hosts_need_certificates:
            return None
        return (
            "this server wants client certificates of hosts (CORRAL_TLS_CLIENTS=require), and a worker that"
            " an executor brings up has a token alone"
        )

    def binds(self, token: Token, peer: str | None) -> bool:
        """Whether a call with this token may come over a connection of this peer."""
        if token.scope not in (Scope.HOST, Scope.RUN):
            return True
        # Also where none is demanded: a certificate of another host is never right.
        return token.host_id == peer if peer is not None else not self.hosts_need_certificates

    def check(self, token: Token, peer: str | None) -> None:
        if self.binds(token, peer):
            return
        if peer is None:
            raise Forbidden(
                "this server wants a client certificate of hosts, and the call came without one",
                hint="Enrol the host again with `corral host enroll`, which makes one.",
            )
        raise Forbidden(
            "the client certificate is that of another host than the token",
            hint="Use the token and the certificate of the same enrolment.",
        )

    def sign(self, request: str | None, host_id: HostId, *, now: float, lifetime_s: float) -> str | None:
        """A certificate for the host, if it asks for one and there is who can give it."""
        if request is None or self.authority is None:
            return None
        return self.authority.sign_host(request, host_id, now=now, lifetime_s=lifetime_s)


def peer_of(ssl_object: object) -> str | None:
    """The common name of the certificate that was shown and verified; None if there was none."""
    if not isinstance(ssl_object, ssl.SSLObject | ssl.SSLSocket):
        return None
    shown: Mapping[str, Any] = ssl_object.getpeercert() or {}
    parts = (pair for part in shown.get("subject", ()) for pair in part)
    return next((str(value) for name, value in parts if name == "commonName"), None)
