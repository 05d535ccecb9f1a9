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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from corral.adapters.blobs.segments import DirectorySegments
from corral.adapters.clock import SystemClock
from corral.adapters.secrets.key import load_key
from corral.adapters.webhook_sender import HttpSender
from corral.bootstrap.executors import InstalledExecutors
from corral.bootstrap.installation import check_database_is_there, join_installation, keep_note
from corral.bootstrap.secrets import CipherOnDemand
from corral.bootstrap.sockets import listen, most_connections, new_loop, open_files, raise_open_files
from corral.bootstrap.storage import join_storage, open_blobs
from corral.bootstrap.transport import ServerTransport, wants_tls
from corral.client.hosts.identity import (
    CLIENT,
    BadIdentity,
    HostIdentity,
    machine_name,
    read_identity,
    write_identity,
)
from corral.client.http.own_server import process_mark
from corral.core.audit import by_corral, note
from corral.core.policy import ServerPolicy
from corral.core.tokens import NewToken, authenticate, make_host, make_token
from corral.domain.errors import Conflict, CorralError, DiskFull, Unauthenticated
from corral.domain.ids import HostId
from corral.domain.tokens import Scope
from corral.domain.webhooks.addresses import parse_networks
from corral.files.atomic import write_private, write_whole
from corral.files.locks import exclusive
from corral.files.private import keep_files_private, private_folder
from corral.server.accepting import HttpServer
from corral.server.app import ControlPlane
from corral.server.http_protocol import FastHttpProtocol
from corral.server.services import RequestLimits, Services
from corral.server.tls import TlsTrust
from corral.settings import Settings
from corral.store.sqlite.store import SqliteStore
from corral.store.store import Store
from corral.store.transaction import Tx
from corral.version import __version__

if TYPE_CHECKING:
    # They load cryptography, which a server without TLS does without.
    from corral.adapters.tls.authority import OwnAuthority
    from corral.adapters.tls.context import ServerTls

log = logging.getLogger("corral.server")
# How often the certificate's files are checked for a change.
TLS_LOOK_S = 10.0


class PostgresMissing(CorralError):
    code = "postgres_missing"
    hint = "Install it with `pip install 'corral[postgres]'`."


def open_store(settings: Settings) -> Store:
    if settings.database is None:
        return SqliteStore(settings.database_file)
    try:
        from corral.store.postgres.store import PostgresStore  # noqa: PLC0415 - an extra; most have no psycopg
    except ImportError:
        raise PostgresMissing("CORRAL_DATABASE names Postgres, but psycopg is not installed") from None
    return PostgresStore(settings.database)


def build_transport(settings: Settings, now: Callable[[], float]) -> ServerTransport:
    """TLS unless only this machine can connect."""
    if not wants_tls(settings):
        return ServerTransport()
    from corral.bootstrap.tls import build_tls  # noqa: PLC0415 - most do without, and cryptography holds 10 MB

    return build_tls(settings, now)


def build_services(settings: Settings, store: Store, trust: TlsTrust | None = None) -> Services:
    # Settings of the same name; a few fields of the policy are not to be set.
    same = {name: value for name, value in settings if name in ServerPolicy.__dataclass_fields__}
    same |= {"away_s": max(90.0, 3 * settings.lease_s), "preemption": settings.preemption == "on"}
    same["models"] = tuple(entry.strip() for entry in settings.models.split(",") if entry.strip())
    policy = ServerPolicy(**same)
    return Services(
        store=store,
        blobs=open_blobs(settings),
        segments=DirectorySegments(settings.home / "segments"),
        cipher=CipherOnDemand(load_key(settings.home / "key")),
        clock=SystemClock(),
        policy=policy,
        sender=HttpSender(parse_networks(settings.webhook_allow)),
        executors=InstalledExecutors(),
        limits=request_limits(settings),
        trust=trust or TlsTrust(),
    )


