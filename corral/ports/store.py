"""The database. Use cases are plain functions over a `Tx`; the engine decides when to commit.

Contract: `Store.write` returns after the commit is durable, or raises and nothing of the unit is kept.
A unit may run more than once (lost races on Postgres), so it touches nothing but its `Tx`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from corral.domain.artifacts import (
    Artifact,
    ArtifactFile,
    ArtifactKind,
    Blob,
    NamedObject,
    Segment,
)
from corral.domain.hosts import Host
from corral.domain.ids import ArtifactId, Digest, GroupId, HostId, LeaseId, RunId, TokenId
from corral.domain.leases import Lease
from corral.domain.manifests import ManifestRun
from corral.domain.queue import Lane, LeaseHolding, QueuedRun, ReadyRun, WaitingRun
from corral.domain.quotas import QuotaUse
from corral.domain.runs import Attempt, Event, Group, GroupEnd, Parent, Rank, Run, RunFilter, Submission
from corral.domain.secrets import Secret
from corral.domain.tokens import Token
from corral.ports.audit import Audit
from corral.ports.calls import Calls
from corral.ports.endpoints import Endpoints
from corral.ports.manifests import Manifests
from corral.ports.quotas import Quotas
from corral.ports.schedules import Schedules
from corral.ports.volumes import Volumes
from corral.ports.webhooks import Webhooks

T = TypeVar("T")


class Runs(Protocol):
    def insert(self, run: Run, spec: str) -> None: ...

    def get(self, run_id: RunId) -> Run | None: ...

    def lock(self, run_id: RunId) -> Run | None:
        """Like `get`, and no other transaction changes the run until this one ends."""
        ...

    def lock_all(self, ids: Iterable[RunId]) -> None:
        """Hold them against change, in the one order in which whoever locks several must."""
        ...

    def try_lock(self, run_id: RunId) -> tuple[Run, str] | None:
        """Like `lock`, with the spec, but None as well if another transaction holds the run: nobody waits
        in a circle."""
        ...

    def save(self, run: Run) -> None:
        """Write every column that may change after insert."""
        ...

    def save_policy(self, run: Run, spec: str) -> None:
        """Write what `save` does not: the columns that are not part of a run's identity, and its spec."""
        ...

    def of_manifest(self, project: str, manifest: str) -> dict[Digest, ManifestRun]:
        """By identity, the newest generation of every run that the manifest ever declared."""
        ...

    def spec(self, run_id: RunId) -> str: ...

    def put_spec(self, run_id: RunId, spec: str) -> None: ...

    def delete(self, run_id: RunId) -> None:
        """The run and all that is its own, but for artifacts and log segments."""
        ...

    def by_prefix(self, prefix: str, project: str | None, limit: int) -> list[RunId]: ...

    def page(self, where: RunFilter, *, after: tuple[float, RunId] | None, limit: int) -> list[Run]:
        """Newest first; `after` is the last of the page before."""
        ...

    def lanes(self) -> list[Lane]:
        """Every lane that has a queued run; costs one index seek per lane, however long it is."""
        ...

    def heads(self) -> list[tuple[Lane, ReadyRun]]:
        """The same, each with its oldest run."""
        ...

    def ready(self, lane: Lane, *, after: ReadyRun | None, limit: int) -> list[ReadyRun]:
        """The oldest queued runs of a lane, in order."""
        ...

    def ready_names(self, lane: Lane, *, after: ReadyRun, limit: int) -> list[QueuedRun]:
        """The next queued runs of a lane, with what only the run itself tells a policy."""
        ...

    def due_held(self, now: float, limit: int) -> list[RunId]: ...

    def due_stops(self, now: float, limit: int) -> list[RunId]: ...

    def pull_in(self, *, now: float, stop_s: float, backoff_s: float) -> int:
        """For as long as the server was blind nobody could hear of a stop, and the clock may have gone back:
        every stop is due `stop_s` and its grace from now, and no backoff ends later than `backoff_s` from
        now. Return how many were changed."""
        ...

    def over_wall(self, now: float, since: float, limit: int) -> list[RunId]:
        """Running runs whose wall limit is used up, counting of the present lease only what lies
        after `since`. The worker keeps the limit itself; this is for one that does not."""
        ...

    def stalled(self, now: float, limit: int) -> list[LeaseId]:
        """Live leases of running runs with a stall limit that showed no activity for that long."""
        ...

    def ended_before(self, when: float, limit: int) -> list[RunId]:
        """Final runs that still have log segments and ended before `when`."""
        ...

    def counts(self) -> list[tuple[str, int]]:
        """How many runs are in each state that is not final."""
        ...

    def preemptible(self, after: tuple[int, RunId] | None, limit: int) -> list[Run]:
        """Running runs that may be asked to yield, by priority, the lowest first."""
        ...

    def unstarted(self, project: str, limit: int) -> int:
        """How many runs of the project have not started, counted up to `limit`."""
        ...

    def page_by_id(self, after: RunId | None, limit: int) -> list[Run]: ...

    def newest_generation(self, run: Run) -> int:
        """Of the runs that its manifest declares with the same identity."""
        ...

    def put_submission(self, submission: Submission) -> bool:
        """False, and nothing is written, if this principal used the request id before."""
        ...

    def submission(self, principal: str, request_id: str) -> Submission | None: ...

    def forget_submissions(self, principal: str, prefix: str) -> None:
        """Of whom nobody will ask again, by the beginning of their request ids."""
        ...

    def insert_group(self, group: Group) -> None: ...

    def delete_empty_group(self, group_id: GroupId) -> None:
        """If none of its runs is left."""
        ...

    def group(self, group_id: GroupId) -> Group | None: ...

    def limit_group(self, group_id: GroupId, max_running: int | None) -> None: ...

    def add_parent(self, parent: Parent) -> None: ...

    def parents(self, run_id: RunId) -> list[Parent]: ...

    def children(self, parent_id: RunId) -> list[Parent]: ...

    def waiting_children(self, parent_id: RunId, *, after: str, limit: int) -> list[RunId]:
        """Of the children that are held because they wait for parents, those after `after`, by id."""
        ...

    def waiting(self, after: str, limit: int) -> list[WaitingRun]:
        """Runs that are held because they wait for parents, by id."""
        ...

    def put_unsettled(self, parent_id: RunId, after: str) -> None:
        """Children of the ended run from `after` on were left for the sweeper."""
        ...

    def unsettled(self, limit: int) -> list[tuple[RunId, str]]: ...

    def drop_unsettled(self, parent_id: RunId) -> None: ...

    def lock_group(self, group_id: GroupId) -> Group | None:
        """Like `group`, and nobody else gives places in it until this transaction ends."""
        ...

    def try_lock_group(self, group_id: GroupId) -> Group | None:
        """Like `lock_group`; None also when another transaction has it."""
        ...

    def running_in_group(self, group_id: GroupId, limit: int) -> int:
        """How many of its runs are with a host; no further than the limit."""
        ...

    def queued_in_group(self, group_id: GroupId, limit: int) -> list[RunId]:
        """Those that are queued, the youngest first."""
        ...

    def placed(self, group_id: GroupId, *, but: RunId | None, limit: int) -> int:
        """How many of the group's runs have a place, not counting `but` and at most `limit`: those that
        are queued or further and not final, and those between two tries."""
        ...

    def waiting_in_group(self, group_id: GroupId, hold_reason: str, limit: int) -> list[RunId]:
        """Its runs that are held for this reason, the oldest first."""
        ...

    def group_with_held(self, after: str) -> GroupId | None:
        """The next group by id that has a held run."""
        ...

    def find_groups(self, text: str, project: str | None) -> list[GroupId]:
        """Those with this id or name."""
        ...

    def page_groups(
        self, project: str | None, *, after: tuple[float, GroupId] | None, limit: int
    ) -> list[Group]:
        """Newest first."""
        ...

    def group_states(self, group_id: GroupId) -> dict[str, int]:
        """How many of its runs are in each state."""
        ...

    def group_ends(self, group_id: GroupId, limit: int) -> list[GroupEnd]:
        """Why its runs failed or were cancelled, the most frequent first."""
        ...

    def group_metrics(self, group_id: GroupId, limit: int) -> list[tuple[RunId, str]]:
        """The last metrics of its runs, as JSON."""
        ...

    def group_runs(self, group_id: GroupId, limit: int) -> list[RunId]: ...

    def put_shape(self, shape: Digest, requirements: str) -> None: ...

    def shape(self, shape: Digest) -> str | None: ...


