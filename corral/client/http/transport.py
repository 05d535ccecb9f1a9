"""One HTTP connection pool to one server: typed answers, our own errors, patience where it is safe."""

from __future__ import annotations

import json
import os
import random
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, Self, TypedDict, TypeVar, Unpack

import httpx
from pydantic import BaseModel, ValidationError

from corral.client.http.answers import parsed, reader_of
from corral.client.http.connection import CONNECT_TIMEOUT_S, direct_client, http_client, is_loopback
from corral.client.http.direct import DirectClient, DirectResponse, NoConnection
from corral.client.http.errors import UntrustedServer, from_response, unreachable
from corral.client.http.outage import OutageRules, is_away
from corral.client.http.sockets import OpenSockets
from corral.domain.errors import CorralError, InvalidInput, ServerUnreachable, StoreUnavailable
from corral.domain.protocol import SERVER_HEADER, parse_protocol
from corral.wire.blobs import HandoverFolder

M = TypeVar("M")
T = TypeVar("T", covariant=True)
A = TypeVar("A", httpx.Response, httpx.Response | DirectResponse)
Params = Mapping[str, str | int | float | Sequence[str] | None]
Content = bytes | Iterable[bytes]


class RequestOptions(TypedDict, total=False):
    """What goes with a request; `content` is sent as it is, `body` as JSON."""

    body: BaseModel | None
    content: Content | None
    params: Params | None
    headers: Mapping[str, str] | None
    timeout_s: float | None
    # Statuses beside the good ones whose body is an answer and not an error.
    also: tuple[int, ...]


class Page(Protocol[T]):
    """One answer of a list; `next` is None at its end."""

    @property
    def items(self) -> Sequence[T]: ...

    @property
    def next(self) -> str | int | None: ...


# A server that answers 429 is asked again for a few minutes before that is an error.
BUSY_TRIES = 10
LONGEST_BUSY_S = 30.0
_dumps = json.JSONEncoder(separators=(",", ":")).encode
# A long poll may take this much longer than the server waits, for the way there and back.
POLL_SLACK_S = 15.0


@dataclass(frozen=True)
class Backoff:
    """How often to try again, and how long to wait before; delays are jittered."""

    tries: int = 5
    first_s: float = 0.1
    most_s: float = 3.0

    def delay_s(self, failures: int) -> float:
        """Between half and all of the doubled delay, so that many clients do not come back at once."""
        whole = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 30))
        return whole * random.uniform(0.5, 1.0)


