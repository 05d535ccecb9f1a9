"""One transaction over either database."""

from __future__ import annotations

from corral.store.table import Connection
from corral.store.tables.artifacts import SqlArtifacts
from corral.store.tables.attempts import SqlAttempts
from corral.store.tables.audit import SqlAudit
from corral.store.tables.blobs import SqlBlobs
from corral.store.tables.calls import SqlCalls
from corral.store.tables.disk import SqlDisk
from corral.store.tables.endpoints import SqlEndpoints
from corral.store.tables.events import SqlEvents
from corral.store.tables.groups import SqlGroups
from corral.store.tables.hosts import SqlHosts, SqlHostSamples
from corral.store.tables.installation import SqlInstallation
from corral.store.tables.leases import SqlLeases
from corral.store.tables.logs import SqlLogs
from corral.store.tables.loops import SqlLoops
from corral.store.tables.manifests import SqlManifests
from corral.store.tables.objects import SqlKeptObjects, SqlObjects
from corral.store.tables.placements import SqlExecutors, SqlPlacements
from corral.store.tables.quotas import SqlQuotas
from corral.store.tables.runs import SqlRuns
from corral.store.tables.schedules import SqlSchedules
from corral.store.tables.secrets import SqlSecrets
from corral.store.tables.tokens import SqlTokens
from corral.store.tables.uploads import SqlUploads
from corral.store.tables.volumes import SqlVolumes
from corral.store.tables.webhooks import SqlWebhooks

# Postgres carries 8000 bytes with a notification, and a character may take four.
LONGEST_KEY = 1500


class Tx:
    """The tables by noun. Made once per connection: a table holds nothing but the connection."""

    def __init__(self, connection: Connection) -> None:
        self.artifacts = SqlArtifacts(connection)
        self.attempts = SqlAttempts(connection)
        self.audit = SqlAudit(connection)
        self.blobs = SqlBlobs(connection)
        self.calls = SqlCalls(connection)
        self.disk = SqlDisk(connection)
        self.endpoints = SqlEndpoints(connection)
        self.events = SqlEvents(connection)
        self.executors = SqlExecutors(connection)
        self.groups = SqlGroups(connection)
        self.host_samples = SqlHostSamples(connection)
        self.hosts = SqlHosts(connection)
        self.installation = SqlInstallation(connection)
        self.leases = SqlLeases(connection)
        self.logs = SqlLogs(connection)
        self.loops = SqlLoops(connection)
        self.manifests = SqlManifests(connection)
        self.objects = SqlObjects(connection)
        self.kept = SqlKeptObjects(connection)
        self.placements = SqlPlacements(connection)
        self.quotas = SqlQuotas(connection)
        self.runs = SqlRuns(connection)
        self.schedules = SqlSchedules(connection)
        self.secrets = SqlSecrets(connection)
        self.tokens = SqlTokens(connection)
        self.uploads = SqlUploads(connection)
        self.volumes = SqlVolumes(connection)
        self.webhooks = SqlWebhooks(connection)
        self._announced: list[tuple[str, str]] = []
        self._early: list[tuple[str, str]] = []

    def announce(self, topic: str, key: str, *, early: bool = False) -> None:
        """Every subscriber of every server hears it after the commit, and only then.

        An `early` one may be heard before the commit is on the disk, and even if it never gets there.
        """
        if len(key) > LONGEST_KEY:
            raise ValueError(f"a key of {len(key)} characters is too long to announce: {key[:80]}")
        (self._early if early else self._announced).append((topic, key))

    def take_announced(self) -> list[tuple[str, str]]:
        """What was announced since the last call, early ones first."""
        announced = [*self._early, *self._announced]
        self._early, self._announced = [], []
        return announced

    def take_early(self) -> list[tuple[str, str]]:
        """The early announcements since the last call."""
        early, self._early = self._early, []
        return early
