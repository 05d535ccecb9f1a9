"""Promise 6 with real processes: outages, lost and late workers, locks, full and damaged disks."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from support.local_cluster import (
    LocalCluster,
    WorkerProcess,
    answers,
    event_types,
    local_cluster,
    marked,
    printed,
    problems,
    python,
    result,
    wait_final,
    wait_line,
)
from support.waiting import eventually

from corral.client.corral import Corral
from corral.client.files.download import ContentMismatch, download
from corral.client.files.tree import scan
from corral.client.files.upload import upload
from corral.client.http.transport import Backoff
from corral.domain.errors import CorralError, DiskFull, LeaseLost, StoreUnavailable
from corral.wire.leases import BeatRequest, FinishRequest
from corral.wire.logs import EventBatch, LogRecord
from corral.wire.runs import RunDetail
from corral.wire.spec.run_file import RunSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc as Linux has them")

LEASE_S = 2.5
# For how long something must be away so that its lease is surely over and swept.
AWAY_S = 2 * LEASE_S + 1.0
ONE_TRY = Backoff(tries=1)

WORK = """
print('begun', flush=True)
deadline = time.time() + float(env.get('WORK_S', '3'))
while time.time() < deadline:
    print('tick', flush=True)
    time.sleep(0.25)
if env.get('SAVES'):
    folder = pathlib.Path(env['CORRAL_CHECKPOINT_DIR'], 'last')
    folder.mkdir()
    (folder / 'step').write_text('1')
    say(checkpoint=str(folder), step=1)
(O / 'who').write_text(env['CORRAL_ATTEMPT'])
print('done', flush=True)
"""

# Goes on from its checkpoint, and leaves a process behind that has a session of its own.
RESUMABLE = """
first = 0
if 'CORRAL_RESUME_DIR' in env:
    first = int(pathlib.Path(env['CORRAL_RESUME_DIR'], 'step').read_text())
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(300)
    os._exit(0)
os.wait()
print('from', first, flush=True)
folder = pathlib.Path(env['CORRAL_CHECKPOINT_DIR'], 'new')
folder.mkdir()
(folder / 'step').write_text(str(first + 1))
say(checkpoint=str(folder), step=first + 1)
time.sleep(0.2 if first else 300)
(O / 'from').write_text(str(first))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def plane(home: Path) -> Iterator[LocalCluster]:
    with local_cluster(home, lease_s=LEASE_S) as made:
        yield made


def work(seconds: float = 3.0, **env: str) -> RunSpec:
    return python(WORK, env={"WORK_S": str(seconds), **env})


def submit(corral: Corral, *specs: RunSpec) -> list[str]:
    return [corral.runs.submit([spec]).ids[0] for spec in specs]


def running(corral: Corral, run_id: str) -> RunDetail:
    wait_line(corral, run_id, "begun")
    return corral.runs.get(run_id)


def check_whole(corral: Corral, run: RunDetail) -> None:
    """One accepted result, made by the last attempt, with its whole log."""
    assert (run.state, run.reason) == ("succeeded", "finished")
    assert result(corral, run) == {"who": str(run.attempt).encode()}
    lines = printed(corral, run.id, run.attempt)
    assert (lines[0], lines[-1]) == ("begun", "done")
    assert set(lines[1:-1]) == {"tick"}
    assert event_types(corral, run.id).count("finish") == 1


def test_a_server_that_is_away_for_longer_than_a_lease_costs_no_run_its_attempt(plane: LocalCluster) -> None:
    """FL-D01, FL-D37, FL-D43, MT-C34, MT-D09: one run ends during the outage, one after it; both keep their
    work, and their checkpoints."""
    plane.own_worker(slots=3)
    corral = plane.client()
    soon, later = submit(corral, work(1.5, SAVES="1"), work(AWAY_S + 3, SAVES="1"))
    for run_id in (soon, later):
        running(corral, run_id)

    plane.kill_server()
    time.sleep(AWAY_S)
    corral = plane.start_server()

    for run_id in (soon, later):
        run = wait_final(corral, run_id)
        check_whole(corral, run)
        assert run.attempt == 1
        assert run.retries_used == {"infrastructure": 0, "memory": 0, "code": 0}
        assert [one.kind for one in corral.runs.checkpoints(run_id).items] == ["checkpoint"]
    assert "requeue" not in event_types(corral, soon) + event_types(corral, later)
    assert problems(corral) == []


