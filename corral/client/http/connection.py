"""Connections to one address: by httpx, and by the shortest way where the server is near."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import httpx

from corral.client.http.direct import DirectClient, is_direct
from corral.domain.errors import InvalidInput
from corral.domain.protocol import CLIENT_HEADER, PROTOCOL
from corral.domain.tokens import split_pin
from corral.version import __version__

CONNECT_TIMEOUT_S = 5.0
_MOST_PORT = 65_535
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(url: str) -> bool:
    return httpx.URL(url).host in _LOOPBACK


def direct_client(
    url: str, client: httpx.Client, tls: ssl.SSLContext | None, check: Callable[[], None]
) -> DirectClient | None:
    if not is_loopback(url) and not is_direct(url):
        return None
    headers = {
        "Corral-Client-Version": __version__,
        CLIENT_HEADER: str(PROTOCOL),
        "Content-Type": "application/json",
        **({"Authorization": auth} if (auth := client.headers.get("authorization")) else {}),
    }
    if tls is None and url.startswith("https:"):
        tls = ssl.create_default_context()
    return DirectClient(url, headers, connect_s=CONNECT_TIMEOUT_S, tls=tls, check=check)


def check_url(url: str) -> httpx.URL:
    """InvalidInput where it is no address of a server."""
    try:
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise httpx.InvalidURL("it needs http:// or https:// and a host")
        if parsed.port is not None and not 0 < parsed.port <= _MOST_PORT:
            raise httpx.InvalidURL(f"a port is a number from 1 to {_MOST_PORT}")
    except httpx.InvalidURL as error:
        raise InvalidInput(
            f"{url!r} is not a server's address: {error}", hint='Write it as "http://127.0.0.1:7373".'
        ) from error
    return parsed


def http_client(
    url: str, token: str | None, timeout: httpx.Timeout, tls: ssl.SSLContext | None
) -> httpx.Client:
    headers = {"Corral-Client-Version": __version__, CLIENT_HEADER: str(PROTOCOL)}
    if token:
        # The pin is for this side, which has checked it already; the server does not know it.
        token, _ = split_pin(token)
        if not (token.isascii() and token.isprintable()):
            raise InvalidInput("the token holds characters that no token has", hint="Copy it again.")
        headers["Authorization"] = f"Bearer {token}"
    parsed = check_url(url)
    return httpx.Client(
        base_url=parsed,
        headers=headers,
        timeout=timeout,
        # Loading the authorities takes longer than most calls, and plain HTTP has no use for them.
        verify=tls or True if parsed.scheme == "https" else False,
        # A proxy that is set for the world must not carry what stays on this machine.
        trust_env=not is_loopback(url),
        # A worker holds one open per lease that it beats for: a bound would keep beats from the server.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=60),
    )
