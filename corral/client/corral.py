"""The SDK's front door: `with Corral(url, token) as corral: corral.runs.submit(...)`."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Self

from corral.client.artifacts import Artifacts
from corral.client.audit import Audit
from corral.client.calls import Calls
from corral.client.disk import Disk
from corral.client.endpoints import Endpoints
from corral.client.executors import Executors
from corral.client.files.blobs import BlobSink, BlobSource
from corral.client.groups import Groups
from corral.client.hosts.hosts import Hosts, OwnHost
from corral.client.http.discovery import discover, refuse_stranger_at
from corral.client.http.outage import OutageRules
from corral.client.http.stream import lines
from corral.client.http.transport import Backoff, Transport
from corral.client.leases import Leases
from corral.client.manifests.apply import Manifests
from corral.client.quotas import Quotas
from corral.client.runs import Runs
from corral.client.schedules import Schedules
from corral.client.secrets import ProjectSecrets
from corral.client.tokens import Tokens
from corral.client.volumes.volumes import Volumes
from corral.client.webhooks import Webhooks
from corral.wire.health import FsckLine, Health

# Between two lines of a check that reads large files.
FSCK_SILENCE_S = 3600.0


class Corral:
    """Every method is one call. Safe to use from several threads; close it, or use it in `with`."""

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
    ) -> None:
        """`tls` is `trust.context(...)` for a server with an authority of its own; `prove` is asked of each
        new connection whether what is at the address may be sent anything."""
        self.transport = Transport(
            url, token, timeout_s=timeout_s, backoff=backoff, tls=tls, outage=outage, prove=prove
        )
        self.runs = Runs(self.transport)
        self.groups = Groups(self.transport)
        self.schedules = Schedules(self.transport)
        self.artifacts = Artifacts(self.transport)
        self.hosts = Hosts(self.transport)
        self.own_host = OwnHost(self.transport)
        self.tokens = Tokens(self.transport)
        self.secrets = ProjectSecrets(self.transport)
        self.manifests = Manifests(self.transport)
        self.audit = Audit(self.transport)
        self.executors = Executors(self.transport)
        self.webhooks = Webhooks(self.transport)
        self.quotas = Quotas(self.transport)
        self.leases = Leases(self.transport)
        self.endpoints = Endpoints(self.transport)
        self.calls = Calls(self.transport)
        self.volumes = Volumes(self.transport)
        self.disk = Disk(self.transport)

    @classmethod
    def found(
        cls,
        *,
        url: str | None,
        token: str | None,
        home: Path,
        ca: Path | None,
        plain_http: bool = False,
        patience_s: float,
    ) -> Self:
        """A client of the server that `discover` finds; that of this home is found again when it comes back
        at another address."""
        find = partial(discover, url=url, token=token, home=home, ca=ca, plain_http=plain_http)
        address = find()
        outage = OutageRules(patience_s, find if url is None else None)
        # What was given explicitly is its owner's word; the rest was read in this home, and is proven by it.
        prove = partial(refuse_stranger_at, home) if url is None or not token else None
        return cls(address.url, address.token, tls=address.tls, outage=outage, prove=prove)

    @property
    def url(self) -> str:
        return self.transport.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.transport.close()

    def health(self) -> Health:
        """One try, so that a caller who waits for a server sees how it stands now."""
        return self.transport.once("GET", "/v1/health", Health, timeout_s=5, also=(503,))

    def fsck(self) -> Iterator[FsckLine]:
        """Findings as the server makes them; the last line has `done`."""
        with self.transport.stream("POST", "/v1/fsck", read_timeout_s=FSCK_SILENCE_S) as answer:
            for line in lines(answer.iter_bytes()):
                if line:
                    yield FsckLine.model_validate_json(line)

    def sink(self, project: str) -> BlobSink:
        """Where `upload` sends a user's files."""
        return BlobSink.of_project(self.transport, project)

    def source(self, project: str) -> BlobSource:
        """Where `download` reads a project's files."""
        return BlobSource.of_project(self.transport, project)
