"""Sends notices over HTTP to addresses that were judged first."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence

import httpx

from corral.domain.errors import AddressRefused
from corral.domain.webhooks.addresses import Network, WebhookTarget, is_allowed, refusal
from corral.domain.webhooks.deliveries import DeliveryResult
from corral.version import __version__

Resolve = Callable[[str, int], Awaitable[list[str]]]
TIMEOUT_S = 15.0
# Read so that the receiver is not cut off in the middle of its answer, then thrown away.
_ANSWER_BYTES = 64 << 10
_WAIT = re.compile(r"[0-9]{1,6}")


class HttpSender:
    """`allowed` are networks that may be reached though they are not public, and without TLS."""

    def __init__(
        self,
        allowed: Sequence[Network] = (),
        *,
        timeout_s: float = TIMEOUT_S,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = tuple(allowed)
        self._timeout_s = timeout_s
        self._resolve = resolve or _resolve
        self._tls = tls
        self._client: httpx.AsyncClient | None = None

    async def check(self, target: WebhookTarget) -> None:
        await self._judged(target)

    async def send(self, target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(await self._judged(target), target, headers, body)
        except AddressRefused as refused:
            return DeliveryResult(None, refused.message)
        except TimeoutError:
            return DeliveryResult(None, f"no whole answer within {self._timeout_s:g} s")
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            return DeliveryResult(None, f"{type(error).__name__}: {error}"[:300])

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _judged(self, target: WebhookTarget) -> str:
        """The address to connect to. All that a name stands for must be fit: which is taken is chance."""
        try:
            found = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise AddressRefused(f"{target.host} cannot be looked up: {error}") from None
        if not found:
            raise AddressRefused(f"{target.host} has no address")
        for address in found:
            why = refusal(address, self._allowed)
            if why is not None:
                raise AddressRefused(f"nothing is sent to {target.host}: {why}")
            if target.scheme == "http" and not is_allowed(address, self._allowed):
                raise AddressRefused(f"nothing is sent to {target.host} without TLS: use https://")
        return found[0]

    async def _post(
        self, address: str, target: WebhookTarget, headers: Mapping[str, str], body: bytes
    ) -> DeliveryResult:
        host = f"[{address}]" if ":" in address else address
        request = self._http().build_request(
            "POST",
            f"{target.scheme}://{host}:{target.port}{target.path}",
            headers={
                **headers,
                "host": target.authority,
                "content-type": "application/json",
                "user-agent": f"corral/{__version__}",
            },
            content=body,
            # The name goes into the handshake, and the certificate is checked against it.
            extensions={"sni_hostname": target.host},
        )
        response = await self._http().send(request, stream=True)
        try:
            read = 0
            async for chunk in response.aiter_raw():
                read += len(chunk)
                if read >= _ANSWER_BYTES:
                    break
        finally:
            await response.aclose()
        return _outcome(response)

    def _http(self) -> httpx.AsyncClient:
        """Made when it is first needed: loading the authorities takes time and memory."""
        if self._client is None:
            # It would log whole addresses, whose paths may be secrets.
            logging.getLogger("httpx").setLevel(logging.WARNING)
            self._client = httpx.AsyncClient(
                verify=self._tls or ssl.create_default_context(),
                trust_env=False,
                follow_redirects=False,
                timeout=self._timeout_s,
                # A kept connection belongs to an address; another name there would get it without a check.
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            )
        return self._client


def _outcome(response: httpx.Response) -> DeliveryResult:
    if response.is_success:
        return DeliveryResult(response.status_code)
    wished = response.headers.get("retry-after", "")
    detail = f"it answered {response.status_code}"
    if response.is_redirect:
        detail += "; redirects are not followed"
    return DeliveryResult(response.status_code, detail, float(wished) if _WAIT.fullmatch(wished) else None)


async def _resolve(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
