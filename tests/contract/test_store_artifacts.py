"""Blobs, pins, collection, and the manifests that name blobs."""

from __future__ import annotations

import time

from contract.conftest import Database
from contract.samples import a_blob, a_run, an_artifact, digest_of
from corral.domain.artifacts import Artifact, ArtifactFile, ArtifactKind, Blob
from corral.domain.ids import ArtifactId
from corral.store.transaction import Tx


def put(db: Database, *blobs: Blob) -> None:
    db.each(blobs, lambda tx, blob: tx.blobs.put(blob))


def commit(db: Database, artifact: Artifact, *blobs: Blob) -> None:
    files = [ArtifactFile(f"f{n}", blob.digest, blob.size, 0o644) for n, blob in enumerate(blobs)]
    db.write(lambda tx: tx.artifacts.insert(artifact, files))


def condemn(db: Database, limit: int = 10) -> list[Blob]:
    return db.write(lambda tx: tx.blobs.condemn(200.0, 300.0, limit))


def test_putting_a_blob_twice_keeps_the_first(db: Database) -> None:
    blob = a_blob("x")
    put(db, blob, blob._replace(created_at=999.0))

    assert db.read(lambda tx: tx.blobs.get("default", blob.digest)) == blob
    assert db.read(lambda tx: tx.blobs.get("other", blob.digest)) is None


def test_a_project_has_only_its_own_blobs(db: Database) -> None:
    mine, theirs = a_blob("mine"), a_blob("theirs", project="other")
    put(db, mine, theirs)
    asked = [mine.digest, theirs.digest, digest_of("nobody's")]

    assert db.read(lambda tx: tx.blobs.present("default", asked)) == {mine.digest: mine.size}
    assert db.write(lambda tx: tx.blobs.present("default", asked)) == {mine.digest: mine.size}
    assert db.read(lambda tx: tx.blobs.any_project_has(theirs.digest))
    assert not db.read(lambda tx: tx.blobs.any_project_has(asked[2]))
    assert db.read(lambda tx: tx.blobs.project_bytes("default")) == mine.size
    assert db.read(lambda tx: tx.blobs.project_bytes("nobody")) == 0


def test_blobs_page_by_project_and_digest(db: Database) -> None:
    blobs = sorted([a_blob("a"), a_blob("b"), a_blob("a", project="another")])
    put(db, *blobs)

    assert db.read(lambda tx: tx.blobs.page(None, 2)) == blobs[:2]
    assert db.read(lambda tx: tx.blobs.page((blobs[1].project, blobs[1].digest), 2)) == blobs[2:]


def test_what_neither_manifest_nor_pin_names_is_condemned(db: Database) -> None:
    named, pinned, loose, young = a_blob("1"), a_blob("2"), a_blob("3"), a_blob("4", created_at=250.0)
    put(db, named, pinned, loose, young)
    commit(db, an_artifact(), named)
    db.write(lambda tx: tx.blobs.pin("default", [pinned.digest], holder="lease:1", expires_at=None))

    condemned = loose._replace(condemned_at=300.0)
    assert condemn(db) == [condemned]
    assert condemn(db) == [condemned]
    assert db.read(lambda tx: tx.blobs.is_condemned(loose.digest))
    assert not db.read(lambda tx: tx.blobs.is_condemned(named.digest))


def test_an_artifact_has_files_and_folders(db: Database) -> None:
    made = an_artifact()
    paths = ("a.txt", "out/b", "out/deep/c", "output", "o\u00fct/d")
    files = [ArtifactFile(path, digest_of(path), 1, 0o644) for path in paths]
    db.write(lambda tx: tx.artifacts.insert(made, files))

    def has(path: str) -> bool:
        return db.read(lambda tx: tx.artifacts.has(made.id, path))

    assert all(map(has, [*paths, "out", "out/deep", "o\u00fct"]))
    assert not any(map(has, ["a", "ou", "out/dee", "outp", "out0", "b", "deep", "output/x", "%"]))


def test_a_manifest_of_another_project_keeps_nothing(db: Database) -> None:
    blob = a_blob("x")
    put(db, blob)
    commit(db, an_artifact(project="other"), blob)

    assert [b.digest for b in condemn(db)] == [blob.digest]


