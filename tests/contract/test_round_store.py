"""What every RoundStore promises. A store is done when its name is among the params."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faulty_s3 import COMMON, Fault, FaultyS3, faulty
from support.live_server import LiveServer, serve
from support.rank_place import rank_socket
from support.seaweed import seaweed
from support.waiting import eventually

from corral.diloco.folder_store import FolderStore
from corral.diloco.round_store import Buffer
from corral.diloco.store import RoundStore, StoreError, check_store, open_store

MIB = 1 << 20
# Every fault that a store may have while it goes on serving.
FAULTS = list(Fault)


class _Place:
    """Where a store lies, so that another process can open it too."""

    def __init__(self, url: str, endpoint: str | None) -> None:
        self.url, self.endpoint = url, endpoint

    def open(self) -> RoundStore:
        return open_store(self.url, endpoint=self.endpoint, patience_s=20)

    def run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A process that has the store as `store`, and the arguments as `said`."""
        opening = (
            "import sys; from corral.diloco.store import open_store; said = sys.argv[3:]\n"
            "store = open_store(sys.argv[1], endpoint=sys.argv[2] or None)\n"
        )
        return subprocess.Popen(
            [sys.executable, "-c", opening + program, self.url, self.endpoint or "", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture
def in_a_run(live: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Place]:
    """The control plane's own, through a worker's socket."""
    with rank_socket(live, tmp_path) as path:
        monkeypatch.setenv("CORRAL_RANK_SOCKET", str(path))
        yield _Place("corral", None)


@pytest.fixture(params=["folder", "s3", "control plane"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> _Place:
    if request.param == "control plane":
        found: _Place = request.getfixturevalue("in_a_run")
        return found
    if request.param == "folder":
        return _Place(str(tmp_path / "rounds"), None)
    return _Place(seaweed().fresh_url(), seaweed().endpoint)


@pytest.fixture
def store(place: _Place) -> RoundStore:
    return place.open()


def content(store: RoundStore, key: str) -> bytes | None:
    found = store.get(key)
    return None if found is None else found[0]


@pytest.mark.parametrize("size", [0, 1, 17 * MIB + 3])
def test_what_was_put_is_read_back(store: RoundStore, size: int) -> None:
    data = secrets.token_bytes(size)

    etag = store.put("run/1/payload", data)

    assert store.get("run/1/payload") == (data, etag)
    assert [(one.key, one.size) for one in store.list("run")] == [("run/1/payload", size)]


def test_pieces_are_streamed_and_may_use_the_store_themselves(store: RoundStore) -> None:
    data = secrets.token_bytes(2 * MIB)
    store.put("a", data)

    def pieces() -> Iterator[bytes]:
        for _ in range(10):
            yield content(store, "a") or b""
        yield b"end"

    etag = store.put("b", pieces())

    assert store.get("b") == (data * 10 + b"end", etag)
    store.put("b", iter(()))
    assert content(store, "b") == b""


def test_what_its_writer_did_not_end_is_not_there(store: RoundStore) -> None:
    def pieces() -> Iterator[bytes]:
        yield secrets.token_bytes(20 * MIB)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.put("payload", pieces())

    assert store.get("payload") is None
    assert list(store.list()) == []


def test_an_absent_object_is_none(store: RoundStore) -> None:
    assert store.get("absent") is None
    assert store.read_into("absent", bytearray(3)) is None
    assert not store.replace("absent", b"x", "etag")
    assert list(store.list("absent")) == []
    store.delete("absent")
    store.put("folder/object", b"x")
    assert store.get("folder") is None
    assert store.get("folder/object/below") is None


def test_only_the_first_creates(store: RoundStore) -> None:
    assert store.create("commit", b"first")
    assert not store.create("commit", b"second")
    assert content(store, "commit") == b"first"
    store.delete("commit")
    assert store.create("commit", b"again")


def test_an_object_is_replaced_only_by_who_knows_its_etag(store: RoundStore) -> None:
    first = store.put("head", b"one")

    assert store.replace("head", b"two", first)
    assert not store.replace("head", b"three", first)

    found = store.get("head")
    assert found is not None
    assert found[0] == b"two"
    assert store.replace("head", b"three", found[1])
    assert content(store, "head") == b"three"


def test_a_part_is_read_into_a_buffer(store: RoundStore) -> None:
    data = secrets.token_bytes(5 * MIB)
    store.put("payload", data)
    buffer = bytearray(2 * MIB)

    assert store.read_into("payload", buffer, MIB + 1) == len(buffer)
    assert buffer == data[MIB + 1 : 3 * MIB + 1]
    assert store.read_into("payload", memoryview(buffer), len(data) - 5) == 5
    assert buffer[:5] == data[-5:]
    assert store.read_into("payload", buffer, len(data)) == 0
    assert store.read_into("payload", bytearray(), 0) == 0


def test_objects_are_listed_below_a_folder(store: RoundStore) -> None:
    keys = ["a/1/x", "a/1/y", "a/10/x", "b", "c=3/d_e-f.safetensors"]
    for key in keys:
        store.put(key, key.encode())
    store.now()

    assert sorted(one.key for one in store.list()) == keys
    assert sorted(one.key for one in store.list("a/1")) == ["a/1/x", "a/1/y"]
    assert [one.size for one in store.list("b")] in ([], [1]), "an object is no folder"
    store.delete("a/1/x")
    assert [one.key for one in store.list("a/1/")] == ["a/1/y"]


@pytest.mark.parametrize(
    "key",
    ["", "/", "/a", "a/", "a//b", "..", "a/../b", ".corral/locks", "a/.b", "a b", "ä", "a\n", "x" * 600],
)
def test_a_key_of_another_form_is_refused_by_every_entry(store: RoundStore, key: str) -> None:
    for call in (
        lambda: store.put(key, b"x"),
        lambda: store.create(key, b"x"),
        lambda: store.replace(key, b"x", "etag"),
        lambda: store.get(key),
        lambda: store.read_into(key, bytearray(1)),
        lambda: store.delete(key),
    ):
        with pytest.raises(StoreError, match="not a key"):
            call()


def test_the_time_is_that_of_the_store(store: RoundStore) -> None:
    """DL-D12: what a replica compares with `modified` is told by the same clock."""
    before = store.now()
    store.put("object", b"x")
    after = store.now()

    (found,) = store.list()
    assert before <= found.modified <= after


def test_of_racing_creators_in_eight_processes_exactly_one_wins(place: _Place) -> None:
    """DL-D04: two live processes claim one rank; exactly one can."""
    racing = """
for number in range(5):
    print("ready", flush=True); sys.stdin.readline()
    print(store.create(f"round-{number}/commit", said[0].encode()), flush=True)
"""
    creators = [place.run(racing, f"creator-{number}") for number in range(8)]
    store = place.open()
    for number in range(5):
        for one in creators:
            assert _line(one) == "ready"
        for one in creators:
            _tell(one)
        won = [i for i, one in enumerate(creators) if _line(one) == "True"]
        assert len(won) == 1
        assert content(store, f"round-{number}/commit") == f"creator-{won[0]}".encode()
    for one in creators:
        one.communicate()


def test_of_racing_writers_no_update_is_lost(place: _Place) -> None:
    """Each adds one to a counter by compare-and-set."""
    adding = """
for _ in range(5):
    while True:
        data, etag = store.get("counter")
        if store.replace("counter", str(int(data) + 1).encode(), etag):
            break
"""
    place.open().put("counter", b"0")
    for one in [place.run(adding) for _ in range(4)]:
        assert one.wait() == 0
        one.communicate()

    assert content(place.open(), "counter") == b"20"


def test_a_writer_killed_in_the_middle_leaves_nothing_half_written(place: _Place) -> None:
    """DL-D09: a reader never sees half an object; the old one stays until the new one is whole."""
    writing = """
def pieces():
    for number in range(1000):
        yield b"n" * (1 << 20)
        if number == 20:
            print("halfway", flush=True); sys.stdin.readline()
store.put(said[0], pieces())
"""
    store = place.open()
    store.put("old", b"old")
    writers = [place.run(writing, key) for key in ("old", "new")]
    for one in writers:
        assert _line(one) == "halfway"
        one.send_signal(signal.SIGKILL)
        one.communicate()

    assert content(store, "old") == b"old"
    assert store.get("new") is None
    assert [one.key for one in store.list()] == ["old"]


def _line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def _tell(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()


def test_a_store_that_does_what_rounds_need_passes_its_check(store: RoundStore) -> None:
    check_store(store)

    assert list(store.list()) == []


def test_a_store_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    """DL-D12: some stores take a conditional write and ignore the condition."""

    class Careless(FolderStore):
        def create(self, key: str, data: Buffer) -> bool:
            self.put(key, data)
            return True

    class Blind(FolderStore):
        def replace(self, key: str, data: Buffer, etag: str) -> bool:
            self.put(key, data)
            return True

    with pytest.raises(StoreError, match="two writers create the same"):
        check_store(Careless(tmp_path))
    with pytest.raises(StoreError, match="whatever its etag"):
        check_store(Blind(tmp_path))


# A bucket whose answers are lost, late, torn or errors.


@pytest.fixture
def through() -> Iterator[tuple[RoundStore, FaultyS3]]:
    with faulty(seaweed().endpoint) as (address, plan):
        yield open_store(seaweed().fresh_url(), endpoint=address, patience_s=20), plan


@pytest.mark.parametrize("fault", FAULTS)
def test_a_create_tells_the_truth_whatever_becomes_of_its_answer(
    through: tuple[RoundStore, FaultyS3], fault: Fault
) -> None:
    """A write that was served and whose answer was lost has won, though the store says that it is there."""
    store, plan = through
    plan.plan(fault, fault, method="PUT")

    assert store.create("commit", b"first")
    assert plan.injected
    plan.plan(fault, method="PUT")
    assert not store.create("commit", b"second")
    assert content(store, "commit") == b"first"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_replace_tells_the_truth_whatever_becomes_of_its_answer(
    through: tuple[RoundStore, FaultyS3], fault: Fault
) -> None:
    store, plan = through
    first = store.put("head", b"one")
    plan.plan(fault, method="PUT")

    assert store.replace("head", b"two", first)
    plan.plan(fault, method="PUT")
    assert not store.replace("head", b"three", first)
    assert content(store, "head") == b"two"


@pytest.mark.parametrize("fault", COMMON)
def test_large_objects_go_through_a_store_with_faults(
    through: tuple[RoundStore, FaultyS3], fault: Fault
) -> None:
    """In parts: the begin, a part, the end, and reading it back."""
    store, plan = through
    data = secrets.token_bytes(33 * MIB)
    plan.plan(fault, method="POST", path="uploads")
    plan.plan(fault, fault, method="PUT", path="partNumber")
    plan.plan(fault, method="POST", path="uploadId")

    etag = store.put("payload", [data[at : at + MIB] for at in range(0, len(data), MIB)])
    plan.plan(fault, fault, method="GET")
    buffer = bytearray(len(data))
    plan.plan(fault, method="HEAD")

    assert store.read_into("payload", buffer) == len(data)
    assert buffer == data
    plan.plan(fault, method="GET")
    assert store.get("payload") == (data, etag)
    assert plan.injected >= 7


def test_pieces_that_cannot_be_had_again_fail_and_leave_nothing(through: tuple[RoundStore, FaultyS3]) -> None:
    store, plan = through
    plan.plan(Fault.TORN, method="POST", path="uploads")

    with pytest.raises(StoreError, match="cannot write payload"):
        store.put("payload", (b"x" * MIB for _ in range(33)))

    assert store.get("payload") is None


@pytest.mark.parametrize("fault", COMMON)
def test_lists_and_deletions_go_through_a_store_with_faults(
    through: tuple[RoundStore, FaultyS3], fault: Fault
) -> None:
    store, plan = through
    for number in range(5):
        store.put(f"a/{number}", b"x")
    plan.plan(fault, fault, method="GET", path="list-type")

    assert [one.key for one in store.list("a")] == [f"a/{number}" for number in range(5)]
    plan.plan(fault)
    store.delete("a/0")
    assert len(list(store.list("a"))) == 4


def test_a_store_that_stays_away_is_said_to_be(through: tuple[RoundStore, FaultyS3]) -> None:
    gone = open_store("s3://corral/x", endpoint="http://127.0.0.1:9", patience_s=0.2)

    with pytest.raises(StoreError, match="cannot be reached") as caught:
        gone.put("key", b"x")

    assert "s3://corral/x at http://127.0.0.1:9" in caught.value.message
    assert "endpoint" in caught.value.hint


@pytest.mark.parametrize("url", ["ftp://host/path", "", "s3://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert "s3://" in caught.value.hint


# A folder


def test_a_folder_that_cannot_be_written_says_where_and_what_next(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreError, match="file") as caught:
        open_store(str(tmp_path / "file" / "rounds"))
    assert "folder" in caught.value.hint


def test_what_a_killed_writer_left_is_swept_later(tmp_path: Path) -> None:
    place = _Place(str(tmp_path), None)
    writer = place.run("store.put('x', iter(lambda: b'x' * 1000, None))")
    parts = tmp_path / ".corral" / "parts"
    left = eventually(lambda: list(parts.iterdir()) if parts.exists() else None, "the part of a writer")
    writer.kill()
    writer.communicate()
    left = list(parts.iterdir())
    open_store(str(tmp_path))
    assert list(parts.iterdir()) == left, "a writer may still be at it"

    os.utime(left[0], (1, 1))
    open_store(str(tmp_path))

    assert list(parts.iterdir()) == []
