"""Files that a child can exchange at any time, as the worker reads them."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corral.client.files.digest import FileChanged
from corral.client.files.tree import FileEntry, NotAFolder, folder_identity, scan
from corral.client.volumes.folder import VolumeFolder
from corral.client.volumes.volumes import EMPTY, RemoteVolume
from corral.domain.secrets.redact import SecretValues
from corral.files.untrusted import FileTooLarge, NotARegularFile, open_folder, read_regular
from corral.instance.channel import MESSAGE_MAX, Channel
from corral.worker.child.events_file import CheckpointEvent
from corral.worker.instance.payloads import InstancePayloads, _scanned
from corral.worker.lease import LeaseSession
from corral.worker.prepare.workspace import Workspace
from corral.worker.report.checkpoints import CheckpointUploader, NotACheckpoint, _copy, _link_below


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


def test_a_folder_of_checkpoints_that_became_a_link_holds_no_checkpoint(tmp_path: Path) -> None:
    """ATK-22: the worker would read any file for the run, and store it as the run's."""
    workspace = Workspace(tmp_path, "l_1")
    workspace.create()
    (tmp_path / "key").write_text("not the run's")
    workspace.checkpoints.rmdir()
    workspace.checkpoints.symlink_to(tmp_path)
    nobody = cast(Any, None)
    uploader = CheckpointUploader(workspace, nobody, nobody, SecretValues({}))

    with pytest.raises(NotACheckpoint, match="not inside CORRAL_CHECKPOINT_DIR"):
        uploader._stage(CheckpointEvent("key", 1, None))

    assert [*workspace.root.rglob("key")] == []


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

    here = payloads.open()

    assert payloads.own(str(tmp_path / "key")) == here / "key"
    assert payloads.own("../key") == here / "key"
    assert here.samefile(shared)
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


def test_the_folder_that_an_instance_shares_stays_the_same_whatever_takes_its_name(tmp_path: Path) -> None:
    """ATK-23: by a link in its place the worker would read, store and remove files of its own."""
    shared, others = tmp_path / "calls", tmp_path / "others"
    others.mkdir()
    (others / "token").write_text("the worker's")
    payloads = InstancePayloads(cast(LeaseSession, None), shared, given_up=lambda: True)
    payloads.open()
    shared.rename(tmp_path / "moved")
    shared.symlink_to(others)

    assert not payloads.own("token").exists()
    payloads.drop(payloads.own("token"))

    assert (others / "token").read_text() == "the worker's"


def test_a_volume_stays_in_its_folder_whatever_takes_the_name_of_the_one_around_it(tmp_path: Path) -> None:
    """ATK-24: the instance chooses the mount's name, and the folder around it is its own."""
    root, others = tmp_path / "volumes" / "segments", tmp_path / "others"
    (others / "segments").mkdir(parents=True)
    (others / "segments" / "log").write_text("of another project")
    given = {"head": lambda: SimpleNamespace(version=0), "tree": lambda _: EMPTY}
    remote = cast(RemoteVolume, SimpleNamespace(fetch=lambda digest: [b"x"], **given))
    folder = VolumeFolder(root, remote, scratch=tmp_path)
    folder.fill(lambda tree, fetch, target: target.mkdir(parents=True))
    root.parent.rename(tmp_path / "moved")
    root.parent.symlink_to(others)

    assert folder._scanned(None).files == ()
    assert folder._write([FileEntry("new", 1, 0o644, hashlib.sha256(b"x").hexdigest())], {})
    folder._remove(FileEntry("log", 18, 0o644, hashlib.sha256(b"of another project").hexdigest()))

    assert [path.name for path in (others / "segments").iterdir()] == ["log"]
    assert (tmp_path / "moved" / "segments" / "new").read_text() == "x"