def test_a_condemned_blob_cannot_be_pinned_and_is_not_present(db: Database) -> None:
    blob = a_blob("x")
    put(db, blob)
    condemn(db)
    db.write(lambda tx: tx.blobs.pin("default", [blob.digest], holder="h", expires_at=None))
    put(db, blob)

    assert db.read(lambda tx: tx.blobs.present("default", [blob.digest])) == {}
    assert not db.read(lambda tx: tx.blobs.any_project_has(blob.digest))
    assert [b.digest for b in condemn(db)] == [blob.digest]


def test_a_blob_is_collected_once_its_pin_or_manifest_is_gone(db: Database) -> None:
    a, b, c = a_blob("a"), a_blob("b"), a_blob("c")
    put(db, a, b, c)
    artifact = an_artifact()
    commit(db, artifact, c)
    db.write(lambda tx: tx.blobs.pin("default", [a.digest], holder="lease:1", expires_at=None))
    db.write(lambda tx: tx.blobs.pin("default", [b.digest], holder="user", expires_at=50.0))
    assert condemn(db) == []

    db.write(lambda tx: tx.blobs.unpin("lease:1"))
    assert [blob.digest for blob in condemn(db)] == [a.digest]
    assert db.write(lambda tx: tx.blobs.expire_pins(49.0)) == 0
    assert db.write(lambda tx: tx.blobs.expire_pins(50.0)) == 1
    assert {blob.digest for blob in condemn(db)} == {a.digest, b.digest}
    db.write(lambda tx: tx.artifacts.delete(artifact.id))
    assert {blob.digest for blob in condemn(db)} == {a.digest, b.digest, c.digest}


def test_a_pin_is_only_ever_made_longer(db: Database) -> None:
    blob = a_blob("x")
    put(db, blob)
    db.each((50.0, 10.0), lambda tx, at: tx.blobs.pin("default", [blob.digest], holder="u", expires_at=at))
    assert db.write(lambda tx: tx.blobs.expire_pins(49.0)) == 0

    db.write(lambda tx: tx.blobs.pin("default", [blob.digest], holder="u", expires_at=None))
    assert db.write(lambda tx: tx.blobs.expire_pins(1e9)) == 0
    assert condemn(db) == []


def test_collection_gets_past_rows_that_are_held(db: Database) -> None:
    held = [a_blob(f"held {n}") for n in range(5)]
    loose = a_blob("loose", created_at=150.0)
    put(db, *held, loose)
    commit(db, an_artifact(), *held)

    assert [blob.digest for blob in condemn(db, limit=2)] == [loose.digest]


def test_bytes_may_go_when_the_last_project_drops_them(db: Database) -> None:
    mine, theirs = a_blob("x"), a_blob("x", project="other")
    put(db, mine, theirs)
    assert not db.write(lambda tx: tx.blobs.drop("default", mine.digest))
    assert db.read(lambda tx: tx.blobs.get("default", mine.digest)) == mine

    condemn(db)
    assert not db.write(lambda tx: tx.blobs.drop("default", mine.digest))
    assert db.write(lambda tx: tx.blobs.drop("other", mine.digest))
    assert db.read(lambda tx: tx.blobs.page(None, 10)) == []


def test_an_artifact_comes_back_with_its_files_in_order(db: Database) -> None:
    run = a_run()
    artifact = an_artifact(
        kind=ArtifactKind.CHECKPOINT, run_id=run.id, attempt=1, rank=0, epoch=2, step=10, metric=0.5
    )
    files = sorted(
        ArtifactFile(path, digest_of(path), len(path), 0o755) for path in ("b", "a/ü", 'q"uote', "z\\")
    )
    db.write(lambda tx: tx.artifacts.insert(artifact, files[::-1]))

    assert db.read(lambda tx: tx.artifacts.get(artifact.id)) == artifact
    assert db.read(lambda tx: tx.artifacts.files(artifact.id, after="", limit=3)) == files[:3]
    assert db.read(lambda tx: tx.artifacts.files(artifact.id, after=files[2].path, limit=3)) == files[3:]
    assert db.read(lambda tx: tx.artifacts.named([artifact.id], [files[0].digest]))
    assert not db.read(lambda tx: tx.artifacts.named([an_artifact().id], [files[0].digest]))
    assert not db.read(lambda tx: tx.artifacts.named([], [files[0].digest]))
    assert db.read(lambda tx: tx.artifacts.of_run(run.id)) == [artifact]


