"""Reads answers that go on and on: server-sent events with resume, and lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from corral.client.http.transport import Params, Transport, read_timed_out
from corral.domain.errors import CorralError, ServerUnreachable, StoreUnavailable

# A stream with nothing to say is asked anew after this long, so a peer that vanished is noticed.
SILENCE_S = 45.0
LINE_MAX_BYTES = 16 << 20

Reconnecting = Callable[[CorralError, float], None]
"""Told why the stream broke and in how many seconds it is tried again."""


@dataclass(frozen=True)
class ServerEvent:
    event: str
    data: str
    id: str | None


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split at newlines only: text may hold the other characters that Python calls line ends."""
    rest = bytearray()
    for chunk in chunks:
        rest += chunk
        if b"\n" not in chunk:
            if len(rest) > LINE_MAX_BYTES:
                raise CorralError(f"the server sent a line of more than {LINE_MAX_BYTES} bytes")
            continue
        *whole, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def parse_events(text: Iterable[str]) -> Iterator[ServerEvent]:
    """The part of the event stream format that matters here: `event`, `data`, `id` and comments."""
    event, identity, data = "message", None, list[str]()
    for line in text:
        if not line:
            if data:
                yield ServerEvent(event, "\n".join(data), identity)
            event, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            event = value
        elif field == "id":
            identity = value


@dataclass
class EventStream:
    """One event stream, begun again where it broke off until its `end` arrives.

    `begin` says where to start; once something has arrived, `cursor_of` tells from an event the value of
    the parameter `cursor` that goes on after it.
    """

    transport: Transport
    path: str
    begin: Params
    cursor: str
    cursor_of: Callable[[ServerEvent], str | None]
    reconnecting: Reconnecting | None = None
    # That of the transport where none is given.
    patience_s: float | None = None
    clock: Callable[[], float] = time.monotonic

    def events(self) -> Iterator[ServerEvent]:
        """Raise what the server says, or ServerUnreachable after `patience_s` without it."""
        patience_s = self.transport.outage.patience_s if self.patience_s is None else self.patience_s
        failures, alive_at = 0, self.clock()
        at: str | None = None
        while True:
            try:
                for event in self._connection(at):
                    failures, alive_at = 0, self.clock()
                    at = self.cursor_of(event) or at
                    yield event
                    if event.event == "end":
                        return
                # Ended without its `end`: the server is going down.
                broken: CorralError = ServerUnreachable(f"{self.transport.url} ended the stream early")
            except (ServerUnreachable, StoreUnavailable) as error:
                if isinstance(error, ServerUnreachable) and read_timed_out(error):
                    failures, alive_at = 0, self.clock()
                    continue
                broken = error
            if self.clock() - alive_at > patience_s:
                raise broken
            failures += 1
            self.transport.look_again()
            delay_s = self.transport.backoff.delay_s(failures)
            if self.reconnecting:
                self.reconnecting(broken, delay_s)
            self.transport.sleep(delay_s)

    def _connection(self, at: str | None) -> Iterator[ServerEvent]:
        place = self.begin if at is None else {self.cursor: at}
        params = {**place, "follow": "true"}
        accept = {"Accept": "text/event-stream"}
        with self.transport.stream(
            "GET", self.path, params=params, headers=accept, read_timeout_s=SILENCE_S
        ) as answer:
            yield from parse_events(lines(answer.iter_bytes()))
