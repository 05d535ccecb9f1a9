"""Starting and stopping the server and the worker of this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.installation import Installation
from support.waiting import eventually


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Started by the installed program itself."""
    made = Installation(tmp_path_factory.mktemp("home"))
    started = made.really("up", "--detach")
    assert started.returncode == 0, started.stderr
    yield made
    made.really("down", "--timeout", "5")


def test_up_a_second_time_says_only_that_it_is_up(corral: Installation) -> None:
    done = corral("up", "--detach")

    assert done.returncode == 0
    assert done.stdout.startswith("corral is already up at http://127.0.0.1:")
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_status_says_the_same_to_programs(corral: Installation, tmp_path: Path) -> None:
    """NEW-22: all that people are shown, also when there is no server."""
    found = corral.json("status")

    assert (found["server"]["pid"], found["worker"]["pid"]) == (corral.pid("server"), corral.pid("worker"))
    assert (found["home"], found["ok"]) == (str(corral.home), True)
    assert (found["hosts"], found["slots"]["busy"]) == ({"alive": 1, "all": 1}, 0)
    assert found["url"] in corral.ok("status")
    nobody = Installation(tmp_path / "empty")("status", "--json")
    assert nobody.returncode == 3
    assert json.loads(nobody.stdout) == {
        "home": str(tmp_path / "empty"),
        "server": None,
        "worker": None,
        "died": [],
        "ok": False,
        "detail": nobody.stderr.splitlines()[0].removeprefix("error: "),
    }


def test_after_up_the_worker_is_there_at_once(tmp_path: Path) -> None:
    machine = Installation(tmp_path / "home")
    try:
        machine.ok("up", "--detach")

        assert "1 of 1 here" in machine.ok("status")
    finally:
        machine("down", "--timeout", "1")


def test_a_port_that_is_taken_is_one_clear_error(tmp_path: Path) -> None:
    """MT-C16."""
    machine = Installation(tmp_path / "home")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        done = machine("up", "--detach", "--port", str(port))

    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first == f"error: port {port} of 127.0.0.1 is taken"
    assert second.startswith("hint: ")
    assert "CORRAL_PORT=0" in second


def test_status_shows_both_processes_and_the_host(corral: Installation) -> None:
    """MT-C16."""
    shown = corral.ok("status")

    assert f"pid {corral.pid('server')}," in shown
    assert f"pid {corral.pid('worker')}," in shown
    assert "1 of 1 here" in shown


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_worker_dials_out_and_listens_nowhere(corral: Installation) -> None:
    """FL-C16: no port is open on a host, and no container or database is needed there."""

    def listening(pid: int) -> set[str]:
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        ]
        open_files = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
        return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in open_files}

    assert listening(corral.pid("server"))
    assert listening(corral.pid("worker")) == set()


def test_a_killed_worker_is_named_and_up_starts_it_again_without_waiting_for_it(tmp_path: Path) -> None:
    """NEW-19: status does not contradict itself. STO-10: nobody waits for a worker that goes on by itself."""
    machine = Installation(tmp_path / "home")
    try:
        started = machine("up", "--detach")
        assert "corral service install" in started.stderr
        killed = machine.process("worker")
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(30)

        shown = machine("status")
        assert shown.returncode == 1
        assert "worker  has died" in shown.stdout
        assert "0 of 1 here" in shown.stdout
        assert "`corral up --detach` starts it again" in shown.stderr
        # HOUR4-10: `corral why` knows it as well as `corral status` does.
        run = machine.ok("run", "--detach", "--no-code", "--", "true").strip()
        assert "the worker has died" in machine("why", run).stderr
        machine.ok("up", "--detach")
        eventually(lambda: "1 of 1 here" in machine.ok("status"), "the worker to be here")

        worker, server = machine.process("worker"), machine.process("server")
        # A worker that cannot answer now, as one that waits between two tries.
        worker.suspend()
        os.kill(server.pid, signal.SIGKILL)
        server.wait(30)
        assert f"goes on (pid {worker.pid})" in machine("up", "--detach").stderr
        assert worker.status() == psutil.STATUS_STOPPED
        worker.resume()
    finally:
        machine("down", "--timeout", "1")


