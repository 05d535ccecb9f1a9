"""A whole server in this thread: its ASGI app, its store, its clock, and how it dies and comes back."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from support.clock import ManualClock
from support.postgres import PrivatePostgres

from corral.adapters.blobs.folder import DirectoryBlobs
from corral.adapters.blobs.segments import DirectorySegments
from corral.adapters.secrets.cipher import FileCipher
from corral.adapters.secrets.key import load_key
from corral.adapters.webhook_sender import HttpSender
from corral.bootstrap.executors import InstalledExecutors
from corral.core.policy import ServerPolicy
from corral.core.tokens import make_token
from corral.domain.tokens import Scope
from corral.server.app import ControlPlane
from corral.server.services import Services
from corral.store.postgres.store import PostgresStore
from corral.store.sqlite.store import SqliteStore
from corral.store.store import Store
from corral.store.transaction import Tx
from model.faults import FaultyStore, ServerDied

T = TypeVar("T")

# Small segments, so that logs roll over; a short grace, so that the collector has something to do.
# No host is kept for a gang, so that what is free must be used.
POLICY = ServerPolicy(
    lease_s=30.0, first_beat_s=10.0, segment_bytes=300, blob_grace_s=60.0, reserve_after_s=1e12
)
TRIES = 4
# Syncing is tested elsewhere; here a disk in memory makes room for many more steps.
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Reply(NamedTuple):
    status: int
    body: Any

    @property
    def code(self) -> str:
        return str(self.body.get("code", "")) if isinstance(self.body, dict) else ""


class Backend(Protocol):
    def open(self) -> Store: ...

    def died(self) -> None:
        """The server was killed: what the next `open` finds is what was on disk at that moment."""
        ...

    def close(self) -> None: ...


class SqliteBackend:
    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="corral-model-db-", dir=SCRATCH))
        self._lives = 0

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._lives}.db"

    def open(self) -> Store:
        return SqliteStore(self._path)

    def died(self) -> None:
        # The files as they are, the WAL not folded in: closing the old store touches only the old files.
        old, self._lives = self._path, self._lives + 1
        for suffix in ("", "-wal"):
            if (found := old.with_name(old.name + suffix)).exists():
                shutil.copyfile(found, self._path.with_name(self._path.name + suffix))

    def close(self) -> None:
        shutil.rmtree(self._folder)


class PostgresBackend:
    def __init__(self, server: PrivatePostgres) -> None:
        self._stack = ExitStack()
        self._url = self._stack.enter_context(server.fresh())

    def open(self) -> Store:
        return PostgresStore(self._url)

    def died(self) -> None:
        """Its connections end, and with them whatever was not committed."""

    def close(self) -> None:
        self._stack.close()


class World:
    """Calls go in one at a time; a call that the server's death cut short is sent again to the next one."""

    def __init__(self, backend: Backend, policy: ServerPolicy = POLICY) -> None:
        self.clock = ManualClock()
        self._policy = policy
        self.deaths = 0
        self._backend = backend
        self._home = Path(tempfile.mkdtemp(prefix="corral-model-", dir=SCRATCH))
        self._runner = asyncio.Runner()
        self._start()
        self.operator = self.write(
            lambda tx: make_token(tx, Scope.OPERATOR, "operator", now=self.clock.now()).text
        )

    def _start(self) -> None:
        self.store = FaultyStore(self._backend.open())
        self.services = Services(
            store=self.store,
            blobs=DirectoryBlobs(self._home, min_free_bytes=0),
            segments=DirectorySegments(self._home / "segments"),
            cipher=FileCipher(load_key(self._home / "key")),
            clock=self.clock,
            policy=self._policy,
            sender=HttpSender(),
            executors=InstalledExecutors(),
        )
        self.server = ControlPlane(self.services)
        self._heard: list[str] = []
        self._news = asyncio.Event()
        # What the lifespan does, without the loops: here their turns are rules of the machine.
        self.store.subscribe(self.server._heard)
        self.store.subscribe(self._hear)
        self.do(self.server.loops.reconcile())

    def _hear(self, topic: str, key: str) -> None:
        if topic == "model":
            self._heard.append(key)
            self._news.set()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def read(self, unit: Callable[[Tx], T]) -> T:
        return self.do(self.store.inner.read(unit))

    def write(self, unit: Callable[[Tx], T]) -> T:
        return self.do(self.store.inner.write(unit))

    def restart(self) -> None:
        """Killed, and started again on what it left."""
        self.deaths += 1
        self._backend.died()
        self._close_server()
        self._start()

    def _close_server(self) -> None:
        self.do(self.store.inner.close())
        self.services.io.shutdown(wait=True)

    def close(self) -> None:
        self._close_server()
        self._runner.close()
        self._backend.close()
        shutil.rmtree(self._home)

    def settle(self) -> None:
        """Until the server has heard every announcement so far: Postgres delivers them in its own time."""
        mark = f"m{len(self._heard)}-{self.deaths}"
        self.write(lambda tx: tx.announce("model", mark))
        self.do(self._until_heard(mark))

    async def _until_heard(self, mark: str) -> None:
        async with asyncio.timeout(10):
            while mark not in self._heard:
                await self._news.wait()
                self._news.clear()

    def call(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> Reply:
        """Send until there is an answer, as a client does; the same bytes each time."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        for _ in range(TRIES):
            try:
                reply = self.do(self._send(method, path, data, token or self.operator))
            except ServerDied:
                self.restart()
                continue
            if reply.status != 503:
                return reply
        raise AssertionError(f"no answer to {method} {path}")

    async def send(self, method: str, path: str, body: Any, token: str) -> Reply:
        """Once, for tests that send several at a time."""
        return await self._send(method, path, json.dumps(body).encode(), token)

    async def _send(self, method: str, path: str, data: bytes, token: str) -> Reply:
        plain, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": f"/v1/{plain}",
            "raw_path": f"/v1/{plain}".encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (b"host", b"corral"),
                (b"authorization", f"Bearer {token}".encode()),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(data)).encode()),
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.server.app(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in sent)
        try:
            parsed = json.loads(content) if content else None
        except ValueError:
            parsed = content
        return Reply(sent[0]["status"], parsed)
