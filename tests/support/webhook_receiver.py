"""Somebody else's server: takes notices on a loopback port and answers as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAIT_S = 60.0


@dataclass(frozen=True)
class ReceivedNotice:
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.body)
        return made


@dataclass
class Receiver:
    url: str
    status: int = 200
    came: list[ReceivedNotice] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def take(self, came: ReceivedNotice) -> int:
        with self._news:
            self.came.append(came)
            self._news.notify_all()
            return self.status

    def until(self, enough: Callable[[list[ReceivedNotice]], bool]) -> list[ReceivedNotice]:
        """What came, once there is enough of it."""
        deadline = time.monotonic() + WAIT_S
        with self._news:
            while not enough(self.came):
                left = deadline - time.monotonic()
                assert left > 0, f"only {[came.body[:200] for came in self.came]} came"
                self._news.wait(left)
            return list(self.came)


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(receiver.take(ReceivedNotice(headers, body)))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}/hook")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