def test_a_worker_that_slept_past_its_lease_takes_its_run_up_again(plane: LocalCluster) -> None:
    """FL-D01: it has a slot free, and must not be given its own run as a new one."""
    worker = plane.own_worker(slots=2)
    corral = plane.client()
    (run_id,) = submit(corral, work(AWAY_S + 4))
    running(corral, run_id)

    os.kill(worker.pid, signal.SIGSTOP)
    eventually(lambda: "requeue" in event_types(corral, run_id), "the sweeper to expire the lease")
    assert corral.runs.get(run_id).retries_used["infrastructure"] == 1
    time.sleep(1)
    os.kill(worker.pid, signal.SIGCONT)

    run = wait_final(corral, run_id)
    check_whole(corral, run)
    assert run.attempt == 1
    assert "reattach" in event_types(corral, run_id)
    assert run.retries_used["infrastructure"] == 0


def test_what_a_worker_says_after_its_run_went_to_another_changes_nothing(
    plane: LocalCluster, tmp_path: Path
) -> None:
    """FL-D29, FL-D38, FL-D41: its beat, log, upload and finish are refused, and its child is killed."""
    first = plane.own_worker(slots=2)
    corral = plane.client()
    (run_id,) = submit(corral, work(AWAY_S + 5))
    before = running(corral, run_id)
    lease_id = before.attempts[0].ranks[0].lease_id or ""
    os.kill(first.pid, signal.SIGSTOP)
    second = plane.other_worker(tmp_path / "other", "other", slots=1)
    wait_line(corral, run_id, "begun", attempt=2)
    assert marked(first.data_dir, CORRAL_LEASE_ID=lease_id)

    check_refused(plane, corral, run_id, lease_id, epoch=before.attempts[0].ranks[0].epoch)
    os.kill(first.pid, signal.SIGCONT)
    eventually(lambda: not marked(first.data_dir, CORRAL_LEASE_ID=lease_id), "the old child to be killed")

    run = wait_final(corral, run_id)
    check_whole(corral, run)
    assert (run.attempt, run.attempts[1].ranks[0].host) == (2, "other")
    assert "done" not in printed(corral, run_id, attempt=1)
    assert marked(second.data_dir) == []
    assert problems(corral) == []


def check_refused(plane: LocalCluster, corral: Corral, run_id: str, lease_id: str, *, epoch: int) -> None:
    events = event_types(corral, run_id)
    leases = plane.client((plane.home / "worker" / "token").read_text().strip()).leases
    assert leases.beat(lease_id, epoch, BeatRequest()).action == "lost"
    late = EventBatch(seq=1000, logs=[LogRecord(at=0, stream="stdout", text="late")])
    for number in range(1, 1000):
        late = late.model_copy(update={"seq": number})
        with suppress(LeaseLost):
            if leases.send_events(lease_id, epoch, late).accepted:
                pytest.fail("a late batch was accepted")
            continue
        break
    with pytest.raises(LeaseLost):
        leases.sink(lease_id, epoch).pack([(hashlib.sha256(b"late").hexdigest(), b"late")])
    with pytest.raises(LeaseLost):
        leases.finish(lease_id, epoch, FinishRequest())
    assert event_types(corral, run_id) == events
    assert "late" not in printed(corral, run_id, attempt=1)


@pytest.fixture
def slow_plane(home: Path) -> Iterator[LocalCluster]:
    """With leases that do not run out within a test."""
    with local_cluster(home, lease_s=120) as made:
        yield made


def test_a_killed_workers_run_resumes_at_once_and_nothing_of_it_survives(slow_plane: LocalCluster) -> None:
    """FL-D33, FL-D44: released free of charge by the next boot, long before the lease is over."""
    plane = slow_plane
    worker = plane.own_worker(slots=2)
    corral = plane.client()
    (run_id,) = submit(corral, python(RESUMABLE))
    eventually(lambda: corral.runs.checkpoints(run_id).items, "the checkpoint to arrive")
    before = marked(worker.data_dir)
    assert len(before) == 2

    plane.kill_worker(worker)
    eventually(lambda: not set(before) & set(marked(worker.data_dir)), "the shim to kill them", within_s=30)
    plane.start_worker(worker)

    run = wait_final(corral, run_id)
    assert (run.state, run.attempt) == ("succeeded", 2)
    assert run.retries_used["infrastructure"] == 0
    assert result(corral, run) == {"from": b"1"}
    assert printed(corral, run_id, attempt=2) == ["from 1"]
    eventually(lambda: not marked(worker.data_dir), "the daemons to be gone")