class Attempts(Protocol):
    def open(self, attempt: Attempt) -> None: ...

    def close(self, run_id: RunId, number: int, at: float) -> None: ...

    def of_run(self, run_id: RunId) -> list[Attempt]: ...

    def insert_rank(self, rank: Rank) -> None: ...

    def rank(self, run_id: RunId, attempt: int, rank: int) -> Rank | None: ...

    def ranks(self, run_id: RunId, attempt: int) -> list[Rank]: ...

    def save_rank(self, rank: Rank) -> None: ...


class Leases(Protocol):
    def insert(self, lease: Lease) -> None: ...

    def get(self, lease_id: LeaseId) -> Lease | None: ...

    def lock_runs(self, ids: Iterable[LeaseId]) -> None:
        """Hold the runs of these leases, in the order of `runs.lock_all`."""
        ...

    def hold(self, lease_id: LeaseId) -> tuple[Run, Lease] | None:
        """The lease with its run; no other transaction changes either until this one ends."""
        ...

    def save(self, lease: Lease) -> None: ...

    def live_of_host(self, host_id: HostId) -> list[Lease]: ...

    def held(self, host_id: HostId) -> list[LeaseHolding]:
        """What each live lease of the host holds."""
        ...

    def held_by_host(self) -> list[tuple[HostId, LeaseHolding]]:
        """The same for every host that has some."""
        ...

    def live_of_run(self, run_id: RunId) -> list[Lease]: ...

    def live_of_project(self, project: str) -> list[Lease]: ...

    def in_use(self, *, now: float, since: float, project: str | None = None) -> list[QuotaUse]:
        """By project, what its live leases hold, and for how long since then; reads only an index."""
        ...

    def expired(self, now: float, limit: int) -> list[LeaseId]: ...

    def restamp(self, expires_at: float) -> int:
        """Give every live lease until then; return how many."""
        ...

    def live_count(self) -> int: ...


