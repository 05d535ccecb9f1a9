"""Volumes: a commit names the version that it changes, and what others did since is merged or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from corral.core.artifacts import FileManifest, check_blobs, insert
from corral.domain.artifacts import Artifact, ArtifactFile, ArtifactKind
from corral.domain.errors import FieldError, TooLarge, VolumeConflict, found
from corral.domain.ids import ArtifactId
from corral.domain.paths import BadPath, check_paths
from corral.domain.volumes import VolumeRecord, VolumeVersion, merge
from corral.store.transaction import Tx

# Behind the newest so many, a version goes once it is a day old.
KEEP_VERSIONS = 10
KEEP_S = 86400.0
# Also where the files of several writers are merged.
MOST_FILES = 200_000
_PAGE = 10_000
_NAMED = 20

Files = dict[str, ArtifactFile]


class VolumeChange(NamedTuple):
    """`files` is the whole folder as its writer wants it; `base` the version that they had seen."""

    base: int
    files: Sequence[ArtifactFile]


class VolumeCommitResult(NamedTuple):
    """`artifact` is None for the empty folder."""

    version: VolumeVersion | None
    artifact: Artifact | None


class VolumeDraft(NamedTuple):
    """What a change makes of a volume whose newest version has the files of `seen`. Without a `manifest` that
    is nothing new."""

    seen: ArtifactId | None
    manifest: FileManifest | None


def draft(tx: Tx, project: str, name: str, change: VolumeChange) -> VolumeDraft:
    """Read, and worked out, before the transaction that writes it: of many files it takes long.

    Files that both this change and others since its base touched, differently, are a VolumeConflict.
    """
    volume = tx.volumes.get(project, name) or VolumeRecord(project, name, 0, 0.0, "")
    mine = FileManifest(ArtifactKind.VOLUME, tuple(sorted(change.files, key=lambda file: file.path)))
    if change.base != volume.head:
        check_paths(file.path for file in change.files)
    head = _files(tx, volume, volume.head)
    if change.base != volume.head:
        merged = _merged(tx, volume, change.base, head, {file.path: file for file in change.files})
        mine = FileManifest(ArtifactKind.VOLUME, tuple(merged[path] for path in sorted(merged)))
    if len(mine.files) > MOST_FILES:
        raise TooLarge(
            f"volume {name} would have {len(mine.files)} files; {MOST_FILES} are the most",
            hint="Keep many small files in one, as a tar.",
        )
    # Here, where nobody waits for it.
    is_new = bool(mine.digest) and {file.path: file for file in mine.files} != head
    return VolumeDraft(_newest_files(tx, volume), mine if is_new else None)


def commit(
    tx: Tx, project: str, name: str, made: VolumeDraft, *, base: int, by: str, now: float
) -> VolumeCommitResult | None:
    """A new version; the newest one if there is nothing to change. All of it or nothing.

    None if somebody else was first: then the draft is of another version.
    """
    volume = _locked(tx, project, name, by=by, now=now)
    if _newest_files(tx, volume) != made.seen:
        return None
    if made.manifest is None:
        return newest(tx, volume)
    check_blobs(tx, project, made.manifest.files)
    artifact = insert(tx, made.manifest, project=project, lease=None, by=by, now=now)
    version = VolumeVersion(project, name, volume.head + 1, base, artifact.id, now, by)
    tx.volumes.insert_version(version)
    tx.volumes.set_head(project, name, version.version)
    return VolumeCommitResult(version, artifact)


def _newest_files(tx: Tx, volume: VolumeRecord) -> ArtifactId | None:
    version = tx.volumes.version(volume.project, volume.name, volume.head)
    return None if version is None else version.artifact_id


def unseen(tx: Tx, project: str, name: str, files: Sequence[ArtifactFile]) -> list[ArtifactFile]:
    """Those whose bytes the newest version does not have."""
    volume = tx.volumes.get(project, name)
    known = set() if volume is None else {file.digest for file in _files(tx, volume, volume.head).values()}
    return [file for file in files if file.digest not in known]


def newest(tx: Tx, volume: VolumeRecord) -> VolumeCommitResult:
    version = tx.volumes.version(volume.project, volume.name, volume.head)
    return VolumeCommitResult(version, None if version is None else tx.artifacts.get(version.artifact_id))


def get(tx: Tx, project: str, name: str) -> VolumeRecord:
    hint = "List them with `corral volumes ls`."
    return found(tx.volumes.get(project, name), f"project {project} has no volume {name!r}", hint=hint)


def remove(tx: Tx, project: str, name: str) -> VolumeRecord:
    """With all its versions; their bytes go with the next collection, unless something else names them."""
    get(tx, project, name)
    volume = tx.volumes.lock(project, name) or get(tx, project, name)
    for version in tx.volumes.versions(project, name):
        tx.artifacts.delete(version.artifact_id)
    tx.volumes.delete(project, name)
    return volume


def drop_old(tx: Tx, *, now: float, limit: int) -> int:
    """Versions that nobody has a right to any more."""
    old = tx.volumes.surplus(keep=KEEP_VERSIONS, before=now - KEEP_S, limit=limit)
    for version in old:
        # A commit that is based on it ends first, or does not find it.
        tx.volumes.lock(version.project, version.name)
        tx.artifacts.delete(version.artifact_id)
        tx.volumes.delete_version(version.project, version.name, version.version)
    return len(old)


def _locked(tx: Tx, project: str, name: str, *, by: str, now: float) -> VolumeRecord:
    tx.volumes.insert(VolumeRecord(project, name, 0, now, by))
    volume = tx.volumes.lock(project, name)
    assert volume is not None, "it was made or was there"
    return volume


def _merged(tx: Tx, volume: VolumeRecord, base: int, head: Files, mine: Files) -> Files:
    if base > volume.head or (base and tx.volumes.version(volume.project, volume.name, base) is None):
        raise VolumeConflict(
            f"version {base} of volume {volume.name}, which this changes, is not there any more; "
            f"the newest is {volume.head}"
        )
    made, conflicts = merge(_files(tx, volume, base), head, mine)
    if conflicts:
        raise _conflict(volume, base, conflicts)
    try:
        check_paths(made)
    except BadPath as error:
        raise _conflict(volume, base, [problem.path for problem in error.problems]) from None
    return made


def _conflict(volume: VolumeRecord, base: int, paths: Sequence[str]) -> VolumeConflict:
    named = ", ".join(paths[:_NAMED]) + (" ..." if len(paths) > _NAMED else "")
    why = f"was changed since version {base}, and here too"
    return VolumeConflict(
        f"volume {volume.name} is at version {volume.head}, and both sides have changed: {named}",
        fields=[FieldError(path, why) for path in paths[:_NAMED]],
    )


def _files(tx: Tx, volume: VolumeRecord, number: int) -> Files:
    if number == 0:
        return {}
    version = tx.volumes.version(volume.project, volume.name, number)
    assert version is not None, "the newest version and a base that was looked up are there"
    return files_of(tx, version.artifact_id)


def files_of(tx: Tx, artifact_id: ArtifactId) -> Files:
    files: Files = {}
    after = ""
    while page := tx.artifacts.files(artifact_id, after=after, limit=_PAGE):
        files |= {file.path: file for file in page}
        after = page[-1].path
    return files