def test_a_worker_killed_between_the_end_of_its_child_and_the_report_delivers_it_later(
    plane: LocalCluster,
) -> None:
    """FL-D30: with the server away as well, result and log are on the worker's disk alone."""
    worker = plane.own_worker(slots=2)
    corral = plane.client()
    (run_id,) = submit(corral, work(1.0))
    running(corral, run_id)
    plane.kill_server()
    eventually(lambda: not marked(worker.data_dir), "the child to end")
    record = next((worker.data_dir / "leases").glob("*/job.json"))
    eventually(lambda: '"finish"' in record.read_text(), "the outcome to be noted on disk")

    plane.kill_worker(worker)
    corral = plane.start_server()
    plane.start_worker(worker)

    run = wait_final(corral, run_id)
    check_whole(corral, run)
    assert run.attempt == 1
    eventually(lambda: not list((worker.data_dir / "leases").iterdir()), "the workspace to be removed")


def test_an_outcome_that_comes_after_the_lease_was_swept_is_still_accepted(plane: LocalCluster) -> None:
    """FL-D01: the worker was dead for longer than the lease; nobody else has claimed the run since."""
    worker = plane.own_worker(slots=2)
    corral = plane.client()
    (run_id,) = submit(corral, work(1.0))
    running(corral, run_id)
    plane.kill_server()
    eventually(lambda: not marked(worker.data_dir), "the child to end")
    record = next((worker.data_dir / "leases").glob("*/job.json"))
    eventually(lambda: '"finish"' in record.read_text(), "the outcome to be noted on disk")
    plane.kill_worker(worker)
    corral = plane.start_server()
    eventually(lambda: "requeue" in event_types(corral, run_id), "the sweeper to expire the lease")

    plane.start_worker(worker)

    run = wait_final(corral, run_id)
    check_whole(corral, run)
    assert run.attempt == 1
    assert run.retries_used["infrastructure"] == 0


