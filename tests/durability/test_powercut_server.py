"""The whole server after a power cut: everything that it answered for is there, and whole."""

from __future__ import annotations

import hashlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from powercut import PowerCutDisk
from support.local_cluster import LocalCluster, printed, problems
from support.waiting import eventually

from corral.client.corral import Corral
from corral.client.files.tree import FileEntry, Tree
from corral.client.http.transport import Backoff
from corral.domain.errors import CorralError, InvalidInput, ServerUnreachable
from corral.wire.hosts import CapabilityReport
from corral.wire.leases import ClaimRequest, FinishRequest, LeaseView, OutcomeAnswer
from corral.wire.logs import EventBatch, LogRecord
from corral.wire.spec.run_file import RunSpec
from corral.wire.tokens import TokenRequest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the simulator is an LD_PRELOAD library")

ONE_TRY = Backoff(tries=1)
HERE = CapabilityReport(hostname="here", os="linux", arch="x86_64")
ORDER = {"queued": 0, "running": 1, "succeeded": 2}
THREADS = 3

# What a careless server would do. Each must be caught, or the test above proves nothing.
CARELESS_DATABASE = """
import corral.store.sqlite.store as sqlite
tune = sqlite.tune_writer
def tune_carelessly(raw):
    tune(raw)
    raw.execute("PRAGMA synchronous = OFF")
sqlite.tune_writer = tune_carelessly
"""
CARELESS_BLOBS = """
import corral.adapters.blobs.folder as blobs, corral.adapters.blobs.upload as upload
blobs.sync_file = upload.sync_file = blobs.sync_folder = lambda _: None
"""
CARELESS_LOGS = """
import corral.adapters.blobs.segments as segments
segments.sync_data = lambda _: None
"""


@dataclass
class Noted:
    """What was acknowledged: nothing of it may be missing afterwards."""

    states: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, tuple[LeaseView, FinishRequest, OutcomeAnswer]] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    artifacts: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)

    def size(self) -> int:
        return len(self.states) + len(self.artifacts) + len(self.tokens) + len(self.secrets)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tree_of(files: dict[str, bytes]) -> Tree:
    return Tree.of(FileEntry(path, len(data), 0o644, digest_of(data)) for path, data in files.items())


class Load:
    """A user and a worker in one, who write down every answer until there is none."""

    def __init__(self, user: Corral, host: Corral, noted: Noted, seed: str) -> None:
        self.user = user
        self.host = host
        self.noted = noted
        self.dice = random.Random(seed)
        self.name = f"T{seed.replace('-', '_')}"

    def run(self) -> None:
        with suppress(ServerUnreachable):
            for turn in range(100_000):
                self._submit()
                self._work(self._claim())
                if turn % 3 == 0:
                    self._keep_house(turn)

    def _submit(self) -> None:
        (run_id,) = self.user.runs.submit([RunSpec(argv=["true"])]).ids
        # Another thread may have claimed it before this one hears of it.
        self.noted.states.setdefault(run_id, "queued")

    def _claim(self) -> LeaseView:
        request = ClaimRequest(
            request_id=self._word(), boot_id="boot-" * 3, slots=1000, capability=HERE, wait_s=5
        )
        (lease,) = self.host.leases.claim(request).leases
        self.noted.states[lease.run_id] = "running"
        return lease

    def _work(self, lease: LeaseView) -> None:
        leases = self.host.leases
        lines = self.noted.lines.setdefault(lease.run_id, [])
        for seq in range(1, self.dice.randint(2, 4)):
            texts = [self._word() for _ in range(self.dice.randint(1, 50))]
            logs = [LogRecord(at=time.time(), stream="stdout", text=text) for text in texts]
            assert leases.send_events(lease.id, lease.epoch, EventBatch(seq=seq, logs=logs)).accepted
            lines += texts
        files = self._upload(self.host, lease)
        made = leases.commit_artifact(lease.id, lease.epoch, tree_of(files))
        self.noted.artifacts[made.id] = files
        body = FinishRequest(artifact_id=made.id, ran_s=1)
        answer = leases.finish(lease.id, lease.epoch, body)
        self.noted.outcomes[lease.run_id] = (lease, body, answer)
        self.noted.states[lease.run_id] = "succeeded"

    def _upload(self, corral: Corral, lease: LeaseView | None) -> dict[str, bytes]:
        sink = corral.leases.sink(lease.id, lease.epoch) if lease else corral.sink("default")
        small = {f"small-{n}": self._word().encode() for n in range(3)}
        sink.pack([(digest_of(data), data) for data in small.values()])
        large = self.dice.randbytes(self.dice.randint(1, 200_000))
        sink.put(digest_of(large), large, length=len(large), offset=None)
        return {**small, "large": large}

    def _keep_house(self, turn: int) -> None:
        name, value = f"{self.name}_{turn}", self._word()
        self.user.secrets.set("default", name, value)
        self.noted.secrets[name] = value
        made = self.user.tokens.create(TokenRequest(scope="user", name="someone", project="default"))
        self.noted.tokens.append(made.token)
        files = self._upload(self.user, None)
        self.noted.artifacts[self.user.artifacts.commit("default", kind="input", tree=tree_of(files)).id] = (
            files
        )

    def _word(self) -> str:
        return f"{self.dice.getrandbits(128):032x}"


