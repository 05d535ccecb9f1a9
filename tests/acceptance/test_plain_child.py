"""Children as Windows has them, without a shim: real processes, on this system."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
from support.waiting import eventually

from corral.worker.child.command import DATA_DIR_VARIABLE, KILLED, LEASE_VARIABLE, Command, Exit
from corral.worker.child.plain_process import PlainChild, read_output, sweep


def _command(code: str, folder: Path, **env: str) -> Command:
    return Command((sys.executable, "-S", "-c", code), folder, env)


def _read(descriptor: int) -> bytes:
    parts = []
    while part := read_output(descriptor, 1000):
        parts.append(part)
    return b"".join(parts)


def test_its_output_arrives_whole_and_its_code_is_told(tmp_path: Path) -> None:
    code = "import os, sys; os.write(1, b'x' * 1_000_000); sys.stderr.write(os.environ['WORD']); sys.exit(3)"

    with PlainChild(_command(code, tmp_path, WORD="hello")) as child:
        assert _read(child.stdout) == b"x" * 1_000_000
        assert _read(child.stderr) == b"hello"
        assert child.wait(30) == Exit(code=3)


def test_a_command_that_cannot_be_executed_is_told(tmp_path: Path) -> None:
    with PlainChild(Command(("no-such-program",), tmp_path, {})) as child:
        ended = child.wait(30)
        assert _read(child.stdout) == b""

    assert ended is not None
    assert ended.error is not None
    assert "no-such-program" in ended.error
    assert child.pid is None


@pytest.mark.parametrize(("name", "path"), [("hello", "bin"), ("./bin/hello", "")])
def test_its_program_is_looked_up_on_its_own_path_and_from_its_own_folder(
    tmp_path: Path, name: str, path: str
) -> None:
    program = tmp_path / "bin" / "hello"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o700)

    with PlainChild(Command((name,), tmp_path, {"PATH": path and str(tmp_path / path)})) as child:
        assert _read(child.stdout) == b"hello\n"
        assert child.wait(30) == Exit(code=0)


def test_what_it_started_is_killed_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "inner = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        "print(inner.pid, flush=True); time.sleep(600)"
    )
    with PlainChild(_command(code, tmp_path)) as child:
        inner = psutil.Process(int(read_output(child.stdout, 100)))
        child.kill()
        assert child.wait(30) == Exit(signal=KILLED)

    eventually(lambda: not inner.is_running() or inner.status() == "zombie", "its child to end")


def test_it_is_asked_to_end_first(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    with PlainChild(_command(code, tmp_path)) as child:
        assert read_output(child.stdout, 100) == b"ready\n"
        assert child.wait(0.01) is None
        child.terminate()
        assert child.wait(30) == Exit(code=7)


def test_the_next_worker_ends_what_a_killed_one_left(tmp_path: Path) -> None:
    mine, others = {DATA_DIR_VARIABLE: str(tmp_path)}, {DATA_DIR_VARIABLE: os.sep}
    sleeps = "print('ready', flush=True); import time; time.sleep(600)"
    with (
        PlainChild(_command(sleeps, tmp_path, **mine, **{LEASE_VARIABLE: "l-old"})) as old,
        PlainChild(_command(sleeps, tmp_path, **mine, **{LEASE_VARIABLE: "l-kept"})) as kept,
        PlainChild(_command(sleeps, tmp_path, **others, **{LEASE_VARIABLE: "l-old"})) as other,
    ):
        for child in (old, kept, other):
            assert read_output(child.stdout, 100) == b"ready\n"

        assert sweep({"l-kept"}, data_dir=tmp_path) == [old.pid]

        assert old.wait(30) == Exit(signal=KILLED)
        assert kept.poll() is None
        assert other.poll() is None


@pytest.mark.skipif(sys.platform == "win32", reason="the other kind is not there")
def test_windows_and_others_have_the_same_methods() -> None:
    from corral.worker.child.process import Child  # noqa: PLC0415 - see above

    used = {name for name in vars(Child) if not name.startswith("_")} - {"supervisor_pid"}
    assert used <= {name for name in vars(PlainChild) if not name.startswith("_")}