def test_a_second_server_on_one_home_is_refused_and_harms_nothing(plane: LocalCluster) -> None:
    """FL-D39, MT-D25."""
    announced = (plane.home / "server.json").read_text()

    second = subprocess.run(
        [sys.executable, "-m", "corral.server"],
        env=plane.env(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert second.returncode != 0
    assert "is running already" in second.stderr
    assert "Traceback" not in second.stderr
    assert (plane.home / "server.json").read_text() == announced
    assert plane.client().health().ok


def test_a_database_locked_by_another_program_delays_and_loses_nothing(plane: LocalCluster) -> None:
    """FL-D39: nobody is told `database is locked` but by a code that says to try again."""
    plane.own_worker(slots=2)
    corral = plane.client()
    (run_id,) = submit(corral, work(AWAY_S + 2))
    running(corral, run_id)
    told: list[str] = []

    def ask() -> None:
        try:
            plane.client(backoff=ONE_TRY).runs.submit([work(0.1)])
        except StoreUnavailable as error:
            told.append(error.code)

    with closing(sqlite3.connect(plane.home / "corral.db", isolation_level=None)) as intruder:
        intruder.execute("BEGIN IMMEDIATE")
        asking = threading.Thread(target=ask)
        asking.start()
        accepted: list[str] = []
        patient = threading.Thread(target=lambda: accepted.extend(submit(corral, work(0.1))))
        patient.start()
        assert corral.runs.get(run_id).state == "running"
        time.sleep(AWAY_S + 2)
        intruder.execute("ROLLBACK")
    asking.join()
    patient.join()

    assert told == ["store_unavailable"]
    for each in (run_id, *accepted):
        run = wait_final(corral, each)
        check_whole(corral, run)
        assert run.attempt == 1
    assert problems(corral) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB with nothing on it."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "corral-test", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("cannot mount a small tmpfs here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_of_the_server_delays_and_loses_nothing(small_disk: Path, tmp_path: Path) -> None:
    """What runs goes on; uploads are refused with disk_full; when there is space again all goes on."""
    with local_cluster(small_disk / "home", lease_s=LEASE_S, CORRAL_MIN_FREE_BYTES=str(4 << 20)) as plane:
        # The worker has a disk of its own, or its own spool would be what is full.
        worker = plane.other_worker(tmp_path / "other", "other", slots=2)
        corral = plane.client()
        (run_id,) = submit(corral, work(AWAY_S + 2))
        running(corral, run_id)
        ballast = fill(small_disk)

        assert_disk_full(plane, corral, tmp_path)
        time.sleep(AWAY_S + 3)
        assert worker.process is not None
        assert worker.process.poll() is None
        assert "the server's disk is full" in corral.health().detail
        ballast.unlink()
        assert answers(corral)

        run = wait_final(corral, run_id)
        check_whole(corral, run)
        assert run.attempt == 1
        (after,) = submit(corral, work(0.1))
        check_whole(corral, wait_final(corral, after))
        assert problems(corral) == []


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def assert_disk_full(plane: LocalCluster, corral: Corral, tmp_path: Path) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    (folder / "data").write_bytes(os.urandom(1 << 20))
    with pytest.raises(DiskFull):
        upload(scan(folder, ignore=None), folder, plane.client(backoff=ONE_TRY).sink("default"))
    with pytest.raises((DiskFull, StoreUnavailable)):
        submit(plane.client(backoff=ONE_TRY), *[work(0.1)] * 1000)
    assert corral.runs.page(limit=1).items


def test_uploads_stop_while_less_than_the_reserve_is_free_and_go_on_afterwards(
    home: Path, tmp_path: Path
) -> None:
    with local_cluster(home, lease_s=LEASE_S, CORRAL_MIN_FREE_BYTES=str(1 << 60)) as plane:
        worker = plane.own_worker(slots=1)
        corral = plane.client()
        (run_id,) = submit(corral, work(0.5))
        running(corral, run_id)
        eventually(lambda: not marked(worker.data_dir), "the child to end")
        time.sleep(2)
        assert corral.runs.get(run_id).state == "running"
        plane.kill_server()
        corral = plane.start_server({"CORRAL_MIN_FREE_BYTES": "0"})

        run = wait_final(corral, run_id)
        check_whole(corral, run)
        assert run.attempt == 1


def test_a_damaged_blob_is_told_by_get_verify_and_fsck_and_healed_by_the_same_upload(
    plane: LocalCluster, tmp_path: Path
) -> None:
    """FL-D16: never a wrong byte without a word."""
    plane.own_worker(slots=1)
    corral = plane.client()
    run = wait_final(corral, submit(corral, work(0.1))[0])
    assert run.artifact_id is not None
    digest = hashlib.sha256(b"1").hexdigest()
    blob = plane.home / "blobs" / digest[:2] / digest
    blob.chmod(0o600)
    blob.write_bytes(b"2")

    with pytest.raises(ContentMismatch):
        download(corral.artifacts, run.artifact_id, corral.source("default"), tmp_path / "got")
    assert not (tmp_path / "got").exists()
    (verified,) = corral.artifacts.verify(run.artifact_id).problems
    assert digest in verified
    (found,) = problems(corral)
    assert digest in found

    corral.sink("default").pack([(digest, b"1")])
    assert problems(corral) == []
    assert result(corral, run) == {"who": b"1"}


def test_a_blob_that_is_damaged_when_a_run_makes_it_again_is_healed_by_that_run(plane: LocalCluster) -> None:
    """FL-D18: the server knows the digest, so the worker would not send the bytes again."""
    plane.own_worker(slots=1)
    corral = plane.client()
    wait_final(corral, submit(corral, work(0.1))[0])
    digest = hashlib.sha256(b"1").hexdigest()
    blob = plane.home / "blobs" / digest[:2] / digest
    blob.unlink()

    run = wait_final(corral, submit(corral, work(0.1))[0])

    check_whole(corral, run)
    assert problems(corral) == []


def test_a_worker_of_another_home_cannot_be_mistaken_for_the_first(
    plane: LocalCluster, tmp_path: Path
) -> None:
    """FL-D31: each host touches only its own leases."""
    plane.own_worker(slots=1)
    corral = plane.client()
    (run_id,) = submit(corral, work(1.5))
    run = running(corral, run_id)
    rank = run.attempts[0].ranks[0]
    other: WorkerProcess = plane.other_worker(tmp_path / "other", "other", slots=1)
    leases = plane.client((other.data_dir / "token").read_text()).leases

    with pytest.raises(CorralError) as refused:
        leases.finish(rank.lease_id or "", rank.epoch, FinishRequest())

    assert refused.value.code == "not_found"
    check_whole(corral, wait_final(corral, run_id))