@contextmanager
def serving(plane: LocalCluster) -> Iterator[Corral]:
    try:
        yield plane.start_server()
    finally:
        plane.close()


def load_until_the_cut(disk: PowerCutDisk, *, seed: int, careless: str | None = None) -> Noted:
    """A server at work on the disk, and its power cut at some moment."""
    plane = LocalCluster(disk.root, {**disk.env(), "CORRAL_LEASE_S": "60"})
    if careless is not None:
        start = f"{careless}\nimport sys; from corral.server.__main__ import main; sys.exit(main())"
        plane.server_argv = (sys.executable, "-c", start)
    noted = Noted()
    with serving(plane) as corral:
        noted.tokens.append(plane.token)
        host = corral.tokens.create(TokenRequest(scope="host", name="here")).token
        loads = [
            Load(plane.client(backoff=ONE_TRY), plane.client(host, backoff=ONE_TRY), noted, f"{seed}-{n}")
            for n in range(THREADS)
        ]
        threads = [threading.Thread(target=load.run) for load in loads]
        for thread in threads:
            thread.start()
        eventually(lambda: noted.outcomes and noted.secrets, "the first answers")
        time.sleep(random.Random(seed).uniform(0, 1))
        disk.cut()
        plane.kill_server()
        for thread in threads:
            thread.join()
    return noted


def lost(home: Path, noted: Noted) -> list[str]:
    """What a new server on what is left of the disk does not have."""
    plane = LocalCluster(home, {"CORRAL_LEASE_S": "60"})
    with serving(plane) as corral:
        checks: list[Callable[[Corral, Noted], list[str]]] = [
            lost_runs,
            lost_lines,
            lost_files,
            lost_secrets,
            lost_outcomes,
        ]
        found = [what for check in checks for what in check(corral, noted)]
        for token in noted.tokens:
            found += refused(plane.client(token).runs.page, "a token")
        return found + problems(corral)


def refused(call: Callable[[], object], what: str) -> list[str]:
    try:
        call()
    except CorralError as error:
        return [f"{what}: {error}"]
    return []


def lost_runs(corral: Corral, noted: Noted) -> list[str]:
    states = {run.id: run.state for run in corral.runs.iter()}
    return [
        f"run {run_id} was {state} and is {states.get(run_id)}"
        for run_id, state in noted.states.items()
        if ORDER.get(states.get(run_id, ""), -1) < ORDER[state]
    ]


def lost_lines(corral: Corral, noted: Noted) -> list[str]:
    found = []
    for run_id, lines in noted.lines.items():
        try:
            there = printed(corral, run_id, 1)
        except CorralError as error:
            found.append(f"the log of {run_id}: {error}")
            continue
        # A batch that arrived but was not answered may follow.
        if there[: len(lines)] != lines:
            found.append(f"run {run_id} printed {len(lines)} lines; of {len(there)} not the same are left")
    return found


