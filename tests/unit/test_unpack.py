"""Making folders out of trees."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.client.files.download import ContentMismatch, TargetExists, materialise
from corral.client.files.tree import FileEntry, Tree, scan
from corral.domain.paths import BadPath, why_bad
from corral.files.private import keep_files_private


class Store:
    """Blobs in memory that count how often each is asked for."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.fetched: Counter[str] = Counter()

    def entry(self, path: str, content: bytes, mode: int = 0o644) -> FileEntry:
        digest = hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return FileEntry(path, len(content), mode, digest)

    def fetch(self, digest: str) -> Iterator[bytes]:
        self.fetched[digest] += 1
        content = self.blobs[digest]
        yield from (content[at : at + 3] for at in range(0, len(content), 3))


@pytest.fixture
def store() -> Store:
    return Store()


def test_what_is_unpacked_is_what_was_scanned(tmp_path: Path, store: Store) -> None:
    files = [
        store.entry("a/b/run.sh", b"echo", 0o755),
        store.entry("a/日本語.txt", "やあ".encode()),
        store.entry("z", b""),
    ]
    materialise(files, store.fetch, tmp_path / "out")

    assert scan(tmp_path / "out", ignore=None) == Tree.of(files)
    assert (tmp_path / "out/a/b/run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out/z").stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["out"]


def test_what_a_worker_unpacks_is_for_nobody_else(tmp_path: Path, store: Store) -> None:
    """ATK-20: a process that keeps its files private does so with a run's code and inputs too."""
    files = [store.entry("run.sh", b"echo", 0o755), store.entry("data", b"x"), store.entry("copy", b"x")]
    before = keep_files_private()
    try:
        materialise(files, store.fetch, tmp_path / "out")
    finally:
        os.umask(before)

    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert modes == {"run.sh": 0o700, "data": 0o600, "copy": 0o600}
    assert scan(tmp_path / "out", ignore=None) == Tree.of(files)


def test_equal_content_is_fetched_once_and_nothing_for_empty_files(tmp_path: Path, store: Store) -> None:
    files = [store.entry(f"{n}", b"same") for n in range(5)] + [store.entry(f"e{n}", b"") for n in range(5)]
    materialise(files, store.fetch, tmp_path / "out")
    assert list(store.fetched.values()) == [1]
    assert scan(tmp_path / "out", ignore=None) == Tree.of(files)


def test_an_empty_tree_makes_an_empty_folder(tmp_path: Path, store: Store) -> None:
    materialise([], store.fetch, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_empty_folder_is_a_fine_target(tmp_path: Path, store: Store) -> None:
    (tmp_path / "out").mkdir()
    materialise([store.entry("x", b"1")], store.fetch, tmp_path / "out")
    assert (tmp_path / "out/x").read_bytes() == b"1"


@pytest.mark.parametrize("kind", ["full", "file", "link"])
def test_an_occupied_target_is_refused_and_untouched(tmp_path: Path, store: Store, kind: str) -> None:
    target = tmp_path / "out"
    if kind == "full":
        target.mkdir()
        (target / "mine").touch()
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to("elsewhere")
    with pytest.raises(TargetExists):
        materialise([store.entry("x", b"1")], store.fetch, target)
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "path", ["../evil", "/tmp/evil", "a/../../evil", "", ".", "a//b", "a\x00b", "a\\..\\evil", "a\nb"]
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, store: Store, path: str) -> None:
    """FL-D47, RF-D47."""
    with pytest.raises(BadPath):
        materialise([store.entry("ok", b""), store.entry(path, b"1")], store.fetch, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_conflicting_paths_and_strange_modes_are_refused(tmp_path: Path, store: Store) -> None:
    for files in (
        [store.entry("a", b"1"), store.entry("a/b", b"2")],
        [store.entry("a", b"1"), store.entry("a", b"2")],
        [store.entry("a", b"1", mode=0o4755)],
    ):
        with pytest.raises(BadPath):
            materialise(files, store.fetch, tmp_path / "out")


@pytest.mark.parametrize("wrong", [b"conten!", b"short", b"longer than it", b""])
def test_wrong_content_leaves_nothing_behind(tmp_path: Path, store: Store, wrong: bytes) -> None:
    files = [store.entry(f"ok{n}", b"%d" % n) for n in range(20)] + [store.entry("bad", b"content")]
    store.blobs[files[-1].digest] = wrong
    with pytest.raises(ContentMismatch, match="bad does not match"):
        materialise(files, store.fetch, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_false_digest_for_an_empty_file_is_noticed(tmp_path: Path, store: Store) -> None:
    with pytest.raises(ContentMismatch):
        materialise([FileEntry("x", 0, 0o644, "00")], store.fetch, tmp_path / "out")


def test_an_endless_sender_is_cut_off(tmp_path: Path, store: Store) -> None:
    def endless(digest: str) -> Iterator[bytes]:
        while True:
            yield b"x" * 1000

    with pytest.raises(ContentMismatch, match="more than 7 bytes"):
        materialise([store.entry("x", b"content")], endless, tmp_path / "out")


def test_a_failing_fetch_leaves_nothing_behind(tmp_path: Path, store: Store) -> None:
    """RF-D47."""
    entry = FileEntry("x", 1, 0o644, "unknown")
    with pytest.raises(KeyError):
        materialise([store.entry("ok", b"1"), entry], store.fetch, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_the_target_is_not_seen_before_it_is_whole(tmp_path: Path, store: Store) -> None:
    seen: list[bool] = []

    def fetch(digest: str) -> Iterator[bytes]:
        seen.append((tmp_path / "out").exists())
        return store.fetch(digest)

    materialise([store.entry(f"{n}", b"%d" % n) for n in range(9)], fetch, tmp_path / "out")
    assert seen == [False] * 9


def test_a_target_taken_meanwhile_is_not_overwritten(tmp_path: Path, store: Store) -> None:
    def fetch(digest: str) -> Iterator[bytes]:
        (tmp_path / "out").mkdir()
        (tmp_path / "out/theirs").touch()
        return store.fetch(digest)

    with pytest.raises(TargetExists):
        materialise([store.entry("x", b"1")], fetch, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["theirs"]
    assert os.listdir(tmp_path) == ["out"]


names = st.text(st.sampled_from("ab.日🦙 -"), min_size=1, max_size=4)
relative = st.lists(names, min_size=1, max_size=3).map("/".join).filter(lambda path: why_bad(path) is None)


@settings(max_examples=40)
@given(contents=st.dictionaries(relative, st.binary(max_size=20), max_size=8))
def test_any_tree_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]
) -> None:
    store = Store()
    files = [store.entry(path, content) for path, content in contents.items()]
    target = tmp_path_factory.mktemp("trip") / "out"
    try:
        tree = Tree.of(files)
    except BadPath:
        with pytest.raises(BadPath):
            materialise(files, store.fetch, target)
        return
    materialise(files, store.fetch, target)
    assert scan(target, ignore=None) == tree
    assert scan(target, ignore=None) == tree
