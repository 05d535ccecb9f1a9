"""The power-cut simulator itself: it must lose what a disk may lose, and nothing else."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from powercut import PowerCutDisk

PRELUDE = """
import fcntl, mmap, os, sys, threading, time

def put(name, data):
    with open(name, "wb") as file:
        file.write(data)

def sync(name):
    fd = os.open(name, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)

def put_synced(name, data):
    with open(name, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
"""

SQLITE = """
import sqlite3
db = sqlite3.connect("db", isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("PRAGMA synchronous={synchronous}")
db.execute("PRAGMA wal_autocheckpoint={checkpoint_pages}")
db.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, body BLOB)")
sync(".")
for id in range(1, 100_000):
    db.execute("INSERT INTO log VALUES (?, zeroblob(? % 9000))", (id, id * 977))
    print(id, flush=True)
"""

PUBLISHERS = """
def publish(lane):
    for turn in range(100_000):
        name = f"{lane}-{turn % 50}"
        put_synced(name + ".part", str(turn).encode())
        os.rename(name + ".part", name)
        os.link(name, name + ".alias")
        os.unlink(name + ".alias")
        sync(".")
        os.write(1, f"{name} {turn}\\n".encode())

for lane in range(3):
    threading.Thread(target=publish, args=(lane,)).start()
"""


# The ball has a name at every moment, so every listing must show one.
MOVERS = """
put_synced("ball-0", b"here"); sync(".")

def move():
    for turn in range(1_000_000):
        old, new = f"ball-{turn}", f"ball-{turn + 1}"
        if turn % 2:
            os.rename(old, new)
        else:
            os.link(old, new)
            os.unlink(old)

threading.Thread(target=move).start()
while True:
    sync(".")
    print("synced", flush=True)
"""

Model = Callable[[PowerCutDisk, Path], dict[str, bytes]]


@pytest.fixture
def disk(tmp_path: Path) -> PowerCutDisk:
    return PowerCutDisk.create(tmp_path)


@contextmanager
def running(disk: PowerCutDisk, program: str) -> Iterator[subprocess.Popen[str]]:
    """`program` at work in the disk's root, killed at the end."""
    command = [sys.executable, "-c", PRELUDE + program]
    env = os.environ | disk.env()
    with subprocess.Popen(command, cwd=disk.root, env=env, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def acks(child: subprocess.Popen[str], count: int) -> list[str]:
    assert child.stdout
    lines = [child.stdout.readline() for _ in range(count)]
    assert all(lines), f"the program ended early: {lines}"
    return [line.strip() for line in lines]


def run_and_kill(disk: PowerCutDisk, program: str) -> str:
    """What `program` last said before it was killed, all its statements done."""
    with running(disk, program + "\nprint('done', flush=True)\ntime.sleep(60)\n") as child:
        said = ""
        while (line := acks(child, 1)[0]) != "done":
            said = line
    return said


def files(tree: Path) -> dict[str, bytes]:
    paths = (path for path in tree.rglob("*") if path.is_file())
    return {str(path.relative_to(tree)): path.read_bytes() for path in paths}


def strict(disk: PowerCutDisk, target: Path) -> dict[str, bytes]:
    disk.after_crash(target)
    return files(target)


def lenient(disk: PowerCutDisk, target: Path) -> dict[str, bytes]:
    disk.after_lenient_crash(target)
    return files(target)


def test_a_write_without_any_sync_is_lost(disk: PowerCutDisk, tmp_path: Path) -> None:
    run_and_kill(disk, "put('a', b'data')")

    assert files(disk.root) == {"a": b"data"}
    assert strict(disk, tmp_path / "after") == {}


def test_a_durable_name_of_an_unsynced_file_is_an_empty_file(disk: PowerCutDisk, tmp_path: Path) -> None:
    run_and_kill(disk, "put('a', b'data'); sync('.')")

    assert strict(disk, tmp_path / "after") == {"a": b""}


def test_a_synced_file_in_an_unsynced_directory_has_no_name_unless_lenient(
    disk: PowerCutDisk, tmp_path: Path
) -> None:
    run_and_kill(disk, "os.mkdir('sub'); put_synced('sub/a', b'data')")

    assert strict(disk, tmp_path / "strict") == {}
    assert lenient(disk, tmp_path / "lenient") == {"sub/a": b"data"}


def test_a_file_synced_with_all_directories_above_it_survives(disk: PowerCutDisk, tmp_path: Path) -> None:
    run_and_kill(disk, "os.mkdir('sub'); put_synced('sub/a', b'data'); sync('sub'); sync('.')")

    assert strict(disk, tmp_path / "after") == {"sub/a": b"data"}


def test_only_the_last_synced_content_survives(disk: PowerCutDisk, tmp_path: Path) -> None:
    program = """
        put_synced('a', b'x' * 600_000); sync('.')
        with open('a', 'r+b') as file:
            file.seek(300_000); file.write(b'new'); file.truncate(500_001); file.flush()
            os.fdatasync(file.fileno())
            file.seek(0); file.write(b'lost'); file.truncate(10); file.flush()
    """
    run_and_kill(disk, "if True:" + program)

    expected = b"x" * 300_000 + b"new" + b"x" * 199_998
    assert strict(disk, tmp_path / "after") == {"a": expected}


@pytest.mark.parametrize("model", [strict, lenient])
def test_a_rename_without_a_directory_sync_leaves_the_old_file(
    disk: PowerCutDisk, tmp_path: Path, model: Model
) -> None:
    run_and_kill(
        disk, "put_synced('a', b'old'); sync('.'); put_synced('b', b'new'); sync('.'); os.rename('b', 'a')"
    )

    assert model(disk, tmp_path / "after") == {"a": b"old", "b": b"new"}


@pytest.mark.parametrize("model", [strict, lenient])
def test_write_sync_rename_sync_replaces_the_file(disk: PowerCutDisk, tmp_path: Path, model: Model) -> None:
    run_and_kill(disk, "put_synced('a', b'old'); put_synced('b', b'new'); os.rename('b', 'a'); sync('.')")

    assert model(disk, tmp_path / "after") == {"a": b"new"}


def test_a_link_in_place_of_its_temporary_needs_a_directory_sync(disk: PowerCutDisk, tmp_path: Path) -> None:
    run_and_kill(disk, "put_synced('part', b'blob'); sync('.'); os.link('part', 'blob'); os.unlink('part')")
    assert strict(disk, tmp_path / "before") == {"part": b"blob"}

    run_and_kill(disk, "sync('.')")
    assert strict(disk, tmp_path / "after") == {"blob": b"blob"}


def test_a_file_with_two_durable_names_is_one_file(disk: PowerCutDisk, tmp_path: Path) -> None:
    run_and_kill(disk, "put_synced('a', b'blob'); os.link('a', 'b'); os.symlink('a', 'c'); sync('.')")

    after = tmp_path / "after"
    assert strict(disk, after) == dict.fromkeys("abc", b"blob")
    assert (after / "a").samefile(after / "b")
    assert (after / "c").readlink() == Path("a")


def test_a_new_file_does_not_inherit_the_content_of_a_reused_inode(
    disk: PowerCutDisk, tmp_path: Path
) -> None:
    program = """
        for turn in range(200):
            put_synced('old', b'secret'); number = os.stat('old').st_ino; os.unlink('old')
            put(f'new-{turn}', b'')
            if os.stat(f'new-{turn}').st_ino == number: print('reused', flush=True)
        sync('.')
    """
    if run_and_kill(disk, "if True:" + program) != "reused":
        pytest.skip("this filesystem does not reuse inode numbers at once")

    assert set(strict(disk, tmp_path / "after").values()) == {b""}


@pytest.mark.parametrize("flag", ["O_SYNC", "O_DSYNC"])
def test_writes_through_a_synchronous_descriptor_are_durable(
    disk: PowerCutDisk, tmp_path: Path, flag: str
) -> None:
    run_and_kill(
        disk, f"fd = os.open('a', os.O_CREAT | os.O_WRONLY | os.{flag}); sync('.'); os.write(fd, b'data')"
    )

    assert strict(disk, tmp_path / "after") == {"a": b"data"}


def test_sync_makes_everything_durable(disk: PowerCutDisk, tmp_path: Path) -> None:
    run_and_kill(disk, "os.mkdir('sub'); put('sub/a', b'data'); os.sync(); put('sub/b', b'data')")

    assert strict(disk, tmp_path / "after") == {"sub/a": b"data"}


def test_a_sync_that_is_not_modelled_aborts(disk: PowerCutDisk) -> None:
    program = "put('a', b'data'); mmap.mmap(os.open('a', os.O_RDWR), 4).flush()"
    env = os.environ | disk.env()
    command = [sys.executable, "-c", PRELUDE + program]
    ended = subprocess.run(command, cwd=disk.root, env=env, capture_output=True, text=True)

    assert ended.returncode == -signal.SIGABRT
    assert "msync" in ended.stderr


def test_watching_a_file_does_not_drop_its_locks(disk: PowerCutDisk) -> None:
    program = """
        fd = os.open('a', os.O_CREAT | os.O_WRONLY)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        os.fsync(fd); sync('.'); os.sync()
        print('locked', flush=True); time.sleep(60)
    """
    with running(disk, "if True:" + program) as child:
        acks(child, 1)
        with (disk.root / "a").open("rb+") as file, pytest.raises(BlockingIOError):
            os.lockf(file.fileno(), os.F_TLOCK, 0)


def test_an_adopted_tree_is_durable_from_the_start(disk: PowerCutDisk, tmp_path: Path) -> None:
    run_and_kill(disk, "put_synced('a', b'data'); sync('.')")
    disk.after_crash(tmp_path / "second")
    second = PowerCutDisk.adopt(tmp_path / "second", tmp_path / "second-shadow")
    run_and_kill(second, "put_synced('b', b'more'); sync('.'); put('c', b'lost')")

    assert strict(second, tmp_path / "after") == {"a": b"data", "b": b"more"}


def test_luck_is_the_same_for_the_same_seed_and_differs_between_seeds(
    disk: PowerCutDisk, tmp_path: Path
) -> None:
    run_and_kill(disk, "put_synced('a', b'old'); sync('.'); put('a', b'new'); put('b', b'other')")

    seen = []
    for seed in range(12):
        for turn in "xy":
            disk.after_lucky_crash(tmp_path / f"{seed}{turn}", seed=seed)
        assert files(tmp_path / f"{seed}x") == files(tmp_path / f"{seed}y")
        seen.append(files(tmp_path / f"{seed}x"))

    assert {found["a"] for found in seen} == {b"old", b"new"}
    # The size may reach the disk without the bytes.
    assert {found.get("b") for found in seen} <= {None, b"", b"\0" * 5, b"other"}
    assert {None, b"other"} <= {found.get("b") for found in seen}


def test_crashes_seen_while_threads_publish_hold_all_that_was_acknowledged(
    disk: PowerCutDisk, tmp_path: Path
) -> None:
    newest: dict[str, int] = {}
    with running(disk, PUBLISHERS) as child:
        for crash in range(10):
            for ack in acks(child, 40):
                name, turn = ack.split()
                newest[name] = int(turn)
            found = strict(disk, tmp_path / str(crash))
            late = {name: turn for name, turn in newest.items() if int(found.get(name, b"-1")) < turn}
            assert not late


def test_a_listing_synced_during_a_move_has_the_old_or_the_new_name(
    disk: PowerCutDisk, tmp_path: Path
) -> None:
    with running(disk, MOVERS) as child:
        for crash in range(60):
            acks(child, 5)
            assert set(strict(disk, tmp_path / str(crash)).values()) == {b"here"}


def test_after_the_cut_nothing_is_synced_or_acknowledged(disk: PowerCutDisk, tmp_path: Path) -> None:
    with running(disk, SQLITE.format(synchronous="FULL", checkpoint_pages=40)) as child:
        acks(child, 5)
        disk.cut()
        assert child.stdout
        last = [5, *map(int, child.stdout)][-1]

        assert child.wait() == -signal.SIGKILL
    disk.after_crash(tmp_path / "after")
    assert rows(tmp_path / "after") >= set(range(1, last + 1))


def rows(tree: Path) -> set[int]:
    """The ids in the rebuilt database, which must be sound."""
    with closing(sqlite3.connect(tree / "db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'log'").fetchall():
            return set()
        return {id for (id,) in db.execute("SELECT id FROM log")}


def kill_sqlite(disk: PowerCutDisk, program: str, *, after_acks: int) -> int:
    """The last id that SQLite had acknowledged when it was killed."""
    with running(disk, program) as child:
        first = acks(child, after_acks)
        child.kill()
        assert child.stdout
        # Cut off in the middle, the last line may be no whole number.
        rest = [line for line in child.stdout if line.endswith("\n")]
    return int([*first, *rest][-1])


@pytest.mark.parametrize("seed", range(6))
def test_sqlite_with_full_synchronous_keeps_every_acknowledged_commit(
    disk: PowerCutDisk, tmp_path: Path, seed: int
) -> None:
    program = SQLITE.format(synchronous="FULL", checkpoint_pages=40)
    last = kill_sqlite(disk, program, after_acks=random.Random(seed).randint(1, 600))

    disk.after_crash(tmp_path / "strict")
    disk.after_lucky_crash(tmp_path / "lucky", seed=seed)

    acknowledged = set(range(1, last + 1))
    assert rows(tmp_path / "strict") >= acknowledged
    assert rows(tmp_path / "lucky") >= acknowledged


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
def test_sqlite_with_less_than_full_synchronous_loses_acknowledged_commits(
    disk: PowerCutDisk, tmp_path: Path, synchronous: str
) -> None:
    # No checkpoints: NORMAL syncs at each, and a kill just behind one would lose nothing.
    program = SQLITE.format(synchronous=synchronous, checkpoint_pages=0)
    last = kill_sqlite(disk, program, after_acks=100)
    disk.after_crash(tmp_path / "after")

    lost = set(range(1, last + 1)) - rows(tmp_path / "after")
    assert lost
    assert rows(disk.root) >= set(range(1, last + 1)), "a kill alone loses nothing"