def lost_files(corral: Corral, noted: Noted) -> list[str]:
    found = []
    for artifact_id, files in noted.artifacts.items():
        try:
            found += corral.artifacts.verify(artifact_id).problems
            for path, data in files.items():
                if b"".join(corral.source("default").read(digest_of(data))) != data:
                    found.append(f"{artifact_id}/{path} has other bytes")
        except CorralError as error:
            found.append(f"{artifact_id}: {error}")
    return found


def lost_secrets(corral: Corral, noted: Noted) -> list[str]:
    """As a run would get them."""
    if not noted.secrets:
        return []
    spec = RunSpec(argv=["true"], secrets=sorted(noted.secrets)[:64], priority=1000)
    made = corral.tokens.create(TokenRequest(scope="host", name="after")).token
    with Corral(corral.url, made) as host:
        try:
            (run_id,) = corral.runs.submit([spec]).ids
        except InvalidInput as error:
            return [error.message]
        ask = ClaimRequest(request_id="request-1", boot_id="boot-" * 3, slots=1, capability=HERE, wait_s=5)
        (lease,) = host.leases.claim(ask).leases
        assert lease.run_id == run_id
        values = host.leases.secrets(lease.id, lease.epoch).values
    return [f"secret {name}" for name in spec.secrets if values.get(name) != noted.secrets[name]]


def lost_outcomes(corral: Corral, noted: Noted) -> list[str]:
    """A worker that never heard the answer asks again, and gets the same one."""
    token = corral.tokens.create(TokenRequest(scope="host", name="here")).token
    found = []
    with Corral(corral.url, token) as host:
        for run_id, (lease, body, answer) in noted.outcomes.items():
            try:
                if host.leases.finish(lease.id, lease.epoch, body) != answer:
                    found.append(f"the outcome of {run_id} was answered otherwise")
            except CorralError as error:
                found.append(f"the outcome of {run_id}: {error}")
    return found


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_was_acknowledged_is_lost_by_a_power_cut(tmp_path: Path, seed: int) -> None:
    """FL-D17, FL-D18, FL-D30, FL-D46: runs, outcomes, logs, artifacts, tokens, secrets."""
    disk = PowerCutDisk.create(tmp_path)
    noted = load_until_the_cut(disk, seed=seed)

    disk.after_crash(tmp_path / "strict")
    disk.after_lucky_crash(tmp_path / "lucky", seed=seed)

    for crashed in ("strict", "lucky"):
        assert lost(tmp_path / crashed, noted) == []


def test_a_second_power_cut_while_the_server_recovers_loses_nothing_either(tmp_path: Path) -> None:
    """FL-D46: the WAL is folded into the database at the start, and cut again in the middle of it."""
    disk = PowerCutDisk.create(tmp_path)
    noted = load_until_the_cut(disk, seed=5)
    disk.after_crash(tmp_path / "first")
    again = PowerCutDisk.adopt(tmp_path / "first", tmp_path / "shadow-2")
    plane = LocalCluster(again.root, again.env())

    with serving(plane):
        again.cut()

    again.after_lucky_crash(tmp_path / "second", seed=5)
    assert lost(tmp_path / "second", noted) == []


@pytest.mark.parametrize(
    "careless", [CARELESS_DATABASE, CARELESS_BLOBS, CARELESS_LOGS], ids=["database", "blobs", "logs"]
)
def test_a_server_that_does_not_sync_is_caught(tmp_path: Path, careless: str) -> None:
    """The proof that the tests above can fail."""
    disk = PowerCutDisk.create(tmp_path)
    noted = load_until_the_cut(disk, seed=1, careless=careless)
    assert noted.size()
    disk.after_crash(tmp_path / "after")

    try:
        found = lost(tmp_path / "after", noted)
    except AssertionError:
        # The database is damaged so much that no server starts on it.
        return
    assert found
