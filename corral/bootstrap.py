"""The only module that names concrete adapters: it builds a server from settings and runs it."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from corral import __version__
from corral.adapters.cipher import FileCipher, load_key
from corral.adapters.clock import SystemClock
from corral.adapters.directory.blobs import DirectoryBlobs
from corral.adapters.directory.segments import DirectorySegments
from corral.adapters.filelock import FileLock
from corral.adapters.sql.sqlite import SqliteStore
from corral.core.access import Made, authenticate, make_host, make_token
from corral.core.audit import note
from corral.core.policy import Policy
from corral.domain.errors import CorralError, Unauthenticated
from corral.domain.host import Scope
from corral.ports.store import Store, Tx
from corral.server.app import Server
from corral.server.corked import CorkedProtocol
from corral.server.services import Limits, Services
from corral.settings import Settings

log = logging.getLogger("corral.server")


class PostgresMissing(CorralError):
    code = "postgres_missing"
    hint = "Install it with `pip install 'corral[postgres]'`."


class CannotListen(CorralError):
    """The server's address cannot be taken."""

    code = "cannot_listen"
    hint = "Choose another port with `--port`, or let CORRAL_PORT=0 pick a free one."


def open_store(settings: Settings) -> Store:
    if settings.database is None:
        return SqliteStore(settings.home / "corral.db")
    try:
        from corral.adapters.sql.postgres import PostgresStore  # noqa: PLC0415 - an extra; most have no psycopg
    except ImportError:
        raise PostgresMissing("CORRAL_DATABASE names Postgres, but psycopg is not installed") from None
    return PostgresStore(settings.database)


def build_services(settings: Settings, store: Store) -> Services:
    policy = Policy(
        lease_s=settings.lease_s,
        first_beat_s=settings.first_beat_s,
        away_s=max(90.0, 3 * settings.lease_s),
        log_quota_bytes=settings.log_quota_bytes,
        log_retention_s=settings.log_retention_s,
        upload_retention_s=settings.upload_retention_s,
        blob_grace_s=settings.blob_grace_s,
        user_pin_s=settings.user_pin_s,
    )
    return Services(
        store=store,
        blobs=DirectoryBlobs(settings.home, min_free_bytes=settings.min_free_bytes),
        segments=DirectorySegments(settings.home / "segments"),
        cipher=FileCipher(load_key(settings.home / "key")),
        clock=SystemClock(),
        policy=policy,
        limits=Limits(settings.max_body_bytes, settings.max_blob_bytes),
    )


async def ensure_identities(settings: Settings, store: Store, now: float) -> None:
    """The first start writes the operator's token, and an identity for this machine's worker.

    So does one whose database does not know them: a file that opens nothing would lock its owner out.
    """
    if not await _is_known(store, settings.operator_token_file, now):
        made = await store.write(lambda tx: _first_operator(tx, now))
        _write_private(settings.operator_token_file, made.text + "\n")
    if not await _is_known(store, settings.worker_home / "token", now):
        name = settings.worker_name or _host_name()

        def unit(tx: Tx) -> tuple[str, str]:
            host, made = make_host(tx, name, now=now)
            note(tx, "host.enroll", f"host:{name}", actor="corral", origin="", now=now, token=made.token.id)
            return host.id, made.text

        host_id, text = await store.write(unit)
        settings.worker_home.mkdir(parents=True, exist_ok=True)
        identity = {"host_id": host_id, "name": name}
        _write_private(settings.worker_home / "host.json", json.dumps(identity) + "\n")
        _write_private(settings.worker_home / "token", text + "\n")


def _first_operator(tx: Tx, now: float) -> Made:
    made = make_token(tx, Scope.OPERATOR, "operator", now=now)
    target = f"token:{made.token.id}"
    note(tx, "token.create", target, actor="corral", origin="", now=now, name="operator", scope="operator")
    return made


async def _is_known(store: Store, path: Path, now: float) -> bool:
    text = _read_if_there(path)
    try:
        await store.read(lambda tx: authenticate(tx, text, now=now))
    except Unauthenticated:
        return False
    return True


def _read_if_there(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _host_name() -> str:
    kept = "".join(c if c.isalnum() and c.isascii() else "-" for c in socket.gethostname()).strip("-")
    return kept[:64] or "this-machine"


def _write_private(path: Path, text: str) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    part = path.with_name(path.name + ".new")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def run_server(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. One server per home: a second is refused."""
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(settings.home / "server.lock", what=f"a server on {settings.home}"):
        uvicorn_loop = asyncio.Runner(loop_factory=_loop_factory())
        with uvicorn_loop as runner:
            runner.run(_serve(settings))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    return uvloop.Loop


async def _serve(settings: Settings) -> None:
    store = open_store(settings)
    services = build_services(settings, store)
    await ensure_identities(settings, store, services.clock.now())
    listener = _listen(settings.host, settings.port)
    control_plane = Server(services)
    # What was made until now lives as long as the server; looking through it again finds nothing.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    config = uvicorn.Config(
        control_plane.app,
        log_level="warning",
        access_log=False,
        http=CorkedProtocol,
        lifespan="on",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
        server_header=False,
        # Nothing here looks at who forwarded a request, and each layer costs.
        proxy_headers=False,
    )
    server = _Announcing(config, settings, before_end=control_plane.close_waits)
    _stop_on_signals(server)
    await server.serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(f"port {port} of {host} is taken") from error
        # Python adds the address once more in brackets.
        why = str(error.strerror).partition(" (while")[0]
        raise CannotListen(
            f"cannot listen on port {port} of {host}: {why}",
            hint="Check CORRAL_HOST and CORRAL_PORT; ports below 1024 are often reserved.",
        ) from error


def _stop_on_signals(server: uvicorn.Server) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))


class _Announcing(uvicorn.Server):
    """Tells where it listens once it does, and takes that back when it ends."""

    def __init__(self, config: uvicorn.Config, settings: Settings, *, before_end: Callable[[], None]) -> None:
        super().__init__(config)
        self._settings = settings
        self._before_end = before_end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            about = {"url": f"http://{shown}:{port}", "pid": os.getpid(), "version": __version__}
            part = self._settings.server_file.with_suffix(".new")
            part.write_text(json.dumps(about) + "\n", encoding="utf-8")
            os.replace(part, self._settings.server_file)
            log.warning("listening on %s", about["url"])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._settings.server_file.unlink(missing_ok=True)
        self._before_end()
        await super().shutdown(sockets)

    def install_signal_handlers(self) -> None:
        """Ours are installed already."""
