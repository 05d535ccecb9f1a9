"""Between rows and records: columns in the order of a record's fields, enums and truth values by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from corral.domain.artifacts import (
    Artifact,
    ArtifactFile,
    ArtifactKind,
    Blob,
    NamedObject,
    Segment,
)
from corral.domain.audit import AuditEntry
from corral.domain.calls import CallRecord, CallState, Chunk
from corral.domain.endpoints import (
    Endpoint,
    EndpointVersion,
    Instance,
    PoolParams,
    ServingVersion,
    VersionState,
)
from corral.domain.hosts import Host
from corral.domain.leases import Lease, LeaseState
from corral.domain.manifests import Manifest, ManifestRun
from corral.domain.quotas import Quota, UsageHours
from corral.domain.reasons import Reason
from corral.domain.runs import Attempt, Event, Group, OnFailure, Parent, Rank, Run, Submission
from corral.domain.schedules import MissedTimes, Overlap, Schedule
from corral.domain.secrets import Secret
from corral.domain.states import RankState, RunState
from corral.domain.tokens import Scope, Token
from corral.domain.volumes import VolumeRecord, VolumeVersion
from corral.domain.webhooks.deliveries import Delivery, DeliveryState, Webhook, WebhookFormat

R = TypeVar("R", bound=NamedTuple)
Row = Sequence[Any]
Params = Mapping[str, object]


class Record(Generic[R]):
    """How one kind of record is kept."""

    def __init__(
        self,
        kind: type[R],
        *,
        enums: Mapping[str, type[StrEnum]] | None = None,
        truths: Iterable[str] = (),
    ) -> None:
        self.columns: tuple[str, ...] = kind._fields
        self._make: Callable[[Iterable[Any]], R] = kind._make
        self._enums = tuple(enums or {})
        self._truths = tuple(truths)
        tables: dict[str, Mapping[Any, Any]] = {name: {0: False, 1: True} for name in self._truths}
        for name, enum in (enums or {}).items():
            tables[name] = {None: None, **{member.value: member for member in enum}}
        self._tables = tuple((self.columns.index(name), table) for name, table in tables.items())

    def read(self, row: Row) -> R:
        if not self._tables:
            return self._make(row)
        values = list(row)
        for index, table in self._tables:
            values[index] = table[values[index]]
        return self._make(values)

    def params(self, record: R) -> dict[str, Any]:
        """Plain values only: drivers would store an enum by its name or not at all."""
        params: dict[str, Any] = record._asdict()
        for name in self._enums:
            if params[name] is not None:
                params[name] = params[name].value
        for name in self._truths:
            params[name] = int(params[name])
        return params


RUN = Record(
    Run,
    enums={"state": RunState, "reason": Reason, "stop_reason": Reason},
    truths=["elastic", "preemptible"],
)
KNOWN = Record(ManifestRun, enums={"state": RunState})
SUBMISSION = Record(Submission)
GROUP = Record(Group)
ATTEMPT = Record(Attempt)
RANK = Record(Rank, enums={"state": RankState, "reason": Reason})
LEASE = Record(Lease, enums={"state": LeaseState})
HOST = Record(Host, truths=["draining"])
TOKEN = Record(Token, enums={"scope": Scope})
SECRET = Record(Secret)
BLOB = Record(Blob)
ARTIFACT = Record(Artifact, enums={"kind": ArtifactKind}, truths=["pinned"])
ARTIFACT_FILE = Record(ArtifactFile)
EVENT = Record(Event)
SEGMENT = Record(Segment)
OBJECT = Record(NamedObject)
PARENT = Record(Parent, enums={"on_failure": OnFailure})
MANIFEST = Record(Manifest)
SCHEDULE = Record(Schedule, enums={"missed": MissedTimes, "overlap": Overlap}, truths=["paused"])
QUOTA = Record(Quota)
HOURS = Record(UsageHours)
AUDIT = Record(AuditEntry)
WEBHOOK = Record(Webhook, enums={"format": WebhookFormat}, truths=["paused"])
DELIVERY = Record(Delivery, enums={"state": DeliveryState})
ENDPOINT = Record(Endpoint, truths=["live", "stopped"])
VERSION = Record(EndpointVersion, enums={"state": VersionState})
INSTANCE = Record(Instance)
SERVING = Record(ServingVersion, enums={"state": VersionState, "lease_state": LeaseState}, truths=["stopped"])
POOL = Record(PoolParams)
CALL = Record(CallRecord, enums={"state": CallState})
CHUNK = Record(Chunk)
VOLUME = Record(VolumeRecord)
VOLUME_VERSION = Record(VolumeVersion)

# What `<run>` stands for in a statement.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "run": RUN.columns,
    "known": KNOWN.columns,
    "submission": SUBMISSION.columns,
    "group": GROUP.columns,
    "attempt": ATTEMPT.columns,
    "rank": RANK.columns,
    "lease": LEASE.columns,
    "host": HOST.columns,
    "token": TOKEN.columns,
    "secret": SECRET.columns,
    "blob": BLOB.columns,
    "artifact": ARTIFACT.columns,
    "artifact_file": ARTIFACT_FILE.columns,
    "event": EVENT.columns,
    "segment": SEGMENT.columns,
    "object": OBJECT.columns,
    "parent": PARENT.columns,
    "manifest": MANIFEST.columns,
    "schedule": SCHEDULE.columns,
    "quota": QUOTA.columns,
    "hours": HOURS.columns,
    "audit": AUDIT.columns,
    "webhook": WEBHOOK.columns,
    "delivery": DELIVERY.columns,
    "endpoint": ENDPOINT.columns,
    "version": VERSION.columns,
    "instance": INSTANCE.columns,
    "pool": POOL.columns,
    "call": CALL.columns,
    "chunk": CHUNK.columns,
    "volume": VOLUME.columns,
    "volume_version": VOLUME_VERSION.columns,
}