class Transport:
    """Safe to use from several threads. Raises CorralError and its kinds, nothing of httpx.

    `prove`, given the address, raises ServerUnreachable while what listens there may be a stranger: then
    nothing is sent. It is asked for each new connection, and not for each request.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_s: float = 30.0,
        backoff: Backoff | None = None,
        tls: ssl.SSLContext | None = None,
        outage: OutageRules | None = None,
        prove: Callable[[str], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.backoff = backoff or Backoff()
        self.outage = outage or OutageRules()
        self.sleep = sleep
        self._timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        self._timeout_s = timeout_s
        self._sockets = OpenSockets()
        self._prove = prove or (lambda _: None)
        # Kept open until the end: another thread may be in the middle of a call.
        self._former: list[httpx.Client | DirectClient] = []
        self._moving = Lock()
        self._connect(url, token, tls)

    def _connect(self, url: str, token: str | None, tls: ssl.SSLContext | None) -> None:
        client = http_client(url.rstrip("/"), token, self._timeout, tls)
        # Of this address for ever: one of the former clients must not be judged by where the server is now.
        check = partial(self._prove, url.rstrip("/"))
        client.event_hooks = {"request": [partial(self._sockets.follow, check)]}
        self.url, self._client = url.rstrip("/"), client
        # As its last answer named it; None until it has answered.
        self.server_protocol: int | None = None
        self._direct = direct_client(self.url, client, tls, check)
        self._near: Path | None = None
        self._near_is_known = False

    def look_again(self) -> None:
        """After a failed call: follow the server if it listens elsewhere now."""
        address = self.outage.found()
        with self._moving:
            if address is not None and address.url.rstrip("/") != self.url:
                self._former += [self._client, *filter(None, [self._direct])]
                self._connect(address.url, address.token, address.tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for client in (self._client, self._direct, *self._former):
            if client is not None:
                client.close()

    def hang_up(self) -> None:
        """Break off every call under way; each raises ServerUnreachable. Later calls connect anew."""
        self._sockets.shut()
        if self._direct is not None:
            self._direct.hang_up()

    def post(
        self,
        path: str,
        answer: type[M],
        body: BaseModel | Mapping[str, Any],
        *,
        timeout_s: float | None = None,
    ) -> M:
        """One try of a small request, by the shortest way."""
        content = (body.model_dump_json() if isinstance(body, BaseModel) else _dumps(body)).encode()
        try:
            found = self._asked(lambda: self._posted(path, content, timeout_s))
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error
        if isinstance(found, DirectResponse):
            if found.is_success:
                with suppress(ValidationError):
                    return reader_of(answer).validate_json(found.content)
            # An httpx response is built for an error alone: building one costs more than the request.
            request = httpx.Request("POST", self.url + path)
            found = httpx.Response(
                found.status_code, headers=found.headers, content=found.content, request=request
            )
        if not found.is_success:
            raise from_response(found)
        return parsed(found, answer)

    def _posted(self, path: str, content: bytes, timeout_s: float | None) -> httpx.Response | DirectResponse:
        try:
            if self._direct is None:
                raise NoConnection
            return self._direct.post(path, content, timeout_s=timeout_s or self._timeout_s)
        except NoConnection:
            # httpx finds another way, or says why there is none.
            headers = {"content-type": "application/json"}
            return self._client.post(
                path, content=content, headers=headers, timeout=self._patience(timeout_s)
            )
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ReadError(str(error) or type(error).__name__) from error

    def get(self, path: str, answer: type[M], params: Params | None = None) -> M:
        return self.repeat("GET", path, answer, params=params)

    def items(
        self, path: str, page: type[Page[T]], params: Params | None = None, *, cursor: str = "cursor"
    ) -> Iterator[T]:
        """What a list holds, page by page; `cursor` is the parameter that takes a page's `next`."""
        at: str | int | None = None
        while True:
            found = self.get(path, page, {**(params or {}), **({} if at is None else {cursor: at})})
            yield from found.items
            at = found.next
            if at is None:
                return

    def once(self, method: str, path: str, answer: type[M], **options: Unpack[RequestOptions]) -> M:
        """One try: for what must not happen twice, or whose caller has a patience of its own."""
        return parsed(self.raw(method, path, **options), answer)

    def repeat(self, method: str, path: str, answer: type[M], **options: Unpack[RequestOptions]) -> M:
        """Try again while the server is away: only for calls that may arrive twice."""
        return self.patiently(partial(self.once, method, path, answer, **options))

    def patiently(self, attempt: Callable[[], M]) -> M:
        """Again while the server is away; the attempt may arrive twice."""
        for failures in range(1, self.backoff.tries):
            try:
                return attempt()
            except UntrustedServer:
                # The same certificate would be shown again.
                raise
            except (ServerUnreachable, StoreUnavailable):
                self.look_again()
                self.sleep(self.backoff.delay_s(failures))
        return attempt()

    def persistently(self, attempt: Callable[[], M], *, within_s: float | None = None) -> M:
        """Again for minutes while the server is away, and for `within_s` at most; the attempt may arrive
        twice. One line says that it is waited for."""
        limit_s = self.outage.patience_s
        limit_s = limit_s if within_s is None else min(limit_s, within_s)
        began, failures = None, 0
        while True:
            try:
                value = attempt()
            except (ServerUnreachable, StoreUnavailable) as error:
                now, failures = self.outage.clock(), failures + 1
                began = now if began is None else began
                left_s = began + limit_s - now
                if left_s <= 0 or isinstance(error, UntrustedServer) or not is_away(error):
                    raise
                self.outage.tell(error, left_s)
                self.look_again()
                self.sleep(min(self.backoff.delay_s(failures), left_s))
                continue
            self.outage.over()
            return value

    def near(self, *, anew: bool = False) -> Path | None:
        """A folder in which files can be handed to a server on this machine; None if that is not so."""
        if not is_loopback(self.url) or os.name == "nt":
            return None
        if anew or not self._near_is_known:
            try:
                found = self.once("GET", "/v1/near", HandoverFolder).folder
            except CorralError:
                # An older one, or one that is away: it is asked for again when there is more to hand over.
                return None
            self._near = Path(found) if found and os.access(found, os.R_OK | os.W_OK | os.X_OK) else None
            self._near_is_known = True
        return self._near

    def raw(
        self,
        method: str,
        path: str,
        *,
        body: BaseModel | None = None,
        content: Content | None = None,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        also: tuple[int, ...] = (),
    ) -> httpx.Response:
        """One try; the whole answer, whose status is good or one of `also`."""
        made = dict(headers or {})
        if body is not None:
            content = body.model_dump_json().encode()
            made["content-type"] = "application/json"
        elif content is not None:
            made.setdefault("content-type", "application/octet-stream")
        request = partial(
            self._client.request,
            method,
            path,
            content=content,
            params=_kept(params),
            headers=made,
            timeout=self._patience(timeout_s),
        )
        try:
            # A body that is read while it is sent cannot be sent twice.
            whole = content is None or isinstance(content, bytes)
            response = self._asked(request) if whole else request()
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error
        self.server_protocol = parse_protocol(response.headers.get(SERVER_HEADER))
        if not response.is_success and response.status_code not in also:
            raise from_response(response)
        return response

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float | None = None,
    ) -> Iterator[httpx.Response]:
        """An answer whose body is read bit by bit. A break while it is read is ServerUnreachable too."""
        timeout = self._patience(read_timeout_s)
        try:
            request = self._client.build_request(
                method, path, params=_kept(params), headers=headers, timeout=timeout
            )
            response = self._asked(partial(self._client.send, request, stream=True))
            try:
                if not response.is_success:
                    response.read()
                    raise from_response(response)
                yield response
            finally:
                response.close()
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error

    def _asked(self, ask: Callable[[], A]) -> A:
        """The answer. Where the server says that it is asked too often, it did nothing: ask again later."""
        for _ in range(BUSY_TRIES):
            response = ask()
            if response.status_code != httpx.codes.TOO_MANY_REQUESTS:
                return response
            response.close()
            after = response.headers.get("retry-after", "")
            wait_s = min(float(after[:6]) if after.isdecimal() else 1.0, LONGEST_BUSY_S)
            self.sleep(wait_s * random.uniform(1.0, 1.25))
        return ask()

    def _patience(self, seconds: float | None) -> httpx.Timeout:
        return self._timeout if seconds is None else httpx.Timeout(seconds, connect=CONNECT_TIMEOUT_S)


def read_timed_out(error: ServerUnreachable) -> bool:
    """Whether the server was merely silent, as a stream with nothing to say is."""
    return isinstance(error.__cause__, httpx.ReadTimeout)


def quoted(text: str) -> str:
    """One segment of a path: an id that holds `..`, `/`, a newline or NUL must stay one segment."""
    if text in ("", ".", ".."):
        raise InvalidInput(f"{text!r} is not an id or a name", hint="Check the id with `corral ls`.")
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.~") else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _kept(params: Params | None) -> dict[str, str | int | float | Sequence[str]]:
    return {key: value for key, value in (params or {}).items() if value is not None}
