"""The credential this worker shows the server; replaced before it expires, while runs go on."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from corral.client.corral import Corral
from corral.client.hosts.identity import CA, CLIENT, TOKEN, HostIdentity, read_identity, write_rotated
from corral.client.hosts.key import make_key
from corral.client.http.discovery import local_server, own_server, refuse_stranger_at, tls_for
from corral.client.http.transport import Backoff
from corral.client.http.trust import read_ca
from corral.domain.errors import CorralError, ServerUnreachable
from corral.wire.hosts import RotateCredentialRequest

# A credential is replaced when this part of its lifetime is left.
ROTATE_AT = 1 / 3
LONGEST_SLEEP_S = 3600.0
RETRY_S = 30.0
IDENTITY_EVERY_S = 0.2
REMIND_EVERY = 150

logger = logging.getLogger(__name__)


class WorkerCredential:
    """The identity as it is now. `version` changes with it: connections with an older one are replaced."""

    def __init__(self, home: Path, identity: HostIdentity, *, url: str | None) -> None:
        self._home = home
        self._given_url = url
        self._seen = self._stamp()
        self.identity = identity
        self.version = 0

    @property
    def worker_home(self) -> Path:
        return self._home / "worker"

    def reload(self) -> None:
        """Somebody may have written it anew: a rotation, the server beside us, or a new enrolment."""
        stamp = self._stamp()
        if stamp != self._seen and (found := read_identity(self.worker_home)) is not None:
            self._seen = stamp
            self.identity = found
            self.version += 1

    def url(self) -> str:
        """Raise ServerUnreachable while no server has ever said where it is."""
        if found := self._named_url:
            return found
        local = own_server(self._home)
        if local is None:
            raise ServerUnreachable(f"no server is known: CORRAL_URL is not set and {self._home} has none")
        return local.url

    def connect(self, url: str, *, timeout_s: float, backoff: Backoff) -> Corral:
        client = self.worker_home / CLIENT
        tls = tls_for(url, self._ca(), client if client.exists() else None)
        prove = partial(refuse_stranger_at, self._home) if self._named_url is None else None
        return Corral(url, self.identity.token, timeout_s=timeout_s, backoff=backoff, tls=tls, prove=prove)

    @property
    def _named_url(self) -> str | None:
        """Where the server is for good; None for the server of this home, which says itself where it is."""
        return self._given_url or self.identity.url

    def _ca(self) -> str | None:
        kept = self.worker_home / CA
        if kept.exists():
            return read_ca(kept)
        local = local_server(self._home) if self.identity.url is None else None
        return local.ca if local else None

    def _stamp(self) -> tuple[int, ...]:
        """Changes whenever one of the files is written, which replaces it."""
        inodes = []
        for name in (TOKEN, CLIENT):
            try:
                seen = (self.worker_home / name).stat()
                inodes += [seen.st_ino, seen.st_mtime_ns]
            except FileNotFoundError:
                inodes.append(0)
        return tuple(inodes)


class CredentialRotation:
    """A thread that replaces the credential before it expires."""

    def __init__(self, credential: WorkerCredential) -> None:
        self._credential = credential

    def start(self) -> None:
        if self._credential.identity.expires_at is not None:
            threading.Thread(target=self._run, name="corral-rotation", daemon=True).start()

    def _run(self) -> None:
        while True:
            left_s = due_in_s(self._credential.identity, time.time())
            if left_s > 0:
                time.sleep(min(LONGEST_SLEEP_S, left_s))
                continue
            try:
                self.rotate()
            except (CorralError, OSError) as error:
                logger.warning("the credential could not be replaced yet: %s", error)
                longest_s = min(RETRY_S, _lifetime_s(self._credential.identity) / 10)
                time.sleep(random.uniform(0.5, 1.0) * longest_s)
                self._credential.reload()

    def rotate(self) -> None:
        credential = self._credential
        url, before = credential.url(), credential.identity
        key = make_key()
        with credential.connect(url, timeout_s=30.0, backoff=Backoff(tries=2)) as corral:
            made = corral.own_host.rotate(RotateCredentialRequest(certificate_request=key.request_pem))
        now = time.time()
        after = replace(before, token=made.token, issued_at=now, expires_at=now + made.expires_in_s)
        write_rotated(credential.worker_home, after, client_pem=key.with_certificate(made.certificate))
        credential.reload()
        logger.info("the credential of host %s is replaced", after.name)
        # The new one is on disk: the server may end the old one.
        with credential.connect(url, timeout_s=30.0, backoff=Backoff(tries=2)) as corral:
            corral.own_host.settle()


def due_in_s(identity: HostIdentity, now: float) -> float:
    """How long the credential may stay as it is; a clock that was set back does not make it longer."""
    if identity.expires_at is None:
        return float("inf")
    lifetime_s = _lifetime_s(identity)
    return min(identity.expires_at - now, lifetime_s) - lifetime_s * ROTATE_AT


def _lifetime_s(identity: HostIdentity) -> float:
    return max(0.1, (identity.expires_at or 0) - (identity.issued_at or 0))


def wait_for_identity(worker_home: Path, pause: Callable[[float], bool]) -> HostIdentity | None:
    """The identity, as soon as it is there; None if `pause` says to stop waiting."""
    looks = 0
    while (found := read_identity(worker_home)) is None:
        if looks % REMIND_EVERY == 0:
            logger.warning(
                "waiting for %s: the server writes it at its first start (`corral up`), `corral host enroll` "
                "on other machines",
                worker_home / "token",
            )
        looks += 1
        if pause(IDENTITY_EVERY_S):
            return None
    return found
