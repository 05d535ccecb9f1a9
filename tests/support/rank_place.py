"""A run's rank on a live server, and the socket that its worker would open for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corral.client.hosts.identity import HostIdentity
from corral.domain.secrets.redact import SecretValues
from corral.wire.leases import LeaseView
from corral.worker.child.rank_socket import RankSocket
from corral.worker.credential import WorkerCredential
from corral.worker.lease import LeaseControl, LeaseSession
from corral.worker.server_link import ServerLink
from support.live_server import Lease, LiveServer, new_host


@contextmanager
def rank_socket(
    live: LiveServer, folder: Path, secrets: SecretValues | None = None, *, lease: Lease | None = None
) -> Iterator[Path]:
    """The worker's own code, with a lease of a run that only it may take."""
    lease = lease or new_host(live).run()
    view = LeaseView.model_validate(lease.about)
    identity = HostIdentity(host_id=str(lease.about["id"]), name=lease.worker.name, token=lease.worker.token)
    link = ServerLink(WorkerCredential(folder, identity, url=live.url))
    session = LeaseSession(link, view, LeaseControl(view.id, wall_left_s=None, grace_s=1.0))
    path = folder / "rank.sock"
    with RankSocket(session, path, secrets or SecretValues({})):
        yield path
    link.corral.close()
