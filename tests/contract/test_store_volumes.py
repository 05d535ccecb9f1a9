"""Volumes: a commit is whole or nothing, and no writer's change is lost in silence."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest

from contract.conftest import Database
from contract.samples import a_blob
from corral.core import volumes
from corral.core.artifacts import delete
from corral.core.volumes import VolumeChange, VolumeCommitResult
from corral.domain.artifacts import ArtifactFile
from corral.domain.errors import BlobMissing, Conflict, NotFound, TooLarge, VolumeConflict
from corral.domain.volumes import merge
from corral.store.transaction import Tx

DAY = 86400.0


def files(**content: str) -> list[ArtifactFile]:
    return [
        ArtifactFile(path.replace("_", "/"), a_blob(text).digest, a_blob(text).size, 0o644)
        for path, text in content.items()
    ]


def commit(db: Database, base: int, *, name: str = "data", now: float = 100.0, **content: str) -> int:
    """As a writer does: bytes first, then the change."""
    for text in content.values():
        db.write(partial(_put, text))
    done = _committed(db, VolumeChange(base, files(**content)), name=name, now=now)
    return 0 if done.version is None else done.version.version


def _committed(
    db: Database, change: VolumeChange, *, name: str = "data", now: float = 100.0
) -> VolumeCommitResult:
    made = db.read(lambda tx: volumes.draft(tx, "default", name, change))
    done = db.write(
        lambda tx: volumes.commit(tx, "default", name, made, base=change.base, by="user:ada", now=now)
    )
    assert done is not None
    return done


def _put(text: str, tx: Tx) -> None:
    tx.blobs.put(a_blob(text))


def seen(db: Database, name: str = "data") -> dict[str, str]:
    def unit(tx: Tx) -> dict[str, str]:
        done = volumes.newest(tx, volumes.get(tx, "default", name))
        assert done.version is not None
        return {file.path: file.digest for file in volumes.files_of(tx, done.version.artifact_id).values()}

    return db.read(unit)


def digests(**content: str) -> dict[str, str]:
    return {file.path: file.digest for file in files(**content)}


def test_versions_follow_one_another_and_the_same_again_is_the_same_version(db: Database) -> None:
    assert commit(db, 0, a="1", sub_b="2") == 1
    assert commit(db, 1, a="1", sub_b="3") == 2
    # As after an answer that was lost.
    assert commit(db, 1, a="1", sub_b="3") == 2

    assert seen(db) == digests(a="1", sub_b="3")


def test_two_writers_who_changed_different_files_are_merged(db: Database) -> None:
    commit(db, 0, a="1", b="1", gone="1")

    assert commit(db, 1, a="2", b="1", gone="1", mine="1") == 2
    assert commit(db, 1, a="1", b="2") == 3

    assert seen(db) == digests(a="2", b="2", mine="1")


def test_two_writers_who_changed_the_same_file_are_a_conflict_that_names_it(db: Database) -> None:
    commit(db, 0, a="1", b="1")
    commit(db, 1, a="2", b="1")

    with pytest.raises(VolumeConflict) as caught:
        commit(db, 1, a="3", b="2")

    assert [field.path for field in caught.value.fields] == ["a"]
    assert seen(db) == digests(a="2", b="1"), "nothing of a refused change is kept"
    with pytest.raises(VolumeConflict):
        # To remove what another has changed loses it as well.
        commit(db, 1, b="1")
    with pytest.raises(VolumeConflict):
        # One file and one folder of the same name cannot both be.
        commit(db, 0, a_below="1")


def test_a_merge_takes_each_side_s_change_and_reports_all_others() -> None:
    """Over every way in which one file can stand on three sides."""
    states = [None, "1", "2", "3"]
    for base, theirs, mine in product(states, repeat=3):
        sides = [{} if side is None else {"f": side} for side in (base, theirs, mine)]
        made, conflicts = merge(*sides)
        if mine not in (base, theirs) and theirs != base:
            assert conflicts == ["f"]
        else:
            assert not conflicts
            assert made.get("f") == (mine if theirs == base else theirs)


def test_a_change_whose_bytes_are_not_there_changes_nothing(db: Database) -> None:
    commit(db, 0, a="1")
    change = VolumeChange(1, files(a="never sent"))

    with pytest.raises(BlobMissing):
        _committed(db, change)

    assert seen(db) == digests(a="1")


def test_the_newest_ten_and_those_of_a_day_are_kept_and_hold_their_bytes(db: Database) -> None:
    for number in range(15):
        commit(db, number, now=100.0 + number, a=str(number))

    assert db.write(lambda tx: volumes.drop_old(tx, now=200.0, limit=100)) == 0
    assert db.write(lambda tx: volumes.drop_old(tx, now=DAY + 200.0, limit=100)) == 5
    assert [one.version for one in db.read(lambda tx: tx.volumes.versions("default", "data"))] == [
        *range(15, 5, -1)
    ]
    condemned = db.write(lambda tx: tx.blobs.condemn(1e9, 1e9, 100))
    assert {blob.digest for blob in condemned} == {a_blob(str(number)).digest for number in range(5)}

    with pytest.raises(VolumeConflict, match="version 3"):
        commit(db, 3, now=DAY + 300.0, a="late")


def test_a_version_goes_with_its_volume_and_not_alone(db: Database) -> None:
    commit(db, 0, a="1")
    (version,) = db.read(lambda tx: tx.volumes.versions("default", "data"))

    with pytest.raises(Conflict, match="volume"):
        db.write(lambda tx: delete(tx, version.artifact_id))
    db.write(lambda tx: volumes.remove(tx, "default", "data"))

    assert db.read(lambda tx: tx.volumes.page(None, after=None, limit=10)) == []
    assert db.read(lambda tx: tx.artifacts.get(version.artifact_id)) is None
    with pytest.raises(NotFound):
        db.write(lambda tx: volumes.remove(tx, "default", "data"))


def test_volumes_page_by_name(db: Database) -> None:
    for name in ("b", "a", "c"):
        commit(db, 0, name=name, a="1")

    first = db.read(lambda tx: tx.volumes.page("default", after=None, limit=2))
    rest = db.read(lambda tx: tx.volumes.page("default", after=("default", first[-1].name), limit=2))

    assert [one.name for one in [*first, *rest]] == ["a", "b", "c"]


def test_a_draft_of_another_version_changes_nothing(db: Database) -> None:
    """ATK7-05: it is worked out before; who was first, and who made the volume anew, counts."""
    commit(db, 0, a="1")
    late = db.read(lambda tx: volumes.draft(tx, "default", "data", VolumeChange(1, files(a="1", b="1"))))
    commit(db, 1, a="1", c="1")

    def write(tx: Tx) -> VolumeCommitResult | None:
        return volumes.commit(tx, "default", "data", late, base=1, by="user:ada", now=100.0)

    assert db.write(write) is None
    assert seen(db) == digests(a="1", c="1")
    db.write(lambda tx: volumes.remove(tx, "default", "data"))
    commit(db, 0, d="1")
    assert db.write(write) is None
    assert seen(db) == digests(d="1")


def test_merged_files_are_no_more_than_a_volume_may_hold(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATK7-05: each commit was within the limit, and all together grew until one took the server a minute."""
    monkeypatch.setattr(volumes, "MOST_FILES", 3)
    commit(db, 0, a="1", b="1")
    with pytest.raises(TooLarge, match="would have 4 files"):
        commit(db, 0, c="1", d="1")
    assert commit(db, 0, c="1") == 2
