"""One transaction over either database."""

from __future__ import annotations

from corral.adapters.sql.access import SqlAccess
from corral.adapters.sql.artifacts import SqlArtifacts
from corral.adapters.sql.attempts import SqlAttempts
from corral.adapters.sql.audit import SqlAudit
from corral.adapters.sql.blobs import SqlBlobs
from corral.adapters.sql.calls import SqlCalls
from corral.adapters.sql.connection import Connection
from corral.adapters.sql.endpoints import SqlEndpoints
from corral.adapters.sql.hosts import SqlHosts
from corral.adapters.sql.leases import SqlLeases
from corral.adapters.sql.manifests import SqlManifests
from corral.adapters.sql.quotas import SqlQuotas
from corral.adapters.sql.records import SqlRecords
from corral.adapters.sql.runs import SqlRuns
from corral.adapters.sql.schedules import SqlSchedules
from corral.adapters.sql.volumes import SqlVolumes
from corral.adapters.sql.webhooks import SqlWebhooks

# Postgres carries 8000 bytes with a notification, and a character may take four.
LONGEST_KEY = 1500


class SqlTx:
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
