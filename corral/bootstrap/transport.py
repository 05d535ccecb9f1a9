"""The part of bootstrap that says how the server is reached: in clear, or with TLS."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from corral.domain.errors import InvalidInput
from corral.server.tls import TlsTrust
from corral.settings import Settings

if TYPE_CHECKING:
    # They load cryptography, which a server without TLS does without.
    from corral.adapters.tls.authority import OwnAuthority
    from corral.adapters.tls.context import ServerTls

log = logging.getLogger("corral.server.tls")


@dataclass(frozen=True)
class ServerTransport:
    """How the server is reached: plain HTTP if `tls` is None. This machine's own clients trust `ca_file`."""

    trust: TlsTrust = field(default_factory=TlsTrust)
    tls: ServerTls | None = None
    authority: OwnAuthority | None = None
    ca_file: Path | None = None
    name: str | None = None


def wants_tls(settings: Settings) -> bool:
    """Unless only this machine can connect, or somebody in front speaks TLS."""
    asked = settings.tls == "on" or settings.tls_cert is not None or settings.tls_clients == "require"
    if settings.tls == "off" and asked:
        raise InvalidInput(
            "CORRAL_TLS is off, but other settings ask for TLS",
            hint="Unset CORRAL_TLS, or unset CORRAL_TLS_CERT and CORRAL_TLS_CLIENTS.",
        )
    alone = is_loopback(settings.host)
    if settings.tls == "off" and not alone:
        log.warning("CORRAL_TLS=off: tokens travel in clear unless a proxy in front speaks TLS")
    return settings.tls != "off" and (asked or not alone)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
