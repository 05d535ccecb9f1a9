"""Between rows and records: a record's fields are the columns, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_type_hints

from corral.domain.artifacts import (
    Artifact,
    ArtifactFile,
    Blob,
    KeptObject,
    NamedObject,
    ObjectCounts,
    Segment,
)
from corral.domain.audit import AuditEntry
from corral.domain.calls import CallRecord, Chunk
from corral.domain.endpoints import (
    Endpoint,
    EndpointVersion,
    Instance,
    PoolParams,
    ServingVersion,
    VersionSummary,
)
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.samples import HostSampleRecord
from corral.domain.installation import Installation
from corral.domain.leases import Lease
from corral.domain.manifests import Manifest, ManifestRun
from corral.domain.placements.placements import ExecutorRecord, Placement
from corral.domain.quotas import Quota, UsageHours
from corral.domain.runs.runs import Attempt, Event, Group, Parent, Rank, Run, Submission
from corral.domain.schedules import Schedule
from corral.domain.secrets.secrets import Secret
from corral.domain.tokens import Token
from corral.domain.volumes import VolumeRecord, VolumeVersion
from corral.domain.webhooks.deliveries import Delivery, Webhook

R = TypeVar("R", bound=NamedTuple)
Row = Sequence[Any]
Params = Mapping[str, object]


class RecordKind(Generic[R]):
    """How one kind of record is kept: enums as their text, truth values as 0 or 1, the rest as it is."""

    def __init__(self, kind: type[R]) -> None:
        self.columns: tuple[str, ...] = kind._fields
        self._make: Callable[[Iterable[Any]], R] = kind._make
        hints = get_type_hints(kind)
        found = ((index, name, _values(hints[name])) for index, name in enumerate(self.columns))
        self._converted = tuple((index, name, values) for index, name, values in found if values)

    def read(self, row: Row) -> R:
        if not self._converted:
            return self._make(row)
        values = list(row)
        for index, _, by_kept in self._converted:
            values[index] = by_kept[values[index]]
        return self._make(values)

    def params(self, record: R) -> dict[str, Any]:
        """Plain values only: drivers would store an enum by its name or not at all."""
        params: dict[str, Any] = record._asdict()
        for _, name, _ in self._converted:
            value = params[name]
            if value is not None:
                params[name] = value.value if isinstance(value, StrEnum) else int(value)
        return params


def _values(hint: Any) -> Mapping[Any, Any]:
    """The values of a field's type by what is kept of them; empty for a type that is kept as it is."""
    for kind in get_args(hint) or (hint,):
        if kind is bool:
            return {0: False, 1: True}
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            return {None: None, **{member.value: member for member in kind}}
    return {}


ARTIFACT = RecordKind(Artifact)
ARTIFACT_FILE = RecordKind(ArtifactFile)
ATTEMPT = RecordKind(Attempt)
AUDIT = RecordKind(AuditEntry)
BLOB = RecordKind(Blob)
CALL = RecordKind(CallRecord)
CHUNK = RecordKind(Chunk)
DELIVERY = RecordKind(Delivery)
ENDPOINT = RecordKind(Endpoint)
EXECUTOR = RecordKind(ExecutorRecord)
PLACEMENT = RecordKind(Placement)
EVENT = RecordKind(Event)
GROUP = RecordKind(Group)
HOST = RecordKind(Host)
HOST_SAMPLE = RecordKind(HostSampleRecord)
HOURS = RecordKind(UsageHours)
INSTALLATION = RecordKind(Installation)
INSTANCE = RecordKind(Instance)
LEASE = RecordKind(Lease)
MANIFEST = RecordKind(Manifest)
MANIFEST_RUN = RecordKind(ManifestRun)
KEPT_OBJECT = RecordKind(KeptObject)
OBJECT = RecordKind(NamedObject)
OBJECT_COUNTS = RecordKind(ObjectCounts)
PARENT = RecordKind(Parent)
POOL = RecordKind(PoolParams)
QUOTA = RecordKind(Quota)
RANK = RecordKind(Rank)
RUN = RecordKind(Run)
SCHEDULE = RecordKind(Schedule)
SECRET = RecordKind(Secret)
SEGMENT = RecordKind(Segment)
SERVING = RecordKind(ServingVersion)
SUBMISSION = RecordKind(Submission)
TOKEN = RecordKind(Token)
VERSION = RecordKind(EndpointVersion)
VERSION_SUMMARY = RecordKind(VersionSummary)
VOLUME = RecordKind(VolumeRecord)
VOLUME_VERSION = RecordKind(VolumeVersion)
WEBHOOK = RecordKind(Webhook)

# What `<run>` stands for in a statement: the columns of RUN.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    name.lower(): kind.columns for name, kind in [*globals().items()] if isinstance(kind, RecordKind)
}
