"""Where the server may send notices: nothing that only it can reach, however the address is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from corral.domain.errors import InvalidInput

Network = IPv4Network | IPv6Network
_MAX_CHARS = 2048
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
# IPv4 inside IPv6, as translators write it. The second is for use within one network only.
_NAT64 = IPv6Network("64:ff9b::/96")
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
# Not public, though not every Python says so: 6to4 relays (RFC 7526), documentation (RFC 9637), and names of
# segments (RFC 9602).
_NOT_PUBLIC = (IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"), IPv6Network("5f00::/16"))


class WebhookTarget(NamedTuple):
    """A URL in parts, as it is resolved and asked for: nobody parses the text a second time."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """What the `Host` header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return host if self.port == usual else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """Without path and query, which may be a secret."""
        return f"{self.scheme}://{self.authority}/" + ("..." if self.path != "/" else "")


def parse_url(text: str) -> WebhookTarget:
    """InvalidInput unless it is a plain http(s) URL. The message never quotes it: it may be a secret."""
    wrong = _fault(text)
    if wrong is not None:
        raise InvalidInput(
            f"the webhook's URL {wrong}", hint='Write it as "https://hooks.example.com/some/path".'
        )
    parts = urlsplit(text)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return WebhookTarget(parts.scheme, str(parts.hostname), port, path)


def _fault(text: str) -> str | None:
    if len(text) > _MAX_CHARS:
        return f"is longer than {_MAX_CHARS} characters"
    if not all("!" <= c <= "~" and c not in '\\"<>^`{|}' for c in text):
        return "holds spaces, control characters or what must be written as %XX"
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        # Read for its complaint: a port that is no number is only noticed then.
        port = parts.port
    except ValueError:
        return "has a host or port that cannot be read"
    if parts.scheme not in ("http", "https"):
        return "does not begin with https://"
    if "@" in parts.netloc:
        return "holds a user name or password"
    if "#" in text:
        return "has a fragment, which is never sent"
    if _HOST.fullmatch(host) is None or port == 0:
        return "has no host that can be looked up"
    return None


def parse_networks(text: str) -> tuple[Network, ...]:
    """`127.0.0.0/8, fd00::/8`; ValueError for what is no network."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def is_allowed(text: str, allowed: Sequence[Network]) -> bool:
    """Whether an operator named the address, or the IPv4 address in it."""
    address = _parsed(text)
    return any(_within(address, network) for network in allowed)


def refusal(text: str, allowed: Sequence[Network]) -> str | None:
    """Why nothing may be sent to an address, or None."""
    address = _parsed(text)
    if any(_within(address, network) for network in allowed):
        return None
    why = _kind(address)
    if why is not None:
        return f"{text} is {why}"
    inner = _embedded(address)
    if inner is not None and _kind(inner) is not None:
        if any(_within(inner, network) for network in allowed):
            return None
        return f"{text} leads to {inner}, which is {_kind(inner)}"
    return None


def _parsed(text: str) -> IPv4Address | IPv6Address:
    """A mapped or translated address is the IPv4 address: that is where a connection goes."""
    address = ip_address(text)
    if not isinstance(address, IPv6Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    if not isinstance(address, IPv6Address):
        return None
    if address.teredo is not None:
        return address.teredo[1]
    return address.sixtofour


def _within(address: IPv4Address | IPv6Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _kind(address: IPv4Address | IPv6Address) -> str | None:
    if address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if address.is_unspecified:
        return "the unspecified address"
    if isinstance(address, IPv6Address) and (address.is_site_local or address in _LOCAL_NAT64):
        return "a private address"
    if isinstance(address, IPv6Address) and address.sixtofour is not None:
        # From 3.13 on Python calls all of them private; here the IPv4 address inside decides.
        return None
    if address.is_private:
        return "a private address"
    special = any(_within(address, network) for network in _NOT_PUBLIC)
    if special or address.is_reserved or not address.is_global:
        return "not a public address"
    return None
