"""Whole writes and file locks."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from corral.files import atomic, locks
from corral.files.atomic import replacing, unique_part, write_durably, write_private, write_whole


@pytest.mark.parametrize("write", [write_whole, write_durably, write_private])
def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path, write: object) -> None:
    path = tmp_path / "note"
    path.write_text("before")

    write(path, "näher\n")  # type: ignore[operator]

    assert path.read_bytes() == "näher\n".encode()
    assert os.listdir(tmp_path) == ["note"]


def test_a_private_file_is_readable_by_its_owner_alone_even_after_a_kill_left_an_open_part(
    tmp_path: Path,
) -> None:
    left = tmp_path / "token.part"
    left.write_text("half")
    left.chmod(0o666)

    write_private(tmp_path / "token", b"secret")

    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["token"]


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_text("before")

    def fail() -> None:
        with replacing(path, part=unique_part(path)) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["note"]


def test_only_a_durable_write_syncs_the_file_and_then_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(atomic, "sync_file", lambda _: synced.append(f"file {os.listdir(tmp_path)}"))
    monkeypatch.setattr(atomic, "sync_folder", lambda _: synced.append(f"folder {os.listdir(tmp_path)}"))

    write_whole(tmp_path / "a", "x")
    assert synced == []

    (tmp_path / "a").unlink()
    write_durably(tmp_path / "a", "x")
    assert synced == ["file ['a.part']", "folder ['a']"]


def test_a_lock_is_held_by_one_or_shared_by_several(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locks.exclusive(path) as held:
        assert held
        with locks.exclusive(path) as second, locks.shared(path) as third:
            assert (second, third) == (False, False)
        with locks.exclusive_when_free(path, should_stop=lambda: True) as waited:
            assert not waited
    with locks.shared(path) as one, locks.shared(path) as two, locks.exclusive(path) as all_of_it:
        assert (one, two, all_of_it) == (True, True, False)


def test_who_waits_for_a_lock_says_so_and_gets_it_when_it_is_free(tmp_path: Path) -> None:
    path, said, got = tmp_path / "lock", threading.Event(), threading.Event()

    def wait() -> None:
        with locks.exclusive_when_free(path, note=said.set) as held:
            assert held
            got.set()

    waiter = threading.Thread(target=wait)
    with locks.exclusive(path):
        waiter.start()
        assert said.wait(120)
        assert not got.is_set()
    waiter.join(120)
    assert got.is_set()


def test_a_file_that_lost_its_name_is_not_taken_for_the_one_that_has_it(tmp_path: Path) -> None:
    path = tmp_path / "partial"
    first = locks.open_locked(path, os.O_RDWR | os.O_CREAT)
    assert first is not None
    assert locks.open_locked(path, os.O_RDWR) is None
    path.rename(tmp_path / "final")

    with pytest.raises(FileNotFoundError):
        locks.open_locked(path, os.O_RDWR)
    locks.remove_locked(tmp_path / "final", first)
    assert os.listdir(tmp_path) == []
