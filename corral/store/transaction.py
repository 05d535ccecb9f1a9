"""One transaction over either database."""

from __future__ import annotations

from corral.store.connection import Connection
from corral.store.tables.access import SqlAccess
from corral.store.tables.artifacts import SqlArtifacts
from corral.store.tables.attempts import SqlAttempts
from corral.store.tables.audit import SqlAudit
from corral.store.tables.blobs import SqlBlobs
from corral.store.tables.calls import SqlCalls
from corral.store.tables.endpoints import SqlEndpoints
from corral.store.tables.hosts import SqlHosts
from corral.store.tables.leases import SqlLeases
from corral.store.tables.manifests import SqlManifests
from corral.store.tables.quotas import SqlQuotas
from corral.store.tables.records import SqlRecords
from corral.store.tables.runs import SqlRuns
from corral.store.tables.schedules import SqlSchedules
from corral.store.tables.volumes import SqlVolumes
from corral.store.tables.webhooks import SqlWebhooks

# Postgres carries 8000 bytes with a notification, and a character may take four.
LONGEST_KEY = 1500


class Tx:
    """Made once per connection: the parts hold nothing but the connection."""

    def __init__(self, connection: Connection) -> None:
        self.runs = SqlRuns(connection)
        self.attempts = SqlAttempts(connection)
        self.leases = SqlLeases(connection)
        self.hosts = SqlHosts(connection)
        self.access = SqlAccess(connection)
        self.blobs = SqlBlobs(connection)
        self.artifacts = SqlArtifacts(connection)
        self.records = SqlRecords(connection)
        self.manifests = SqlManifests(connection)
        self.schedules = SqlSchedules(connection)
        self.quotas: SqlQuotas = SqlQuotas(connection)
        self.audit = SqlAudit(connection)
        self.webhooks = SqlWebhooks(connection)
        self.endpoints = SqlEndpoints(connection)
        self.calls = SqlCalls(connection)
        self.volumes = SqlVolumes(connection)
        self._announced: list[tuple[str, str]] = []
        self._early: list[tuple[str, str]] = []

    def announce(self, topic: str, key: str, *, early: bool = False) -> None:
        """Told to every subscriber of every server after the commit, and only then.

        One that is `early` may be told while the commit is on its way to the disk, which it may not reach.
        """
        if len(key) > LONGEST_KEY:
            raise ValueError(f"a key of {len(key)} characters is too long to announce: {key[:80]}")
        (self._early if early else self._announced).append((topic, key))

    def take_announced(self) -> list[tuple[str, str]]:
        """What was announced since this was last asked."""
        announced = [*self._early, *self._announced]
        self._early, self._announced = [], []
        return announced

    def take_early(self) -> list[tuple[str, str]]:
        """Of that, what need not wait for the commit."""
        early, self._early = self._early, []
        return early
