"""Volumes on a real server and a real worker: in functions, from a program, from the shell."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.local_cluster import LocalCluster, local_cluster
from typer.testing import CliRunner

import corral
from acceptance import volumes_for_tests as kit
from corral.cli.volumes import app
from corral.client.files.blobs import BlobSink
from corral.client.files.tree import Tree
from corral.client.files.upload import upload
from corral.client.http.transport import Backoff
from corral.client.volumes import folder as volume_folder
from corral.client.volumes.folder import VolumeFolder
from corral.client.volumes.volumes import put
from corral.domain import errors
from corral.functions import backend
from corral.functions.http_backend import HttpBackend
from corral.wire.quotas import QuotaRequest

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("volumes") / "home", lease_s=5.0) as made:
        made.own_worker(slots=20)
        yield made


@pytest.fixture(scope="module", autouse=True)
def remote(stack: LocalCluster) -> Iterator[HttpBackend]:
    made = HttpBackend(stack.client(), "default")
    before = backend.set_backend(made)
    yield made
    backend.set_backend(before)


def test_what_a_function_commits_is_there_for_others_and_for_the_caller(tmp_path: Path) -> None:
    """RF-C32, RF-C37."""
    kit.notes.put(__file__, "seed/test.py")
    version = kit.write.remote("a/one.txt", "one")

    assert "a/one.txt" in kit.other.remote("two.txt", "two")
    assert kit.write.remote("three.txt", "three") == version + 2, "merged with what the other wrote"
    assert {file.path for file in kit.notes.ls()} == {"seed/test.py", "a/one.txt", "two.txt", "three.txt"}
    kit.notes.get("a", tmp_path / "a")
    assert (tmp_path / "a" / "one.txt").read_text() == "one"
    assert kit.folder.remote()


def test_files_that_both_changed_are_a_conflict_in_the_function(stack: LocalCluster) -> None:
    kit.other.remote("same.txt", "first")
    kit.write.remote("mine.txt", "x")

    kit.other.remote("same.txt", "second")
    with pytest.raises(corral.VolumeConflict, match=r"same\.txt"):
        kit.write.remote("same.txt", "third")

    head = stack.client().volumes.remote("default", "notes")
    by_path = {file.path: file.size for file in head.tree(head.head()).files}
    assert by_path["same.txt"] == len("second")
    kit.write.remote("mine.txt", "after", discard=True)


def test_calls_that_overlap_in_one_instance_lose_nothing() -> None:
    texts = {f"many/{n}.txt": str(n) for n in range(12)}
    list(kit.write.starmap(texts.items(), order=False))

    assert texts.keys() <= {file.path for file in kit.notes.ls()}


def test_a_function_that_does_not_name_the_volume_does_not_get_it() -> None:
    assert "does not use the volume" in kit.without.remote()


def test_an_instance_uses_its_volume_and_calls_others_while_it_is_being_made() -> None:
    kit.write.remote("model.txt", "weights")

    assert kit.Reader().read.remote() == ("weights", True)


def test_a_secret_is_not_committed(stack: LocalCluster) -> None:
    stack.client().secrets.set("default", "DEPLOY_KEY", "not-a-real-one-1234")
    made = corral.App("vols").function(name="leaks", volumes={"data": kit.notes}, secrets=["DEPLOY_KEY"])

    said = made(kit.leaks.local).remote()

    assert "contain a secret" in said
    assert "not-a-real-one" not in said
    assert "leak.txt" not in {file.path for file in kit.notes.ls()}


def test_called_plainly_the_function_works_on_a_folder_of_this_process() -> None:
    assert kit.write("plain.txt", "here") == kit.write("plain.txt", "here")
    assert "plain.txt" in kit.other.remote("x", None)


def test_a_deployed_function_has_its_volume_too(stack: LocalCluster, remote: HttpBackend) -> None:
    """RF-C37, RF-D49: what the decorator says of volumes holds in the deploy path as well."""
    corral_ = stack.client()
    view = corral_.endpoints.deploy(remote.request(kit.app.members["folder"], "default", live=False))
    target = backend.backend().find(kit.app.members["folder"])
    ask = kit.folder._ask((), {})

    (seen,) = remote.make(replace(target, endpoint=view.name, version=0), [ask], 30)

    assert seen.state == "succeeded"


def test_hosts_share_a_volume_and_a_worker_that_is_killed_loses_only_what_was_not_committed(
    stack: LocalCluster, tmp_path: Path
) -> None:
    """The second host writes, is killed with a change under way, and the first goes on from what was kept."""
    shared = corral.Volume("shared")
    worker = stack.other_worker(tmp_path / "second", "second", slots=4)

    def write(name: str, text: str, commit: bool) -> int:
        (shared.path / name).write_text(text)
        return shared.commit() if commit else 0

    def read() -> dict[str, str]:
        shared.reload()
        return {path.name: path.read_text() for path in shared.path.iterdir()}

    there = corral.App("there").function(name="w", volumes={"d": shared}, hosts=["second"])(write)
    anywhere = corral.App("here").function(name="r", volumes={"d": shared}, hosts=[_own_host(stack)])(read)

    assert there.remote("a", "1", True) == 1
    assert anywhere.remote() == {"a": "1"}
    assert there.remote("b", "not committed", False) == 0
    stack.kill_worker(worker)
    assert anywhere.remote() == {"a": "1"}
    stack.start_worker(worker)
    assert there.remote("c", "2", True) == 2
    assert anywhere.remote() == {"a": "1", "c": "2"}


def _own_host(stack: LocalCluster) -> str:
    return next(host.name for host in stack.client().hosts.page().items if host.name != "second")


def test_a_file_that_is_written_while_it_is_committed_is_looked_at_again(
    stack: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another call of the same instance."""
    folder, other = (
        VolumeFolder(tmp_path / name, stack.client().volumes.remote("default", "busy"))
        for name in ("one", "two")
    )
    folder.fill()
    (folder.root / "a").write_text("nobody has this yet")
    times: list[Tree] = []

    def upload_late(tree: Tree, root: Path, sink: BlobSink) -> None:
        times.append(tree)
        if len(times) < 3:
            (root / "a").write_text("nor this" * len(times))
        upload(tree, root, sink)

    monkeypatch.setattr(volume_folder, "upload", upload_late)

    assert folder.commit() == 1

    assert len(times) == 3
    other.fill()
    assert (other.root / "a").read_text() == "nor thisnor this"


