"""Manifests end to end: the installed commands, a live server, real children, and a server that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from support import forked
from support.local_cluster import LocalCluster, local_cluster, problems
from support.waiting import eventually

from corral.client.corral import Corral
from corral.client.http.transport import Backoff
from corral.client.manifests import sync as fleet
from corral.client.manifests.read import load
from corral.client.runs import RunQuery
from corral.client.submit.prepare import ProgressListener, RunPreparer
from corral.domain.errors import CorralError
from corral.wire.manifests import ApplyAnswer

FIT = """
import argparse, os, pathlib
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, required=True)
p.add_argument("--opt", choices=["sgd", "adam"], default="sgd")
a = p.parse_args()
pathlib.Path(os.environ["CORRAL_OUTPUT_DIR"], "result").write_text(f"{a.lr} {a.opt}")
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("home") / "server", lease_s=10) as made:
        made.own_worker(slots=2)
        yield made


class Folder:
    """A manifest in a folder of its own, and the commands on it."""

    def __init__(self, path: Path, running: LocalCluster) -> None:
        self.path = path
        self.running = running
        (path / "code").mkdir()
        (path / "code" / "fit.py").write_text(FIT)

    def write(self, text: str) -> None:
        head = f'argv = [{sys.executable!r}, "fit.py", "--lr", "{{params.lr}}"]\ncode = "code"\n'
        (self.path / "fleet.toml").write_text(dedent(text).replace("COMMAND\n", head))

    def __call__(self, *words: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        env = self.running.env() | {"NO_COLOR": "1"}
        done = forked.run(["manifest", *words], env, cwd=self.path)
        assert done.returncode == expect, done.stdout + done.stderr
        return done

    def answer(self, *words: str, expect: int = 0) -> ApplyAnswer:
        return ApplyAnswer.model_validate_json(self(*words, "--json", expect=expect).stdout)


@pytest.fixture
def folder(tmp_path: Path, running: LocalCluster) -> Folder:
    return Folder(tmp_path, running)


def wait_succeeded(corral: Corral, run_id: str) -> None:
    eventually(lambda: corral.runs.get(run_id).state == "succeeded", f"{run_id} to succeed", within_s=120)


def test_a_manifest_is_planned_applied_and_applied_again(folder: Folder, running: LocalCluster) -> None:
    """FL-C09: what `reload` was. FL-C03, promise 8."""
    name = "whole"
    folder.write(
        f"""
        name = "{name}"
        [defaults]
        COMMAND
        params_from = "code/fit.py"
        [runs.one]
        params.lr = 1
        [runs.two]
        sweep.lr = [0.5, 0.25]
        """
    )

    planned = folder("plan", "fleet.toml", "--check", expect=2)
    assert planned.stdout.splitlines()[-1] == f"{name}: 3 new"
    applied = folder.answer("apply", "fleet.toml")
    again = folder("apply", "fleet.toml")

    assert [change.action for change in applied.changes] == ["new"] * 3
    assert again.stdout == f"{name}, revision 1: nothing to do; 3 the same\n"
    assert folder("plan", "fleet.toml", "--check").stdout == f"{name}: nothing to do; 3 the same\n"
    corral = running.client()
    for change in applied.changes:
        assert change.run_id is not None
        run_id = change.run_id
        wait_succeeded(corral, run_id)
    assert folder("apply", "fleet.toml").stdout.endswith("nothing to do; 3 the same\n")
    (listed,) = [m for m in json.loads(folder("ls", "--json").stdout) if m["name"] == name]
    assert (listed["runs"], listed["revision"]) == (3, 1)
    assert "3 succeeded" in folder("show", name).stdout
    folder("delete", name)
    assert name not in folder("ls").stdout


def test_changed_code_is_another_run_and_the_old_one_is_held(folder: Folder) -> None:
    """FL-D32: a changed commit changes the id; the job that left the manifest is not claimable."""
    folder.write(
        """
        name = "code"
        [runs.one]
        COMMAND
        params.lr = 1
        resources.hosts = ["nobody"]
        """
    )
    first = folder.answer("apply", "fleet.toml")
    (folder.path / "code" / "fit.py").write_text(FIT + "# faster\n")

    second = folder.answer("apply", "fleet.toml")

    assert [(c.action, c.state) for c in second.changes] == [("new", "queued"), ("removed", "held")]
    assert second.changes[1].run_id == first.changes[0].run_id
    assert second.changes[0].identity != first.changes[0].identity
    shown = folder("show", "code").stdout
    assert str(first.changes[0].run_id) in shown
    (folder.path / "code" / "fit.py").write_text(FIT)
    back = folder.answer("apply", "fleet.toml", "--prune")
    assert [c.action for c in back.changes] == ["restored", "pruned"]
    folder("delete", "code", expect=1)
    folder("delete", "code", "--prune")


def test_a_manifest_is_no_part_of_the_code_that_it_names(folder: Folder) -> None:
    """NEW-03: the how-to's own layout. A changed comment changes no run, and a changed file is named.
    NEW-28: runs of one name are told apart."""
    manifest = """
        name = "beside"
        [defaults]
        code = "."
        argv = ["true", "{params.lr}"]
        resources.hosts = ["nobody"]
        [runs.grid]
        sweep.lr = [0.5, 0.25]
        [runs.filed]
        file = "code/filed.toml"
        """
    folder.write(manifest)
    (folder.path / "code" / "filed.toml").write_text('params.lr = 3\ncode = ".."\n')
    planned = folder("plan", "fleet.toml").stdout.splitlines()
    assert planned[:2] == ["+ run  grid  lr=0.5", "+ run  grid  lr=0.25"]
    folder("apply", "fleet.toml")

    folder.write(f"# Tuned by hand.{manifest}")
    (folder.path / "code" / "filed.toml").write_text('# Of old.\nparams.lr = 3\ncode = ".."\n')
    assert folder("plan", "fleet.toml").stdout == "beside: nothing to do; 3 the same\n"

    (folder.path / "code" / "fit.py").write_text(FIT + "# faster\n")
    (folder.path / "notes.txt").touch()
    folder.write(manifest.replace('"true"', '"echo"'))
    planned = folder("plan", "fleet.toml").stdout.splitlines()
    assert planned[:6] == [
        "+ run  grid  lr=0.5",
        '      argv: ["true", "{params.lr}"] -> ["echo", "{params.lr}"]',
        "      code/code/fit.py: changed",
        "      code/notes.txt: added",
        "+ run  grid  lr=0.25",
        "+ run  filed",
    ]
    folder("delete", "beside", "--prune")


def test_a_mistyped_parameter_never_reaches_the_queue(folder: Folder, running: LocalCluster) -> None:
    """FL-C12: all that is wrong is told before anything is queued, with its line."""
    folder.write(
        """
        name = "wrong"
        [defaults]
        COMMAND
        params_from = "code/fit.py"
        [runs.mistyped]
        params.lrr = 1
        [runs.two]
        params.lr = "fast"
        inputs.rows = "nowhere.jsonl"
        """
    )

    said = folder("apply", "fleet.toml", expect=1).stderr

    assert (
        "fleet.toml:8 runs.mistyped.params.lrr: is not an argument of fit.py; did you mean `lr`?"
        in " ".join(said.split())
    )
    assert "runs.two.params.lr: is 'fast'; --lr takes a number" in " ".join(said.split())
    assert running.client().runs.page(RunQuery(name="mistyped")).items == []
    assert folder("plan", "fleet.toml", "--offline", expect=1).stderr == said
    submitted = subprocess.run(
        [str(Path(sys.executable).parent / "corral"), "submit", "run.toml"],
        cwd=_run_file(folder.path),
        env=running.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert submitted.returncode == 1
    assert "params.lrr" in submitted.stderr


def test_what_could_never_start_is_told_with_its_line_and_nothing_is_queued(
    folder: Folder, running: LocalCluster
) -> None:
    """FL-C12: an executor that is not there, and more ranks than all hosts hold; by plan and by apply."""
    eventually(lambda: any(host.capability for host in running.client().hosts.all()), "the host to be here")
    folder.write(
        """
        name = "never"
        [runs.placed]
        argv = ["true"]
        [runs.placed.placement]
        executors = ["elsewhere"]
        [runs.wide]
        argv = ["true"]
        replicas = 3
        """
    )
    wanted = (
        "fleet.toml:6 runs.placed.placement.executors: names elsewhere; there is no executor but `fleet`",
        "fleet.toml:9 runs.wide.replicas: asks for 3 ranks at once; all hosts together hold 2",
    )

    planned = " ".join(folder("plan", "fleet.toml", expect=1).stdout.split())
    applied = " ".join(folder("apply", "fleet.toml", expect=1).stderr.split())

    for words in wanted:
        assert words in planned
        assert words in applied
    assert running.client().runs.page(RunQuery(name="wide")).items == []


def _run_file(path: Path) -> Path:
    (path / "run.toml").write_text(
        'argv = ["python3", "code/fit.py", "--lr", "1"]\nparams_from = "code/fit.py"\nparams.lrr = 1\n'
    )
    return path


def test_a_result_is_the_input_of_the_next_run(folder: Folder, running: LocalCluster) -> None:
    folder.write(
        """
        name = "chain"
        [runs.first]
        COMMAND
        params.lr = 1
        [runs.second]
        argv = ["sh", "-c", "cat $CORRAL_INPUT_DIR/was/result"]
        after = [{ run = "first", input = "was" }]
        """
    )

    done = folder.answer("apply", "fleet.toml")

    assert [c.state for c in done.changes] == ["queued", "held"]
    corral = running.client()
    last = str(done.changes[1].run_id)
    wait_succeeded(corral, last)
    assert [line.text for line in corral.runs.iter_logs(last) if line.stream == "stdout"] == ["1.0 sgd"]
    assert folder.answer("apply", "fleet.toml").changes == []


def test_a_server_that_is_killed_in_the_middle_of_an_apply_has_all_of_it_or_nothing(tmp_path: Path) -> None:
    """FL-D18: crash at any step, then try again: the records are complete, each once."""
    count = 3000
    path = tmp_path / "fleet.toml"
    values = ", ".join(map(str, range(count)))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.txt").write_text("rows")
    path.write_text(
        'name = "many"\n[runs.grid]\nargv = ["train", "{params.n}"]\n'
        f'inputs.rows = "data"\nsweep.n = [{values}]\n'
    )
    with local_cluster(tmp_path / "home" / "server") as made:
        seen = set()
        for work_s in (0.1, 0.25, 0.4, 0.6):
            _kill_amid(made, path, work_s)
            corral = made.start_server()
            seen.add(_count(corral))
            assert seen <= {0, count}
        _apply_once(corral, path)
        assert _count(corral) == count
        again = _apply(corral, path)
        assert (again.changes, again.same, again.revision) == ([], count, 1)
        assert problems(corral) == []


def _kill_amid(made: LocalCluster, path: Path, work_s: float) -> None:
    """After so much work on an apply, however busy the machine is; or after all of it."""
    enough = _cpu_s(made) + work_s
    applying = threading.Thread(target=_apply_once, args=(made.client(), path))
    applying.start()
    eventually(lambda: _cpu_s(made) > enough or not applying.is_alive(), "the apply to begin")
    made.kill_server()
    applying.join()


def _cpu_s(made: LocalCluster) -> float:
    assert made.server is not None
    spent = psutil.Process(made.server.pid).cpu_times()
    return float(spent.user + spent.system)


def _apply_once(corral: Corral, path: Path) -> None:
    hasty = Corral(
        corral.url, (path.parent / "home/server/operator.token").read_text().strip(), backoff=Backoff(tries=1)
    )
    try:
        with hasty:
            _apply(hasty, path)
    except CorralError:
        return


def _apply(corral: Corral, path: Path) -> ApplyAnswer:
    shop = RunPreparer(corral, path.parent, {}, ProgressListener())
    resolved = fleet.resolve(load(path, project="default"), shop)
    return fleet.sync(corral, resolved, shop, mode="apply", also=[])


def _count(corral: Corral) -> int:
    found = [m for m in corral.manifests.page().items if m.name == "many"]
    runs = sum(1 for _ in corral.runs.iter(RunQuery(name="grid"), page_size=1000))
    assert runs == (found[0].runs if found else 0)
    return runs