class Hosts(Protocol):
    def insert(self, host: Host) -> None: ...

    def get(self, host_id: HostId) -> Host | None: ...

    def lock(self, host_id: HostId) -> Host | None:
        """Like `get`, and no other transaction gives this host leases until this one ends."""
        ...

    def by_name(self, name: str) -> Host | None: ...

    def save(self, host: Host) -> None: ...

    def seen(self, host_id: HostId, at: float) -> None: ...

    def page(self, after: HostId | None, limit: int) -> list[Host]: ...

    def declared_by(self, manifest: str) -> list[Host]:
        """Hosts that this manifest, as `project/name`, declares."""
        ...

    def forgive(self, host_id: HostId) -> bool:
        """Clear what is held against the host; False, at little cost, if nothing is."""
        ...

    def pull_in(self, latest: float) -> int:
        """After the clock went back: no host is set aside for longer than until then."""
        ...

    def busy(self) -> list[tuple[HostId, int]]: ...


class Access(Protocol):
    def insert_token(self, token: Token) -> None: ...

    def token(self, token_id: TokenId) -> Token | None: ...

    def tokens(self, after: TokenId | None, limit: int) -> list[Token]: ...

    def revoke(self, token_id: TokenId, at: float) -> bool: ...

    def of_host(self, host_id: HostId) -> list[Token]:
        """Its credentials that are not revoked, expired ones among them."""
        ...

    def use(self, token_id: TokenId, host_id: HostId, *, by: str, at: float) -> bool:
        """Mark a join token as used for this host; False if it was used before."""
        ...

    def shorten(self, token_id: TokenId, expires_at: float) -> None:
        """It ends then, unless it ends before."""
        ...

    def put_secret(self, secret: Secret) -> None: ...

    def secret(self, project: str, name: str) -> Secret | None: ...

    def secrets(self, project: str) -> list[Secret]: ...

    def delete_secret(self, project: str, name: str) -> bool: ...