def test_reload_keeps_what_was_not_committed_and_never_takes_it_for_old(
    stack: LocalCluster, tmp_path: Path
) -> None:
    here, there = (
        VolumeFolder(tmp_path / name, stack.client().volumes.remote("default", "pair"))
        for name in ("here", "there")
    )
    here.fill()
    (here.root / "a").write_text("1")
    (here.root / "b").write_text("1")
    here.commit()
    there.fill()
    (there.root / "b").write_text("2")
    (there.root / "sub").mkdir()
    (there.root / "sub" / "new").write_text("1")
    there.commit()

    (here.root / "a").write_text("mine")
    assert here.reload(discard=False) == 2
    assert {path.name: path.read_text() for path in here.root.iterdir() if path.is_file()} == {
        "a": "mine",
        "b": "2",
    }
    (there.root / "a").write_text("theirs")
    assert there.commit() == 3
    with pytest.raises(errors.VolumeConflict, match="a"):
        here.reload(discard=False)
    with pytest.raises(errors.VolumeConflict):
        here.commit()
    assert here.reload(discard=True) == 3
    assert (here.root / "a").read_text() == "theirs"


def test_writers_who_race_lose_nothing(stack: LocalCluster, tmp_path: Path) -> None:
    """RF-D46: each adds a file of its own, again and again, from its own folder; at the end all are there."""

    def work(n: int) -> None:
        folder = VolumeFolder(tmp_path / f"w{n}", stack.client().volumes.remote("default", "race"))
        folder.fill()
        for step in range(5):
            (folder.root / f"{n}-{step}").write_text(f"{n} {step}")
            folder.commit()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    head = stack.client().volumes.remote("default", "race")
    assert len(head.tree(head.head()).files) == 20
    assert head.head().version == 20


