"""The part of bootstrap that makes or reads the server's certificate; loaded only where there is TLS."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from functools import partial

import psutil

from corral.adapters.tls.authority import load_or_make
from corral.adapters.tls.context import Chain, GivenChain, OwnChain, ServerTls, first_name
from corral.bootstrap.transport import ServerTransport, is_loopback
from corral.client.http.trust import read_ca
from corral.domain.errors import InvalidInput
from corral.files.atomic import write_private
from corral.server.tls import TlsTrust
from corral.settings import Settings


def build_tls(settings: Settings, now: Callable[[], float]) -> ServerTransport:
    """With an authority of our own unless files are given."""
    folder = settings.home / "tls"
    clients = settings.tls_clients == "require"
    given = _given_chain(settings)
    authority = None
    if given is None or clients:
        authority = load_or_make(folder, now=now(), write_private=write_private)
    chain: Chain
    if given is not None:
        chain, ca_file, name = given, settings.tls_ca, _given_name(settings)
    else:
        assert authority is not None
        chain = OwnChain(
            authority,
            folder / "leaf.pem",
            names=partial(_names, settings),
            lifetime_s=settings.tls_leaf_s,
            now=now,
            write_private=write_private,
        )
        ca_file, name = folder / "ca.pem", None
    tls = ServerTls(chain, trusted_clients=authority.ca_pem if authority and clients else None)
    ca_pem = None if ca_file is None else read_ca(ca_file)
    trust = TlsTrust(ca_pem=ca_pem, authority=authority, hosts_need_certificates=clients)
    return ServerTransport(trust, tls, authority, ca_file, name)


def _given_chain(settings: Settings) -> GivenChain | None:
    certificate, key = settings.tls_cert, settings.tls_key
    if (certificate is None) != (key is None):
        raise InvalidInput(
            "CORRAL_TLS_CERT and CORRAL_TLS_KEY go together, and one of them is not set",
            hint="Set both, or neither: then the server makes a certificate itself.",
        )
    return None if certificate is None or key is None else GivenChain(certificate, key)


def _given_name(settings: Settings) -> str | None:
    """What our own clients must call the server for its certificate to fit."""
    own = _listed(settings.tls_names)
    if own or settings.tls_cert is None:
        return own[0] if own else None
    try:
        return first_name(settings.tls_cert)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"CORRAL_TLS_CERT cannot be read: {error}", hint="It names a PEM file.") from error


def _names(settings: Settings) -> list[str]:
    """What others may call this server."""
    names = ["localhost", "127.0.0.1", "::1", *_listed(settings.tls_names)]
    if not is_loopback(settings.host):
        names += [socket.gethostname()]
        names += _addresses() if settings.host in ("0.0.0.0", "::", "") else [settings.host]
    # No certificate can name what is not ASCII.
    return list(dict.fromkeys(name for name in names if name and name.isascii()))


def _addresses() -> list[str]:
    found = (each for addresses in psutil.net_if_addrs().values() for each in addresses)
    families = (socket.AF_INET, socket.AF_INET6)
    texts = {each.address.partition("%")[0] for each in found if each.family in families}
    # Those of one link alone cannot be written into an address without naming the link.
    return sorted(text for text in texts if not ipaddress.ip_address(text).is_link_local)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