class Blobs(Protocol):
    def get(self, project: str, digest: Digest) -> Blob | None: ...

    def put(self, blob: Blob) -> None:
        """Insert, or clear nothing if it is there already."""
        ...

    def present(self, project: str, digests: Sequence[Digest]) -> dict[Digest, int]:
        """Of these, the ones the project has and that are not condemned, with their sizes."""
        ...

    def pin(
        self, project: str, digests: Sequence[Digest], *, holder: str, expires_at: float | None
    ) -> None: ...

    def unpin(self, holder: str) -> None: ...

    def expire_pins(self, now: float) -> int: ...

    def condemn(self, older_than: float, now: float, limit: int) -> list[Blob]:
        """Mark rows with neither manifest nor pin, and return them together with those marked before."""
        ...

    def drop(self, project: str, digest: Digest) -> bool:
        """Delete a condemned row; True if no other project has the bytes either."""
        ...

    def page(self, after: tuple[str, Digest] | None, limit: int) -> list[Blob]: ...

    def any_project_has(self, digest: Digest) -> bool:
        """Whether a row that is not condemned names these bytes."""
        ...

    def is_condemned(self, digest: Digest) -> bool:
        """Whether a row of any project that names these bytes is on its way out."""
        ...

    def project_bytes(self, project: str) -> int:
        """How many bytes the project's files have, those on their way out included. In a transaction that
        writes, no other one asks this until it ends: what is added to the answer stays true."""
        ...

    def count_bytes(self, project: str) -> None:
        """Count them, and keep the count: from then on `project_bytes` need not look at every file. Done
        again now and then, since servers of before did not keep it."""
        ...


class Artifacts(Protocol):
    def insert(self, artifact: Artifact, files: Sequence[ArtifactFile]) -> None: ...

    def get(self, artifact_id: ArtifactId) -> Artifact | None: ...

    def by_digest(self, project: str, kind: ArtifactKind, digest: Digest) -> Artifact | None:
        """A user's upload (no run) with equal content."""
        ...

    def files(self, artifact_id: ArtifactId, *, after: str, limit: int) -> list[ArtifactFile]: ...

    def has(self, artifact_id: ArtifactId, path: str) -> bool:
        """Whether it has a file or a folder of this path."""
        ...

    def of_run(self, run_id: RunId) -> list[Artifact]: ...

    def page(
        self, project: str | None, *, after: tuple[float, ArtifactId] | None, limit: int
    ) -> list[Artifact]: ...

    def names_blob(self, artifact_ids: Sequence[ArtifactId], digest: Digest) -> bool: ...

    def naming(self, project: str, digest: Digest, limit: int) -> list[tuple[ArtifactId, str, RunId | None]]:
        """Which artifacts of the project hold these bytes: the artifact, the file's path, the run."""
        ...

    def newest_checkpoint(self, run_id: RunId) -> Artifact | None: ...

    def set_pinned(self, artifact_id: ArtifactId, pinned: bool) -> None: ...

    def delete(self, artifact_id: ArtifactId) -> None: ...

    def unused_uploads(self, before: float, limit: int) -> list[ArtifactId]:
        """Code and inputs that no run, schedule or endpoint names, made before then."""
        ...

    def use(self, run_id: RunId, artifact_ids: Iterable[ArtifactId]) -> None:
        """Remember which artifacts a run reads."""
        ...

    def forget_uses(self, run_id: RunId) -> None: ...

    def used_by(self, run_id: RunId) -> list[ArtifactId]: ...

    def is_used(self, artifact_id: ArtifactId, *, but: RunId) -> bool:
        """Whether another run, a schedule or an endpoint reads it."""
        ...