def test_up_in_the_foreground_restarts_the_server_and_stops_with_down(tmp_path: Path) -> None:
    machine = Installation(tmp_path / "home")
    station = machine.popen("up")
    try:
        eventually(lambda: (machine.home / "up" / "worker.json").exists(), "the worker to start")
        eventually(lambda: machine("status").returncode == 0, "the server to answer")
        first = machine.pid("server")

        os.kill(first, signal.SIGKILL)
        eventually(lambda: machine.pid("server") != first, "another server")
        eventually(lambda: machine("status").returncode == 0, "the server to answer")

        said = machine.ok("down", "--timeout", "10")
        assert "worker (pid" in said
        assert "server (pid" in said
        station.communicate(timeout=30)
        assert station.returncode == 0
    finally:
        machine("down", "--timeout", "1")
        station.kill()
        station.communicate()


def test_ctrl_c_on_up_stops_both(tmp_path: Path) -> None:
    machine = Installation(tmp_path / "home")
    station = machine.popen("up")
    try:
        eventually(lambda: machine("status").returncode == 0, "the server to answer")
        station.send_signal(signal.SIGINT)
        said, _ = station.communicate(timeout=60)

        assert "stopped" in said
        assert machine("status").returncode == 3
        assert machine.ok("down") == "nothing is running\n"
    finally:
        machine("down", "--timeout", "1")
        station.kill()


def test_a_pid_that_belongs_to_another_program_now_is_left_alone(tmp_path: Path) -> None:
    machine = Installation(tmp_path / "home")
    (machine.home / "up").mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as bystander:
        (machine.home / "up" / "server.json").write_text(json.dumps({"pid": bystander.pid, "started": 1.0}))
        (machine.home / "worker.pid").write_text(str(bystander.pid))

        assert machine.ok("down") == "nothing is running\n"

        assert bystander.poll() is None
        bystander.kill()


def test_a_server_that_cannot_start_says_why_in_its_own_words(tmp_path: Path) -> None:
    machine = Installation(tmp_path / "home")
    machine.home.mkdir()
    (machine.home / "corral.db").mkdir()

    done = machine("up", "--detach")

    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first == f"error: {machine.home}/corral.db cannot be opened: Is a directory"
    assert second.startswith("hint: ")


def test_a_server_that_breaks_while_it_starts_shows_the_end_of_its_log(tmp_path: Path) -> None:
    machine = Installation(tmp_path / "home")
    (machine.home / "server.json.part").mkdir(parents=True)

    done = machine("up", "--detach")

    assert done.returncode == 1
    assert "the server ended while it started; the end of its log:" in done.stderr


def test_a_home_that_cannot_be_used_is_an_error_with_a_hint(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("not a folder")
    done = Installation(occupied)("up", "--detach")
    assert done.returncode != 0
    assert "data cannot be kept in" in done.stderr
    assert "CORRAL_HOME" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(path)]
    if os.name == "nt" or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def _fill(path: Path) -> None:
    with suppress(OSError), (path / "ballast").open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_a_full_disk_is_told_by_status_and_by_up(small_disk: Path) -> None:
    """STO-09: health was ok at 0 bytes free, and `corral up` printed a traceback."""
    machine = Installation(small_disk / "home", {"CORRAL_MIN_FREE_BYTES": str(1 << 20)})
    try:
        machine.ok("up", "--detach")
        _fill(small_disk)
        status = machine("status")
        again = machine("up", "--detach")
    finally:
        machine("down", "--timeout", "1")
    up = machine("up", "--detach")
    server = subprocess.run(
        [sys.executable, "-m", "corral.server"], env=machine.env, capture_output=True, text=True, check=False
    )

    assert status.returncode == 1
    assert "not ok" in status.stdout
    assert "the server's disk is full: it has 0 bytes free" in status.stdout
    assert again.stdout.startswith("corral is already up at ")
    assert up.returncode == 1
    assert up.stderr.startswith(f"error: the disk of {machine.home} is full: it has ")
    assert "hint: Free some space" in up.stderr
    assert not (machine.home / "up" / "server.json").exists()
    assert server.returncode == 1
    *_, error, hint = server.stderr.splitlines()
    assert error.startswith("error: ")
    assert "full" in error
    assert hint.startswith("hint: ")
    for said in (status, again, up):
        assert "Traceback" not in said.stdout + said.stderr


def test_up_with_little_space_left_says_so_and_starts(small_disk: Path) -> None:
    """STO-09: what the server can still do is worth starting it."""
    machine = Installation(small_disk / "home", {"CORRAL_MIN_FREE_BYTES": str(1 << 30)})
    try:
        done = machine("up", "--detach")
    finally:
        machine("down", "--timeout", "1")

    assert done.returncode == 0, done.stderr
    assert "warning: the server's disk is full" in done.stderr
