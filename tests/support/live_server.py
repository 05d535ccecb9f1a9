"""A real server on a loopback port, in a thread, and short ways to call it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn

from corral.bootstrap.server import build_services, build_transport, ensure_identities, open_store
from corral.bootstrap.sockets import most_connections
from corral.bootstrap.transport import ServerTransport
from corral.client.http.trust import context as context_for
from corral.server.accepting import HttpServer
from corral.server.app import ControlPlane
from corral.server.http_protocol import FastHttpProtocol
from corral.server.services import Services
from corral.settings import Settings
from corral.store.transaction import Tx
from corral.wire.errors import ErrorBody
from support.clock import JumpingClock

Json = dict[str, Any]
T = TypeVar("T")
_NUMBERS = itertools.count(1)
CAPABILITY = {"hostname": "box", "os": "linux", "arch": "x86_64", "cores": 2, "ram_bytes": 1 << 34}


@dataclass(frozen=True)
class LiveServer:
    """`operator` and `host` are the tokens that a first start writes."""

    url: str
    home: Path
    services: Services
    clock: JumpingClock
    operator: str
    host: str
    port: int
    tls: ssl.SSLContext | None = None
    transport: ServerTransport | None = None
    loop: asyncio.AbstractEventLoop | None = None

    def write(self, unit: Callable[[Tx], T]) -> T:
        """Change the store behind the routes' backs."""
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(self.services.store.write(unit), self.loop).result(30)

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = "",
        content: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str | int] | None = None,
    ) -> httpx.Response:
        """As the operator unless another token is given; None sends none."""
        made = dict(headers or {})
        if token is not None:
            made["Authorization"] = f"Bearer {token or self.operator}"
        if body is not None:
            content = json.dumps(body).encode()
            made.setdefault("Content-Type", "application/json")
        return httpx.request(
            method,
            f"{self.url}{path}",
            content=content,
            headers=made,
            params=params,
            timeout=60,
            trust_env=False,
            verify=self.tls or False,
        )

    def ok(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        answer = self.call(method, path, body, **options)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def submit(self, *, project: str = "default", token: str = "", host: str = "nobody", **spec: Any) -> str:
        """For one host alone: tests share a server, and must not take each other's runs."""
        run = {"argv": ["true"], "project": project, "resources": {"hosts": [host]}, **spec}
        body = {"request_id": fresh(), "runs": [run]}
        return str(self.ok("POST", "/v1/runs", body, token=token)["ids"][0])

    def token(self, scope: str, name: str = "", **more: Any) -> Json:
        made: Json = self.ok("POST", "/v1/tokens", {"scope": scope, "name": name or named("t"), **more})
        return made


@dataclass
class FakeHost:
    """A host with a token of its own that claims and reports as a worker does."""

    live: LiveServer
    name: str
    token: str
    boot_id: str = field(default_factory=lambda: fresh())
    slots: int = 1000

    def ask(self, **more: Any) -> Json:
        asked = {"boot_id": self.boot_id, "slots": self.slots, "capability": CAPABILITY, "max_leases": 1}
        return {"request_id": fresh(), **asked, **more}

    def run(self, **spec: Any) -> Lease:
        """Submit a run that only this host may take, and take it."""
        submitted = self.live.submit(host=self.name, **spec)
        lease = self.claim()
        assert lease.run_id == submitted
        return lease

    def claim(self, **more: Any) -> Lease:
        answer = self.live.ok("POST", "/v1/claims", self.ask(**more), token=self.token)
        assert len(answer["leases"]) == 1, answer
        return Lease(self, answer["leases"][0])


@dataclass(frozen=True)
class Lease:
    worker: FakeHost
    about: Json

    @property
    def path(self) -> str:
        return f"/v1/leases/{self.about['id']}"

    @property
    def run_id(self) -> str:
        return str(self.about["run_id"])

    def call(self, method: str, verb: str, body: object = None, **options: Any) -> httpx.Response:
        params = {"epoch": self.about["epoch"], **options.pop("params", {})}
        options.setdefault("token", self.worker.token)
        return self.worker.live.call(method, f"{self.path}/{verb}", body, params=params, **options)

    def ok(self, method: str, verb: str, body: object = None, **options: Any) -> Any:
        answer = self.call(method, verb, body, **options)
        assert answer.is_success, answer.text
        return answer.json()

    def put(self, data: bytes, **options: Any) -> httpx.Response:
        return self.call("PUT", f"blobs/{sha(data)}", content=data, **options)


def new_host(live: LiveServer) -> FakeHost:
    name = named("host")
    return FakeHost(live, name, str(live.token("host", name)["token"]))


def error_of(answer: httpx.Response, status: int, code: str) -> ErrorBody:
    """The one shape of every error, with the status and code that are expected."""
    assert answer.status_code == status, answer.text
    body = ErrorBody.model_validate_json(answer.content)
    assert body.code == code, body
    assert body.message, body
    return body


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fresh() -> str:
    return uuid.uuid4().hex


def named(kind: str) -> str:
    return f"{kind}-{next(_NUMBERS)}-{uuid.uuid4().hex[:6]}"


def record(path: str, data: bytes, **more: Any) -> Json:
    return {"path": path, "sha256": sha(data), "size": len(data), **more}


def packed(*items: tuple[str, int, bytes]) -> bytes:
    """A pack as the wire has it; digest and length as given, true or not."""
    return b"".join(f"{digest}{size:016x}".encode() + data for digest, size, data in items)


@contextmanager
def serve(home: Path, *, database: str | None = None, **settings: Any) -> Iterator[LiveServer]:
    given = Settings(home=home, database=database, lease_s=60, first_beat_s=60, **settings)
    home.mkdir(parents=True, exist_ok=True)
    # Already listening, so clients queue in the backlog: no readiness polling.
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = open_store(given)
    clock = JumpingClock()
    transport = build_transport(given, clock.now)
    services = build_services(given, store, transport.trust)
    services = replace(services, clock=clock)
    context = transport.tls.context if transport.tls else None
    control_plane = ControlPlane(services)
    server = HttpServer(
        uvicorn.Config(
            control_plane.app,
            log_level="critical",
            http=FastHttpProtocol,
            # As `bootstrap/server.py` has it: behind another layer the protocol does not see the gate.
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=1,
            ssl_context_factory=(lambda *_: context) if context else None,
        ),
        control_plane.app,
        most_connections=most_connections(),
    )

    async def main() -> None:
        await ensure_identities(given, store, clock.now())
        loops.append(asyncio.get_running_loop())
        ready.set()
        await server.serve(sockets=[listener])

    ready = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(main()), name="server")
    thread.start()
    assert ready.wait(30), "the server did not come up"
    operator = given.operator_token_file.read_text().strip()
    host = (given.worker_home / "token").read_text().strip()
    try:
        scheme = "https" if context else "http"
        trusted = context_for(transport.trust.ca_pem) if context else None
        url = f"{scheme}://127.0.0.1:{port}"
        yield LiveServer(url, home, services, clock, operator, host, port, trusted, transport, loops[0])
    finally:
        server.should_exit = True
        thread.join(timeout=120)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"
