"""Files that a child can exchange at any time, as the worker reads them."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from corral.client.files.digest import FileChanged
from corral.client.files.tree import FileEntry, NotAFolder, folder_identity, scan
from corral.client.volumes.folder import VolumeFolder
from corral.client.volumes.volumes import RemoteVolume
from corral.files.untrusted import FileTooLarge, NotARegularFile, open_folder, read_regular
from corral.instance.channel import MESSAGE_MAX, Channel
from corral.worker.instance.payloads import InstancePayloads, _scanned
from corral.worker.lease import LeaseSession
from corral.worker.prepare.workspace import Workspace
from corral.worker.report.checkpoints import _copy, _link_below


def test_a_pipe_in_place_of_a_record_is_no_record(tmp_path: Path) -> None:
    """SEC-08: a worker that starts reads what earlier runs have left."""
    workspace = Workspace(tmp_path, "l_1")
    workspace.create()
    os.mkfifo(workspace.root / "job.json")

    assert workspace.load() is None


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    """SEC-08."""
    (tmp_path / "file").write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to("file")

    assert read_regular(tmp_path / "file", limit=100) == b"x" * 100
    with pytest.raises(FileTooLarge):
        read_regular(tmp_path / "file", limit=99)
    with pytest.raises(NotARegularFile):
        read_regular(tmp_path / "link", limit=100)


def test_a_checkpoint_is_linked_without_following_what_took_its_place(tmp_path: Path) -> None:
    """SEC-08: its folder was looked at, and then became a link to files of others."""
    base, staged, others = tmp_path / "checkpoints", tmp_path / "staged", tmp_path / "others"
    for folder in (base / "step" / "deep", staged, others):
        folder.mkdir(parents=True)
    (base / "step" / "deep" / "weights").write_text("mine")
    (others / "key").write_text("not the run's")

    _link_below(base, ("step",), staged)
    assert (staged / "deep" / "weights").read_text() == "mine"

    (base / "swapped").symlink_to(others)
    with pytest.raises(NotADirectoryError):
        _link_below(base, ("swapped", "key"), staged)
    _link_below(base, ("swapped",), staged)
    assert (staged / "swapped").is_symlink()  # which an upload refuses, as it leads outside


@pytest.mark.parametrize("what", ["pipe", "link"])
def test_only_files_are_copied_where_they_cannot_be_linked(tmp_path: Path, what: str) -> None:
    """SEC-08: a copy of a pipe or of a device would not end."""
    if what == "pipe":
        os.mkfifo(tmp_path / what)
    else:
        (tmp_path / what).symlink_to("/dev/zero")
    folder = open_folder(tmp_path)
    try:
        with pytest.raises(NotARegularFile):
            _copy(what, folder, tmp_path / "copy")
    finally:
        os.close(folder)


def test_an_instance_that_announces_too_much_is_not_listened_to() -> None:
    """SEC-08: the worker would otherwise hold whatever it is sent."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.sendall(struct.pack("!II", 10, MESSAGE_MAX) + b"{")

    assert channel.receive() is None
    channel.close()
    theirs.close()


def test_an_instance_names_only_files_of_the_folder_that_it_shares_with_the_worker(tmp_path: Path) -> None:
    """SEC-08: else the worker would read, upload and remove any file that it can reach."""
    shared = tmp_path / "calls"
    shared.mkdir()
    payloads = InstancePayloads(cast(LeaseSession, None), shared, given_up=lambda: True)
    (tmp_path / "key").write_text("not the run's")
    (shared / "link").symlink_to(tmp_path / "key")
    os.mkfifo(shared / "pipe")

    assert payloads.own(str(tmp_path / "key")) == shared / "key"
    assert payloads.own("../key") == shared / "key"
    for name in ("link", "pipe"):
        with pytest.raises(FileChanged):
            _scanned(shared / name)


def test_a_volume_is_neither_read_nor_written_through_a_link_that_an_instance_made(tmp_path: Path) -> None:
    """SEC-08: the worker would reach files that the instance itself may not."""
    root, others = tmp_path / "volume", tmp_path / "others"
    root.mkdir()
    others.mkdir()
    (root / "sub").symlink_to(others)
    remote = cast(RemoteVolume, SimpleNamespace(fetch=lambda digest: [b"x"]))
    folder = VolumeFolder(root, remote)
    entry = FileEntry("sub/new", 1, 0o644, hashlib.sha256(b"x").hexdigest())

    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the system
        folder._write([entry], {})
    assert [*others.iterdir()] == []
    assert sorted(tmp_path.iterdir()) == [others, root]

    (root / "sub").unlink()
    assert folder._write([entry], {})
    assert (root / "sub" / "new").read_text() == "x"
    assert folder._remove(entry)

    root.rmdir()
    root.symlink_to(others)
    with pytest.raises(NotAFolder):
        folder._scanned(None)


def test_a_folder_that_was_exchanged_after_it_was_looked_at_is_not_scanned(tmp_path: Path) -> None:
    """SEC-08."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "others").mkdir()
    identity = folder_identity(tmp_path / "mine")
    (tmp_path / "mine").rename(tmp_path / "away")
    (tmp_path / "mine").symlink_to(tmp_path / "others")

    with pytest.raises(NotAFolder):
        scan(tmp_path / "mine", ignore=None, identity=identity)
    assert scan(tmp_path / "away", ignore=None, identity=identity).files == ()