def request_limits(settings: Settings) -> RequestLimits:
    same = {name: value for name, value in settings if name in RequestLimits.__dataclass_fields__}
    limits = RequestLimits(**same)
    # However few files may be open, one address cannot take them all.
    return replace(limits, waiting_per_address=min(limits.waiting_per_address, max(1, open_files() // 4)))


async def ensure_identities(settings: Settings, store: Store, now: float) -> None:
    """The first start writes the operator's token, and an identity for this machine's worker.

    So does one whose database does not know them: a file that opens nothing would lock its owner out.
    """
    if not await _is_known(store, settings.operator_token_file, now):
        made = await store.write(lambda tx: _first_operator(tx, now))
        write_private(settings.operator_token_file, made.text + "\n")
    if _joined_elsewhere(settings):
        log.warning("%s belongs to a host of another server and is left as it is", settings.worker_home)
    elif not await _is_known(store, settings.worker_home / "token", now):
        await _own_worker(settings, store, now)


async def _own_worker(settings: Settings, store: Store, now: float) -> None:
    name = settings.worker_name or machine_name()

    def unit(tx: Tx) -> HostIdentity | None:
        known = tx.hosts.by_name(name)
        if known is not None and known.revoked_at is not None:
            return None
        host, made = make_host(tx, name, now=now)
        note(tx, "host.enroll", f"host:{name}", by_corral(now), token=made.token.id)
        return HostIdentity(host.id, name, made.text)

    identity = await store.write(unit)
    if identity is None:
        log.warning("host %s is revoked; `corral tokens create %s --scope host` lets it in again", name, name)
        return
    private_folder(settings.worker_home)
    write_identity(settings.worker_home, identity, client_pem=None)


def _joined_elsewhere(settings: Settings) -> bool:
    try:
        found = read_identity(settings.worker_home)
    except BadIdentity:
        return False
    return found is not None and found.url is not None


def give_certificate(settings: Settings, authority: OwnAuthority, now: float) -> None:
    """To the worker beside this server, as an enrolment gives it to those elsewhere.

    For as long as the authority lasts: its key lies in the same home.
    """
    found = None if _joined_elsewhere(settings) else read_identity(settings.worker_home)
    if found is not None:
        pem = authority.make_client(HostId(found.host_id), now=now, lifetime_s=authority.lifetime_s)
        write_private(settings.worker_home / CLIENT, pem)


def _first_operator(tx: Tx, now: float) -> NewToken:
    made = make_token(tx, Scope.OPERATOR, "operator", now=now)
    note(tx, "token.create", f"token:{made.token.id}", by_corral(now), name="operator", scope="operator")
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


def run_server(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. One server per home: a second is refused."""
    keep_files_private()
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _told_if_full(settings.home), exclusive(settings.home / "server.lock") as held:
        if not held:
            raise Conflict(
                f"a server on {settings.home} is running already",
                hint="Use that one, or set CORRAL_HOME to another folder.",
            )
        raise_open_files()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_serve(settings))


@contextmanager
def _told_if_full(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            f"the server cannot start: the disk of {home} is full",
            hint="Free some space, or set CORRAL_HOME to a folder on another disk.",
        ) from error


async def _serve(settings: Settings) -> None:
    check_database_is_there(settings)
    store = open_store(settings)
    transport = build_transport(settings, SystemClock().now)
    tls = transport.tls
    # Before anything is written: what is in this home may belong to another database.
    note = await join_installation(settings, store, SystemClock().now())
    await asyncio.to_thread(join_storage, settings, note.id)
    services = build_services(settings, store, transport.trust)
    await ensure_identities(settings, store, services.clock.now())
    if transport.authority is not None and transport.trust.hosts_need_certificates:
        give_certificate(settings, transport.authority, services.clock.now())
    listener = listen(settings.host, settings.port)
    control_plane = ControlPlane(services)
    # Everything made so far lives as long as the server: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    config = uvicorn.Config(
        control_plane.app,
        log_level="warning",
        access_log=False,
        http=FastHttpProtocol,
        # No route takes one, and its protocol has none of the limits of ours.
        ws="none",
        lifespan="on",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
        server_header=False,
        # No route looks at who forwarded a request, and each layer costs time.
        proxy_headers=False,
        ssl_context_factory=None if tls is None else lambda *_: tls.context,
    )
    server = _Announcing(config, control_plane, settings, transport)
    _stop_on_signals(server)
    keepers = [
        asyncio.create_task(_keep_fresh(tls, settings)),
        asyncio.create_task(keep_note(settings, store, note)),
    ]
    await server.serve(sockets=[listener])
    for keeper in keepers:
        keeper.cancel()


async def _keep_fresh(tls: ServerTls | None, settings: Settings) -> None:
    while tls is not None:
        await asyncio.sleep(min(TLS_LOOK_S, settings.tls_leaf_s / 12))
        try:
            tls.refresh()
        except Exception:
            log.exception("the certificate could not be renewed; it is tried again")


def _stop_on_signals(server: uvicorn.Server) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))


class _Announcing(HttpServer):
    """Tells where it listens once it does, and takes that back when it ends."""

    def __init__(
        self,
        config: uvicorn.Config,
        control_plane: ControlPlane,
        settings: Settings,
        transport: ServerTransport,
    ) -> None:
        super().__init__(config, control_plane.app, most_connections=most_connections())
        self._control_plane = control_plane
        self._settings = settings
        self._transport = transport

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            pid = os.getpid()
            about = {"url": self._url(sockets[0]), "pid": pid, "version": __version__}
            if (mark := process_mark(pid)) is not None:
                about["mark"] = mark
            if self._transport.ca_file is not None:
                about["ca"] = str(self._transport.ca_file.absolute())
            try:
                write_whole(self._settings.server_file, json.dumps(about) + "\n")
            except OSError:
                # Nobody would find it.
                await self.shutdown(sockets)
                raise
            log.warning("listening on %s", about["url"])

    def _url(self, listener: socket.socket) -> str:
        """Where this machine's own clients find it."""
        host, port = listener.getsockname()[:2]
        host = self._transport.name or {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        scheme = "http" if self._transport.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._settings.server_file.unlink(missing_ok=True)
        self._control_plane.close_waits()
        await super().shutdown(sockets)