def test_an_artifact_is_pinned_and_deleted(db: Database) -> None:
    artifact = an_artifact()
    commit(db, artifact, a_blob("x"))
    db.write(lambda tx: tx.artifacts.set_pinned(artifact.id, True))
    assert db.read(lambda tx: tx.artifacts.get(artifact.id)) == artifact._replace(pinned=True)

    for _ in range(2):
        db.write(lambda tx: tx.artifacts.delete(artifact.id))
    assert db.read(lambda tx: tx.artifacts.get(artifact.id)) is None
    assert db.read(lambda tx: tx.artifacts.files(artifact.id, after="", limit=3)) == []


def test_equal_uploads_are_found_but_not_the_outputs_of_runs(db: Database) -> None:
    upload = an_artifact(created_at=5.0)
    output = an_artifact(created_at=1.0, run_id=a_run().id)
    db.each((upload, output), lambda tx, a: tx.artifacts.insert(a, []))

    kind, digest = ArtifactKind.INPUT, upload.digest
    assert db.read(lambda tx: tx.artifacts.by_digest("default", kind, digest)) == upload
    assert db.read(lambda tx: tx.artifacts.by_digest("other", kind, digest)) is None
    assert db.read(lambda tx: tx.artifacts.by_digest("default", ArtifactKind.CODE, digest)) is None


def test_artifacts_page_from_the_newest(db: Database) -> None:
    artifacts = [an_artifact(created_at=float(n), project=f"p{n % 2}") for n in range(5)][::-1]
    db.each(artifacts, lambda tx, a: tx.artifacts.insert(a, []))

    first = db.read(lambda tx: tx.artifacts.page(None, after=None, limit=2))
    after = (first[-1].created_at, first[-1].id)
    assert first + db.read(lambda tx: tx.artifacts.page(None, after=after, limit=9)) == artifacts
    assert db.read(lambda tx: tx.artifacts.page("p1", after=None, limit=9)) == artifacts[1::2]


def test_the_newest_checkpoint_is_that_of_the_newest_epoch(db: Database) -> None:
    run = a_run()

    def checkpoint(epoch: int, created_at: float, step: int) -> Artifact:
        return an_artifact(
            kind=ArtifactKind.CHECKPOINT, run_id=run.id, epoch=epoch, created_at=created_at, step=step
        )

    # The clock was set back before the second attempt.
    made = [checkpoint(1, 100.0, 10), checkpoint(2, 50.0, 10), checkpoint(2, 60.0, 20)]
    output = an_artifact(kind=ArtifactKind.OUTPUT, run_id=run.id, epoch=9)
    db.each([*made, output], lambda tx, a: tx.artifacts.insert(a, []))

    assert db.read(lambda tx: tx.artifacts.newest_checkpoint(run.id)) == made[2]
    assert db.read(lambda tx: tx.artifacts.newest_checkpoint(a_run().id)) is None


def test_uploads_that_no_run_names_are_unused(db: Database) -> None:
    run = a_run()
    used, unused = an_artifact(), an_artifact(kind=ArtifactKind.CODE)
    kept, young = an_artifact(pinned=True), an_artifact(created_at=500.0)
    output = an_artifact(kind=ArtifactKind.OUTPUT, run_id=run.id)

    def unit(tx: Tx) -> None:
        tx.runs.insert(run, "{}")
        for artifact in (used, unused, kept, young, output):
            tx.artifacts.insert(artifact, [])
        tx.artifacts.use(run.id, [used.id, used.id])
        tx.artifacts.use(a_run().id, [unused.id])

    db.write(unit)

    assert db.read(lambda tx: tx.artifacts.unused_uploads(200.0, 10)) == [unused.id]
    assert db.read(lambda tx: tx.artifacts.used_by(run.id)) == [used.id]
    assert db.read(lambda tx: tx.artifacts.used_by(a_run().id)) == []


def test_a_manifest_of_a_hundred_thousand_files_is_committed_in_one_go(db: Database) -> None:
    artifact = an_artifact(id=ArtifactId("a-large"))
    digest = digest_of("x")
    files = [ArtifactFile(f"data/shard-{n:06}.bin", digest, n, 0o644) for n in range(100_000)]
    began = time.monotonic()
    db.write(lambda tx: tx.artifacts.insert(artifact, files))
    print(f"{len(files)} files in {time.monotonic() - began:.2f} s")

    assert db.read(lambda tx: tx.artifacts.files(artifact.id, after="", limit=100_001)) == files
