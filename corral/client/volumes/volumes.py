"""Volumes on the server: versions, and files that go there and come from there."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from corral.client.api import Api
from corral.client.artifacts import Artifacts, records
from corral.client.files.blobs import BlobSink, BlobSource
from corral.client.files.download import Fetch, materialise
from corral.client.files.tree import FileEntry, Tree, scan, scan_file
from corral.client.files.upload import Progress, upload
from corral.client.http.transport import Transport, quoted
from corral.domain.errors import InvalidInput, NotFound
from corral.domain.paths import check_path
from corral.wire.volumes import VolumeCommit, VolumeDetail, VolumePage, VolumeVersionView, VolumeView

COMMIT_TIMEOUT_S = 300.0
EMPTY = Tree(())


class Volumes(Api):
    """As a user of a project sees them."""

    root = "/v1/volumes"

    def all(self, project: str | None = None) -> Iterator[VolumeView]:
        return self._transport.items(self.root, VolumePage, {"project": project, "limit": 200})

    def get(self, project: str, name: str) -> VolumeDetail:
        return self._transport.get(_path(project, name), VolumeDetail)

    def remove(self, project: str, name: str) -> None:
        self._transport.once("DELETE", _path(project, name), type(None))

    def remote(self, project: str, name: str) -> ProjectVolume:
        return ProjectVolume.of(self._transport, project, name)


@dataclass(frozen=True)
class RemoteVolume(ABC):
    """One volume on a server, as somebody who may read and write it."""

    transport: Transport
    path: str
    sink: BlobSink
    source: BlobSource

    @abstractmethod
    def head(self) -> VolumeVersionView: ...

    def commit(self, base: int, tree: Tree) -> VolumeVersionView:
        """The files of the tree must be on the server. The same again changes nothing."""
        return self.transport.repeat(
            "POST",
            f"{self.path}/versions",
            VolumeVersionView,
            body=VolumeCommit.model_construct(base=base, files=records(tree.files)),
            params=self.sink.params,
            timeout_s=COMMIT_TIMEOUT_S,
        )

    def tree(self, version: VolumeVersionView) -> Tree:
        if version.artifact_id is None:
            return EMPTY
        return Artifacts(self.transport).tree(version.artifact_id, self.source.lease_params)

    @property
    def fetch(self) -> Fetch:
        return self.source.read


@dataclass(frozen=True)
class ProjectVolume(RemoteVolume):
    """As a user of its project."""

    project: str
    name: str

    @classmethod
    def of(cls, transport: Transport, project: str, name: str) -> ProjectVolume:
        sink, source = BlobSink.of_project(transport, project), BlobSource.of_project(transport, project)
        return cls(transport, _path(project, name), sink, source, project, name)

    def head(self) -> VolumeVersionView:
        versions: list[VolumeVersionView] = []
        # It is made by the first commit.
        with suppress(NotFound):
            versions = self.transport.get(self.path, VolumeDetail).versions
        return (
            versions[0] if versions else VolumeVersionView(volume=self.name, project=self.project, version=0)
        )


class LeaseVolume(RemoteVolume):
    """As the holder of a lease whose run mounts it."""

    @classmethod
    def of(cls, transport: Transport, lease_id: str, epoch: int, name: str) -> LeaseVolume:
        sink = BlobSink.of_lease(transport, lease_id, epoch)
        source = BlobSource.of_lease(transport, lease_id, epoch)
        return cls(transport, f"/v1/leases/{quoted(lease_id)}/volumes/{quoted(name)}", sink, source)

    def head(self) -> VolumeVersionView:
        return self.transport.repeat("GET", self.path, VolumeVersionView, params=self.sink.params)


def _path(project: str, name: str) -> str:
    return f"/v1/projects/{quoted(project)}/volumes/{quoted(name)}"


def put(
    remote: RemoteVolume, source: Path, target: str, *, progress: Progress | None = None
) -> VolumeVersionView:
    """Add a file or the files of a folder, at a path of the volume; what is there already is replaced."""
    if not source.exists():
        raise InvalidInput(f"{source} is not there", hint="Give a file or a folder of this machine.")
    target = target.strip("/")
    is_folder = source.is_dir()
    tree = scan(source, ignore=None) if is_folder else scan_file(source)
    root = source if is_folder else source.parent
    prefix = f"{target}/" if target and is_folder else ""
    placed = [
        # One file goes to the path itself, or by its own name to the top.
        replace(file, path=prefix + file.path if is_folder else target or file.path)
        for file in tree.files
    ]
    for file in placed:
        check_path(file.path)
    upload(tree, root, remote.sink, progress=progress)
    head = remote.head()
    entries = {**by_path(remote.tree(head)), **{file.path: file for file in placed}}
    return remote.commit(head.version, Tree.of(entries.values()))


def get(remote: RemoteVolume, path: str, target: Path, *, version: VolumeVersionView | None = None) -> Tree:
    """Fetch a file, or all files below a path, to a place that is not there yet."""
    tree = remote.tree(version or remote.head())
    path = path.strip("/")
    one = by_path(tree).get(path)
    if one is not None:
        with tempfile.TemporaryDirectory(prefix=".volume.", dir=target.absolute().parent) as scratch:
            materialise([replace(one, path="file")], remote.fetch, Path(scratch, "one"))
            if os.path.lexists(target):
                raise InvalidInput(f"{target} is there already", hint="Choose another name.")
            os.replace(Path(scratch, "one", "file"), target)
        return Tree((one,))
    found = below(tree, path)
    materialise(found.files, remote.fetch, target)
    return found


def below(tree: Tree, path: str) -> Tree:
    """The files below a folder, named from there; NotFound if there are none."""
    path = path.strip("/")
    found = tree.below(path)
    if path and not found.files:
        raise _absent(path)
    return found


def remove(remote: RemoteVolume, path: str) -> VolumeVersionView:
    """Take a file, or all below a folder, out of the newest version."""
    path = path.strip("/")
    head = remote.head()
    tree = remote.tree(head)
    kept = [file for file in tree.files if file.path != path and not file.path.startswith(f"{path}/")]
    if len(kept) == len(tree.files):
        raise _absent(path)
    return remote.commit(head.version, Tree.of(kept))


def _absent(path: str) -> NotFound:
    return NotFound(f"there is no {path!r} in the volume", hint="See `corral volumes show`.")


def by_path(tree: Tree) -> dict[str, FileEntry]:
    return {file.path: file for file in tree.files}