def test_kill_9_in_the_middle_of_a_commit_leaves_the_old_or_the_new_version_whole(
    stack: LocalCluster, tmp_path: Path
) -> None:
    """RF-D45: a writer and then the server are killed at whatever point they are; both files are always of
    one commit, and all bytes are there."""
    source = tmp_path / "source"
    source.mkdir()
    code = (
        "import pathlib, sys\n"
        "from corral.client.corral import Corral\n"
        "from corral.client.volumes.volumes import put\n"
        "source = pathlib.Path(sys.argv[1])\n"
        "remote = Corral(sys.argv[2], sys.argv[3]).volumes.remote('default', 'killed')\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    for name in ('a', 'b'):\n"
        "        (source / name).write_text(str(n).zfill(8) * 20000)\n"
        "    put(remote, source, '/')\n"
        "    print(n, flush=True)\n"
    )
    for what in ("writer", "server"):
        argv = [sys.executable, "-c", code, str(source), stack.url, stack.token]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            told = int([writer.stdout.readline() for _ in range(2)][-1])
            if what == "server":
                stack.kill_server()
            writer.kill()
        if what == "server":
            stack.start_server()
        corral_ = stack.client()
        volume = corral_.volumes.get("default", "killed")
        newest = volume.versions[0]
        tree = corral_.volumes.remote("default", "killed").tree(newest)
        assert len({file.digest for file in tree.files}) == 1
        assert volume.head >= told
        assert newest.artifact_id is not None
        assert corral_.artifacts.verify(newest.artifact_id).problems == []
    found = list(corral_.fsck())
    assert [line.problem for line in found if line.problem] == []
    assert [line.checked for line in found if line.check == "volumes"] == [len(list(corral_.volumes.all()))]


def test_the_shell_lists_shows_fills_fetches_and_removes(
    stack: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RF-D58, RF-D64: from a fresh machine everything can be listed and removed."""

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORRAL_HOME", str(stack.home))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x").write_text("x")

    assert "shelf: version 1, 1 file" in run("put", "shelf", "in")
    assert "shelf: version 2, 2 files" in run("put", "shelf", "in/x", "deep/y")
    assert '"head": 2' in run("ls", "--json")
    assert "deep/y" in run("show", "shelf")
    run("get", "shelf", "/", "out")
    assert (tmp_path / "out" / "deep" / "y").read_text() == "x"
    assert "version 3, 1 file" in run("rm", "shelf", "deep")
    run("get", "shelf", "deep/y", "old", "--version", "2")
    assert (tmp_path / "old").read_text() == "x"
    assert "removed" in run("rm", "shelf", "--yes")
    assert "shelf" not in run("ls")


def test_a_volume_counts_against_the_quota_of_its_project(stack: LocalCluster, tmp_path: Path) -> None:
    """MT-D02."""
    client = stack.client(backoff=Backoff(tries=1))
    client.quotas.put("small", QuotaRequest(max_bytes=10))
    remote = client.volumes.remote("small", "shelf")
    (tmp_path / "fits").write_text("x" * 10)
    (tmp_path / "too-much").write_text("y")

    assert put(remote, tmp_path / "fits", "/").version == 1
    with pytest.raises(errors.ProjectFull):
        put(remote, tmp_path / "too-much", "/")
    assert remote.head().version == 1


def test_what_is_wrong_is_told_before_anything_is_sent(stack: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no name"):
        corral.Volume("a b")
    with pytest.raises(ValueError, match="folder"):
        corral.App("x").function(volumes={"a/b": kit.notes})
    with pytest.raises(TypeError, match=r"corral\.Volume"):
        corral.App("x").function(volumes={"a": "notes"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="which folder is which volume"):
        corral.App("x").function(volumes=[kit.notes])  # type: ignore[arg-type]
    remote = stack.client().volumes.remote("default", "none")
    with pytest.raises(errors.InvalidInput, match="is not there"):
        put(remote, tmp_path / "nothing", "/")
    with pytest.raises(errors.NotFound):
        stack.client().volumes.get("default", "none")
    assert remote.tree(remote.head()) == Tree(())
