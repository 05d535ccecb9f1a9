"""Clients, workers and data folders of commit c34a843, with the code of today.

The earlier code is taken out of this repository's own history and run with the packages that are installed.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.live_server import new_host, serve

COMMIT = "c34a843"
ROOT = Path(__file__).parents[2]
_CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key and key != "PYTHONPATH"}

PROGRAM = """
import corral

app = corral.App("kept")
count = {"calls": 0}


@app.function()
def double(x: int) -> int:
    return 2 * x


@app.function()
def quadruple(x: int) -> int:
    return double.remote(double(x))


@app.cls()
class Counter:
    start: int = corral.parameter(default=0)

    @corral.enter()
    def load(self) -> None:
        self.value = self.start

    @corral.method()
    def add(self, n: int) -> int:
        self.value += n
        return self.value
"""

# Several commands by one interpreter, since each takes a second to start.
COMMANDS = """
import json, runpy, sys

for words in json.loads(sys.argv[1]):
    sys.argv = ["corral", *words]
    try:
        runpy.run_module("corral", run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
"""

CALLER = """
import json, sys
import corral

found = {
    "double": corral.function("kept.double").remote(21),
    "quadruple": corral.function("kept.quadruple").remote(3),
    "many": list(corral.function("kept.double").map(range(5))),
}
print(json.dumps(found))
"""

# What a client reads of a list whose pages end early, since their items are large.
READER = """
import json, sys
from corral.client.api import Corral

url, token, run = sys.argv[1:]
with Corral(url, token) as corral:
    found = {
        "logs": [line.text[:2] for line in corral.runs.iter_logs(run)],
        "tail": [line.text[:2] for line in corral.runs.iter_logs(run, tail=25)],
        "runs": sum(1 for one in corral.runs.iter()),
    }
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Release:
    """The code in `source`, as commands that use the data folder `home`."""

    source: Path
    home: Path

    @property
    def env(self) -> dict[str, str]:
        return {**_CLEAN, "PYTHONPATH": str(self.source), "CORRAL_HOME": str(self.home), "CORRAL_PORT": "0"}

    def corral(self, *words: str, cwd: Path | None = None) -> str:
        return self.python("-m", "corral", *words, cwd=cwd)

    def corral_each(self, commands: list[str], cwd: Path) -> None:
        """One after the other; each must succeed."""
        self.python("-c", COMMANDS, json.dumps([shlex.split(one) for one in commands]), cwd=cwd)

    def json(self, *words: str) -> Any:
        return json.loads(self.corral(*words, "--json"))

    def python(self, *words: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            env=self.env,
            cwd=cwd or self.home.parent,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, program: str, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen([sys.executable, "-m", program], env=self.env, stdout=out, stderr=out)


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", COMMIT, "corral"], capture_output=True, check=False
    )
    if packed.returncode != 0:
        pytest.skip(f"this copy has no history with {COMMIT}; clone the repository in full")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def made(old_source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A data folder that the old release filled and left, and what it said was in it."""
    folder = tmp_path_factory.mktemp("made")
    old = Release(old_source, folder / "home")
    work = folder / "work"
    work.mkdir()
    (work / "kept.py").write_text(PROGRAM)
    (work / "sweep.toml").write_text(
        'name = "sweep"\nargv = ["sh", "-c", "echo {params.x} > $CORRAL_OUTPUT_DIR/x"]\n[sweep]\nx = [1, 2]\n'
    )
    (work / "needs.toml").write_text(
        'name = "needs"\nsecrets = ["GREETING"]\n'
        'argv = ["sh", "-c", "printf %s \\"$GREETING\\" | wc -c > $CORRAL_OUTPUT_DIR/length"]\n'
    )
    (work / "nightly.toml").write_text('name = "nightly"\nargv = ["true"]\n[schedule]\ncron = "0 3 * * *"\n')
    (work / "waits.toml").write_text('name = "waits"\nargv = ["true"]\n[resources]\nlabels = ["absent"]\n')
    (work / "fleet.toml").write_text(
        'name = "fleet"\n[runs.declared]\nargv = ["true"]\n[hosts.elsewhere]\nslots = 2\n'
    )
    old.corral("up", "--detach")
    try:
        subprocess.run(
            [sys.executable, "-m", "corral", "secrets", "set", "GREETING"],
            env=old.env,
            input="a kept value",
            text=True,
            check=True,
            capture_output=True,
        )
        commands = [
            "submit sweep.toml --follow",
            "run -- sh -c 'echo 42 > $CORRAL_OUTPUT_DIR/answer'",
            "volumes put kept kept.py kept.py",
            "schedules add nightly.toml",
            "manifest apply fleet.toml",
            "quotas set default --max-running 50",
            "fn deploy kept.py",
            "submit waits.toml",
        ]
        old.corral_each(commands, work)
        assert json.loads(old.python("-c", CALLER, cwd=work))["double"] == 42
        listed = {
            "runs": {run["id"] for run in old.json("ls")},
            "artifacts": {one["id"] for one in old.json("artifacts", "ls")},
            "waiting": old.json("ls", "--state", "queued")[0]["id"],
        }
    finally:
        old.corral("down")
    return folder, listed


@pytest.fixture
def data(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    folder, listed = made
    shutil.copytree(folder, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy", listed


@pytest.fixture
def new(data: tuple[Path, dict[str, Any]]) -> Iterator[Release]:
    release = Release(ROOT, data[0] / "home")
    try:
        yield release
    finally:
        release.corral("down")


def test_a_data_folder_is_taken_over_whole(new: Release, data: tuple[Path, dict[str, Any]]) -> None:
    work, listed = data[0] / "work", data[1]
    new.corral("up", "--detach")

    assert listed["runs"] <= {run["id"] for run in new.json("ls", "--instances")}
    assert listed["artifacts"] <= {one["id"] for one in new.json("artifacts", "ls")}
    assert [one["name"] for one in new.json("schedules", "ls")] == ["nightly"]
    assert [one["name"] for one in new.json("secrets", "ls")] == ["GREETING"]
    commands = [
        "volumes get kept / fetched",
        "submit needs.toml --follow",
        "artifacts get latest greeting",
        f"cancel {listed['waiting']}",
        "audit verify",
    ]
    new.corral_each(commands, work)
    assert (work / "fetched" / "kept.py").read_text() == PROGRAM
    assert (work / "greeting" / "length").read_text().strip() == str(len("a kept value"))
    assert "nothing to do" in new.corral("manifest", "plan", "fleet.toml", cwd=work)
    assert new.json("show", listed["waiting"])["state"] == "cancelled"
    assert "no problem" in new.corral("fsck")


def test_deployed_functions_answer_again(new: Release, data: tuple[Path, dict[str, Any]]) -> None:
    new.corral("up", "--detach")

    assert json.loads(new.python("-c", CALLER)) == {"double": 42, "quadruple": 12, "many": [0, 2, 4, 6, 8]}


def test_an_old_client_is_served(new: Release, old_source: Path, data: tuple[Path, dict[str, Any]]) -> None:
    work = data[0] / "work"
    new.corral("up", "--detach")
    old = Release(old_source, new.home)

    old.corral("submit", "sweep.toml", "--follow", cwd=work)
    assert [run["state"] for run in old.json("ls")[:2]] == ["succeeded", "succeeded"]
    assert json.loads(old.python("-c", CALLER))["quadruple"] == 12
    (work / "again.py").write_text(PROGRAM.replace('"kept"', '"again"'))
    old.corral("fn", "deploy", "again.py", cwd=work)
    assert json.loads(old.python("-c", CALLER.replace("kept.", "again.")))["many"] == [0, 2, 4, 6, 8]


def test_an_old_client_reads_lists_whose_pages_end_with_their_bytes(old_source: Path, tmp_path: Path) -> None:
    """ATK-27: it goes on with the `next` of a page that is shorter than it asked for."""
    texts = [f"{n:02} " + "\x01" * 65_000 for n in range(30)]
    with serve(tmp_path / "server") as live:
        lease = new_host(live).run()
        lines = [{"at": 1.0, "stream": "stdout", "text": text} for text in texts]
        lease.ok("POST", "events", {"seq": 1, "logs": lines})
        lease.ok("POST", "finish", {})
        old = Release(old_source, tmp_path / "home")

        found = json.loads(old.python("-c", READER, live.url, live.operator, lease.run_id, cwd=tmp_path))

        page = live.ok("GET", f"/v1/runs/{lease.run_id}/logs", params={"limit": 1000})
        assert len(page["items"]) < 30
    numbers = [text[:2] for text in texts]
    assert found == {"logs": numbers, "tail": numbers[5:], "runs": 1}


def test_a_new_worker_works_for_an_old_server(old_source: Path, data: tuple[Path, dict[str, Any]]) -> None:
    """Each of its claims was refused for what it said of its memory."""
    work = data[0] / "work"
    old, new = Release(old_source, data[0] / "home"), Release(ROOT, data[0] / "home")
    processes = [old.start("corral.server", work / "server.log")]
    try:
        _wait_until_it_listens(old)
        processes.append(new.start("corral.worker", work / "worker.log"))
        old.corral("submit", "sweep.toml", "--follow", cwd=work)
        assert [run["state"] for run in old.json("ls")[:2]] == ["succeeded", "succeeded"]
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def test_an_old_worker_is_given_runs_and_calls(
    new: Release, old_source: Path, data: tuple[Path, dict[str, Any]]
) -> None:
    work = data[0] / "work"
    old = Release(old_source, new.home)
    processes = [new.start("corral.server", work / "server.log")]
    try:
        _wait_until_it_listens(new)
        processes.append(old.start("corral.worker", work / "worker.log"))
        new.corral("submit", "sweep.toml", "--follow", cwd=work)
        assert [run["state"] for run in new.json("ls")[:2]] == ["succeeded", "succeeded"]
        assert json.loads(new.python("-c", CALLER))["quadruple"] == 12
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _wait_until_it_listens(release: Release) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done = subprocess.run(
            [sys.executable, "-m", "corral", "ls"], env=release.env, capture_output=True, check=False
        )
        if done.returncode == 0:
            return
        time.sleep(0.2)
    raise AssertionError("the server did not listen within a minute")
