"""Programs that misbehave: their runs end as they should, and server and worker live on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.installation import Installation
from support.waiting import eventually

PRELUDE = "import os, pathlib, signal, sys, time\nO = pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'])\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making devices and mounts needs root")


def test_a_line_without_end_is_cut_into_pieces_and_nothing_is_lost(
    corral: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys\nfor _ in range(64): sys.stdout.write('x' * (1 << 20))\nprint('END')"
    run = corral.detached(code)
    most = {"server": 0, "worker": 0}

    def ended() -> bool:
        for role in most:
            most[role] = max(most[role], corral.process(role).memory_info().rss)
        return corral.show(run)["state"] in ("succeeded", "failed")

    eventually(ended, "the run to end", within_s=120)

    assert corral.show(run)["state"] == "succeeded"
    text = corral.ok("logs", run)
    assert (text.count("x"), text[-4:]) == (64 << 20, "END\n")
    assert max(most.values()) < 600 << 20
    with capsys.disabled():
        print(f"\n64 MB in one line: {', '.join(f'{k} {v >> 20} MB' for k, v in most.items())}")


def test_binary_output_is_kept_readable(corral: Installation) -> None:
    code = "import sys, os\nsys.stdout.buffer.write(bytes(range(256)) * 20 + os.urandom(1000) + b'\\nEND\\n')"

    done = corral.python(code)

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("END\n")
    json.loads(corral.ok("show", "latest", "--json"))


def test_a_program_that_never_ends_is_cancelled(corral: Installation) -> None:
    run = corral.detached("import time\nprint('on', flush=True)\nwhile True: time.sleep(1)")
    eventually(lambda: corral.show(run)["state"] == "running", "it to run")

    corral.ok("cancel", run)

    eventually(lambda: corral.show(run)["state"] == "cancelled", "it to be cancelled")
    assert corral("logs", "-f", run).returncode == 143


def _alive(marker: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if marker in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_a_program_that_ignores_sigterm_is_killed(corral: Installation) -> None:
    marker = f"deaf-{os.getpid()}"
    run = corral.detached(
        f"import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"print({marker!r}, flush=True)\nwhile True: time.sleep(1)"
    )
    eventually(lambda: marker in corral("logs", run).stdout, "it to be deaf")

    corral.ok("cancel", run)

    eventually(lambda: corral.show(run)["state"] == "cancelled", "it to be cancelled")
    assert eventually(lambda: not _alive(marker), "its process to be gone", within_s=60)


def test_what_a_program_forked_away_ends_with_it(corral: Installation) -> None:
    marker = f"away-{os.getpid()}"
    code = (
        "import os, signal, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    if os.fork() == 0:\n"
        "        sleep = 'import time; time.sleep(600)'\n"
        f"        os.execv(sys.executable, [sys.executable, '-c', sleep, {marker!r}])\n"
        "    os._exit(0)\n"
        "time.sleep(0.5)\n"
    )

    done = corral.python(code, "--set", "grace=1")

    assert done.returncode == 0, done.stderr
    eventually(lambda: not _alive(f"sleep(600) {marker}"), "what it forked to be gone", within_s=60)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("/no/such/program",), None),
        (("no-such-program-anywhere",), None),
        (("/etc/passwd",), None),
        (("/tmp",), None),
        (("sh", "-c", "exit 42"), 42),
        (("sh", "-c", "kill -SEGV $$"), 128 + signal.SIGSEGV),
        (("sh", "-c", "exit 255"), 255),
    ],
    ids=lambda value: str(value),
)
def test_the_exit_code_says_how_it_ended(
    argv: tuple[str, ...], code: int | None, corral: Installation
) -> None:
    """As docs/reference/exit-codes.md has it; a program that cannot start fails the run with a reason."""
    done = corral("run", "--", *argv)

    assert done.returncode == code if code is not None else done.returncode in (1, 126, 127), done.stderr
    run = corral.show()
    assert run["state"] == "failed"
    if code is None:
        assert Path(argv[0]).name in str(run["detail"]), run["detail"]
    assert "Traceback" not in done.stderr


def test_a_wall_limit_ends_it_with_124(corral: Installation) -> None:
    done = corral.python("import time; time.sleep(60)", "--set", "wall_limit=1s", "--set", "grace=1")

    assert done.returncode == 124, done.stderr
    assert corral.show()["reason"] == "wall_limit"


@pytest.fixture(params=["worker", "."], ids=["the worker's disk", "the disk of both"])
def small_disk(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """A home with a small disk: the worker's own, or one that it shares with the server."""
    home = tmp_path_factory.mktemp("small")
    disk = home / request.param
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(disk)], check=True)
    machine = Installation(home)
    try:
        machine.ok("up", "--detach")
        yield machine
    finally:
        machine("down", "--timeout", "5")
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@needs_root
def test_a_program_that_fills_the_disk_fails_alone(small_disk: Installation) -> None:
    """The run fails with the reason; server and worker live on, and the next run works."""
    fill = (
        f"{PRELUDE}with open(O / 'big', 'wb') as file:\n"
        "    for _ in range(500): file.write(bytes(1 << 20)); file.flush()\n"
    )
    run = small_disk.ok("run", "--detach", "--", sys.executable, "-c", fill).strip()
    eventually(lambda: small_disk("show", run).returncode == 0, "the server to answer")
    eventually(lambda: small_disk.show(run)["state"] == "failed", "the run to fail", within_s=90)

    assert "No space left" in small_disk.ok("logs", run) + str(small_disk.show(run)["detail"])
    eventually(
        lambda: shutil.disk_usage(small_disk.home / "worker").free > 150 << 20, "its files to be removed"
    )
    again = small_disk("run", "--", "echo", "still alive")
    assert (again.returncode, again.stdout) == (0, "still alive\n"), again.stderr
    assert small_disk("fsck").returncode == 0