class Records(Protocol):
    """Events, log segments, small objects, and the marks of loops."""

    def append_event(self, event: Event) -> None: ...

    def events(self, run_id: RunId, *, after: int, limit: int) -> list[Event]: ...

    def feed(self, after: str, limit: int) -> tuple[list[Event], str]:
        """Events of all runs after a cursor (empty: from the beginning), and the next cursor.

        An event that commits late is never skipped.
        """
        ...

    def feed_end(self) -> str:
        """A cursor from which `feed` gives what commits from now on."""
        ...

    def segment(self, segment: Segment) -> None:
        """Insert or replace."""
        ...

    def segments(self, run_id: RunId, stream: str) -> list[Segment]: ...

    def last_segment(self, run_id: RunId, attempt: int, rank: int, stream: str) -> Segment | None: ...

    def delete_segments(self, run_id: RunId) -> int: ...

    def runs_gone(self, limit: int) -> list[RunId]:
        """Runs that were removed and still have segments."""
        ...

    def put_object(self, item: NamedObject) -> None: ...

    def object(self, run_id: RunId, key: str) -> NamedObject | None: ...

    def objects(self, run_id: RunId, prefix: str, *, after: str, limit: int) -> list[str]: ...

    def object_count(self, run_id: RunId) -> int: ...

    def usage(self) -> list[tuple[str, float, float]]:
        """(project, seconds used, as of when) for fair share."""
        ...

    def put_usage(self, project: str, used_s: float, at: float) -> None: ...

    def tick(self, loop: str, at: float) -> None: ...


class Tx(Protocol):
    """One transaction. The parts are named by noun."""

    @property
    def runs(self) -> Runs: ...
    @property
    def attempts(self) -> Attempts: ...
    @property
    def leases(self) -> Leases: ...
    @property
    def hosts(self) -> Hosts: ...
    @property
    def access(self) -> Access: ...
    @property
    def blobs(self) -> Blobs: ...
    @property
    def artifacts(self) -> Artifacts: ...
    @property
    def records(self) -> Records: ...
    @property
    def manifests(self) -> Manifests: ...
    @property
    def schedules(self) -> Schedules: ...
    @property
    def quotas(self) -> Quotas: ...
    @property
    def audit(self) -> Audit: ...
    @property
    def webhooks(self) -> Webhooks: ...
    @property
    def endpoints(self) -> Endpoints: ...
    @property
    def calls(self) -> Calls: ...
    @property
    def volumes(self) -> Volumes: ...

    def announce(self, topic: str, key: str, *, early: bool = False) -> None:
        """Told to every subscriber of every server after the commit, and only then.

        One that is `early` may be told while the commit is on its way to the disk, which it may not reach.
        """
        ...


class Store(Protocol):
    @property
    def alone(self) -> bool:
        """Whether no other server writes to it."""
        ...

    async def write(self, unit: Callable[[Tx], T], *, patient: bool = False) -> T:
        """Run the unit; return after its commit is durable. StoreUnavailable if it cannot be now.

        A commit of `patient` ones alone may wait some milliseconds for others to share it with.
        """
        ...

    async def write_each(self, units: Sequence[Callable[[Tx], T]]) -> list[T | Exception]:
        """Like `write` for each of them, in order and with as few commits as it takes. An error is the
        answer to its own unit, and harms no other."""
        ...

    async def read(self, unit: Callable[[Tx], T]) -> T:
        """Run the unit on one consistent snapshot; it must not write and must end within a second."""
        ...

    def subscribe(self, listener: Callable[[str, str], None]) -> None:
        """Call `listener(topic, key)` in the event loop for what commits announced. May repeat or,
        after a lost connection, miss: listeners treat it as a hint."""
        ...

    async def lead(self, loop: str) -> bool:
        """Whether this server may run the loop now; at most one server gets True at a time."""
        ...

    async def close(self) -> None: ...
