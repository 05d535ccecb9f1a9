"""Bad input as a user gives it: run files, folders and programs that misbehave. Nothing of it may get lost,
hang, or end in a traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.installation import CORRAL, Completed, Installation, installed
from support.waiting import eventually


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installed(tmp_path_factory.mktemp("home")) as made:
        yield made


def refused(done: Completed, *words: str) -> None:
    """Exit 1 or 2, a message with these words and a hint, no traceback, nothing on stdout."""
    assert done.returncode in (1, 2), (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr, done.stderr
    if done.returncode == 1:
        assert done.stderr.startswith("error: "), done.stderr
        assert "\nhint: " in done.stderr, done.stderr


FAULTS = {
    # Unknown and mistyped keys, at each level, with the nearest name.
    "top": ('agrv = ["true"]', "agrv", "did you mean `argv`?"),
    "resources": ('argv = ["true"]\n[resources]\ngpu_s = 1', "resources.gpu_s", "did you mean `gpus`?"),
    "retries": ('argv = ["true"]\n[retries]\ncod = 1', "retries.cod", "did you mean `code`?"),
    "keep": ('argv = ["true"]\n[keep]\nlast = 1', "keep.last", "is not a known key"),
    "environment": (
        'argv = ["true"]\n[environment]\nrequirement = []',
        "environment.requirement",
        "did you mean `requirements`?",
    ),
    "input": ('argv = ["true"]\n[inputs.x]\npth = "a"', "inputs.x", "pth"),
    # Wrong types.
    "argv": ('argv = "true"', "argv", "list"),
    "argv of numbers": ("argv = [1, 2]", "argv[0]", "string"),
    "gpus": ('argv = ["true"]\n[resources]\ngpus = "two"', "resources.gpus", "integer"),
    "half a gpu": ('argv = ["true"]\n[resources]\ngpus = 0.5', "resources.gpus", "integer"),
    "size": ('argv = ["true"]\n[resources]\nmin_ram = "8 gigs"', "resources.min_ram", "24GiB"),
    "duration": ('argv = ["true"]\nwall_limit = "soon"', "wall_limit", "is not a duration"),
    "a date": ('argv = ["true"]\nname = 2026-01-01', "name", "string"),
    "a table": ('name = "x"\n[argv]\nx = 1', "argv", "list"),
    # Absurd sizes.
    "many gpus": ('argv = ["true"]\n[resources]\ngpus = 100000', "resources.gpus", "1024"),
    "much memory": ('argv = ["true"]\n[resources]\nmin_ram = "9999999PB"', "resources.min_ram", ""),
    "negative": ('argv = ["true"]\n[resources]\nmin_cores = -1', "resources.min_cores", "0"),
    "long time": ('argv = ["true"]\nwall_limit = "999999d"', "wall_limit", ""),
    "infinite": ('argv = ["true"]\nwall_limit = inf', "wall_limit", "finite"),
    "not a number": ('argv = ["true"]\n[params]\nlr = nan', "params.lr", "finite"),
    "long name": (f'argv = ["true"]\nname = "{"x" * 100}"', "name", "at most 64"),
    "seed": ('argv = ["true"]\nseeds = [99999999999999999999]', "seeds", "64 bits"),
    "seed twice": ('argv = ["true"]\nseeds = [1, 1]', "seeds", "twice"),
    "sweep": (
        'argv = ["true"]\n[sweep]\na = [' + "1," * 200 + "]\nb = [" + "1," * 200 + "]",
        "40000 runs",
        "at most 10000",
    ),
    # What makes no sense.
    "empty argv": ("argv = []", "argv", ""),
    "no argv": ('name = "x"', "argv", "required"),
    "hole": ('argv = ["echo", "{params.lr}"]', "params.lr", "does not have"),
    "reserved": ('argv = ["true"]\n[env]\nCORRAL_RUN_ID = "x"', "CORRAL_RUN_ID", "worker's"),
    "project": ('argv = ["true"]\nproject = "../x"', "project", "is not a name"),
    "nul": ('argv = ["a\\u0000b"]', "argv", "NUL"),
    "secret": ('argv = ["true"]\nsecrets = ["NOT_SET"]', "NOT_SET", "does not have"),
    "no such code": ('argv = ["true"]\ncode = "nowhere"', "code", "is not a folder"),
    "no such input": ('argv = ["true"]\n[inputs]\nx = "nowhere"', "inputs.x", "neither a file nor a folder"),
    "no such artifact": (
        'argv = ["true"]\n[inputs]\nx = {artifact = "a-bcdfghjkmnpq"}',
        "inputs.x",
        "does not have",
    ),
    "no such run": ('argv = ["true"]\n[inputs]\nx = {run = "r-bcdfghjkmnpq"}', "r-bcdfghjkmnpq", "no run"),
    # Not a run file at all.
    "syntax": ('argv = ["true"]\nname = "x\n', "is not valid TOML", "line 2"),
    "twice": ('argv = ["true"]\nargv = ["true"]\n', "is not valid TOML", "line 2"),
    "empty": ("", "argv", "required"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_faulty_run_file_is_refused_at_its_place(what: str, corral: Installation, tmp_path: Path) -> None:
    text, *words = FAULTS[what]
    path = tmp_path / "run.toml"
    path.write_text(text)

    refused(corral("submit", str(path)), *words)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe\x00a", "is not UTF-8"),
        (b"argv = " + b"[" * 100_000, "nested too deeply"),
        (b"#" * (5 << 20), "larger than"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "TOML"),
    ],
    ids=["not UTF-8", "deep", "5 MB", "a program"],
)
def test_a_file_that_is_no_run_file_is_refused(
    data: bytes, words: str, corral: Installation, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(data)

    refused(corral("submit", str(path)), words)


def test_a_run_file_that_is_a_folder_or_missing_is_refused(corral: Installation, tmp_path: Path) -> None:
    refused(corral("submit", str(tmp_path)), "cannot be read")
    refused(corral("submit", str(tmp_path / "none.toml")), "cannot be read")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "--"),
        ("run", "--", ""),
        ("run", "--env", "A", "--", "true"),
        ("run", "--set", "nonsense", "--", "true"),
        ("run", "--set", "resources.gpsu=1", "--", "true"),
        ("show", "r-bcdfghjkmnpq"),
        ("show", "../../etc/passwd"),
        ("show", "a\nb"),
        ("logs", ".."),
        ("cancel", "x" * 3000),
        ("requeue", "r-"),
        ("artifacts", "get", "a-bcdfghjkmnpq"),
        ("artifacts", "verify", "é"),
        ("hosts", "drain", "no/such"),
        ("tokens", "rm", "t-.."),
        ("secrets", "rm", "NOT_SET"),
        ("ls", "--label", "nonsense"),
        ("ls", "--state", "runing"),
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    arguments: tuple[str, ...], corral: Installation
) -> None:
    done = corral(*arguments)

    assert done.returncode in (1, 2), (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_debug_prints_the_traceback(corral: Installation) -> None:
    done = corral("--debug", "show", "r-bcdfghjkmnpq")

    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "NotFound" in done.stderr


def test_no_server_is_exit_3(tmp_path: Path) -> None:
    done = Installation(tmp_path)("ls")

    assert done.returncode == 3
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


LISTS = [
    ("ls",),
    ("ls", "--all"),
    ("artifacts", "ls"),
    ("hosts", "ls"),
    ("secrets", "ls"),
    ("tokens", "ls"),
    ("show", "latest"),
    ("events", "latest"),
    ("metrics", "latest"),
    ("why", "latest"),
    ("logs", "latest"),
    ("fsck",),
    ("status",),
]


@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_json_is_json_on_every_command_that_lists(arguments: tuple[str, ...], corral: Installation) -> None:
    corral.ok("run", "--", "echo", "one line")
    out = corral.ok(*arguments, "--json")

    try:
        json.loads(out)
    except ValueError:
        # Streams are lines of JSON, and no line when there is nothing.
        assert all(json.loads(line) for line in out.splitlines())


def test_a_reader_that_goes_away_is_no_error_to_show(corral: Installation) -> None:
    code = "for i in range(200_000): print('line', i)"
    corral.python(code, "--quiet", "--name", "long")
    for command in ("logs latest", "events latest", "schema", "ls", "--help"):
        piped = f"{CORRAL} {command} | head -n 1"
        done = subprocess.run(
            ["bash", "-c", piped], capture_output=True, text=True, env=corral.env, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout.count("\n") == 1


def _hostile(folder: Path) -> dict[str, Callable[[], object]]:
    return {
        "link to a file outside": lambda: (folder / "bad").symlink_to("/etc/passwd"),
        "link to a folder outside": lambda: (folder / "bad").symlink_to("/etc"),
        "link up": lambda: (folder / "bad").symlink_to("../.."),
        "link to nowhere": lambda: (folder / "bad").symlink_to("nowhere"),
        "link to itself": lambda: (folder / "bad").symlink_to("bad"),
        "fifo": lambda: os.mkfifo(folder / "bad"),
        "socket": lambda: _socket(folder / "bad"),
        "device": lambda: os.mknod(folder / "bad", 0o666 | 0o020000, os.makedev(1, 5)),
        "newline in the name": lambda: (folder / "ba\nd").write_text("x"),
        "name that is not UTF-8": lambda: Path(os.fsdecode(os.fsencode(folder) + b"/ba\xffd")).write_text(
            "x"
        ),
        "backslash in the name": lambda: (folder / "ba\\d").write_text("x"),
    }


def _socket(path: Path) -> None:
    code = f"import socket; socket.socket(socket.AF_UNIX).bind({path.name!r})"
    subprocess.run([sys.executable, "-c", code], cwd=path.parent, check=True)


HOSTILE = list(_hostile(Path()))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making devices and mounts needs root")


@pytest.mark.parametrize("what", [pytest.param(w, marks=needs_root) if w == "device" else w for w in HOSTILE])
def test_a_code_folder_with_such_an_entry_is_refused_by_name(
    what: str, corral: Installation, tmp_path: Path
) -> None:
    """FL-D47. Reading a device or a FIFO would never end."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text("print('started')")
    _hostile(code)[what]()

    done = corral("run", "--code", str(code), "--", sys.executable, "main.py")

    assert "Traceback" not in done.stderr
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "started" not in done.stdout
    assert "ba" in done.stderr


MAKE = {
    "link to a file outside": "(O / 'bad').symlink_to('/etc/passwd')",
    "link to a folder outside": "(O / 'bad').symlink_to('/etc')",
    "link to nowhere": "(O / 'bad').symlink_to('nowhere')",
    "fifo": "os.mkfifo(O / 'bad')",
    "device": "os.mknod(O / 'bad', 0o666 | 0o020000, os.makedev(1, 5))",
    "newline in the name": "(O / 'ba\\nd').write_text('x')",
    "name that is not UTF-8": "open(os.fsencode(O) + b'/ba\\xffd', 'w').close()",
    "the folder is a link": "O.rmdir(); O.symlink_to('/etc')",
    "the folder is a file": "O.rmdir(); O.write_text('bad')",
}
PRELUDE = "import os, pathlib, signal, sys, time\nO = pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'])\n"


@pytest.mark.parametrize("what", [pytest.param(w, marks=needs_root) if w == "device" else w for w in MAKE])
def test_an_output_folder_with_such_an_entry_fails_the_run_by_name(what: str, corral: Installation) -> None:
    done = corral.python(f"{PRELUDE}{MAKE[what]}\nprint('done')")

    assert done.stdout == "done\n"
    run = corral.show()
    assert (run["state"], run["artifact_id"]) == ("failed", None), run
    assert done.returncode == 1
    assert run["detail"]


NAMES = ["données.txt", "数据/模型.bin", "данные.csv", "🤖 robot.json", "a b'c\"d.txt", "‮rtl", "-rf", "é"]


def test_names_in_other_scripts_come_through_both_ways(corral: Installation, tmp_path: Path) -> None:
    code = tmp_path / "код"
    for name in NAMES:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    (code / "копия.py").write_text(
        f"{PRELUDE}import shutil\n"
        "shutil.copytree('.', O, dirs_exist_ok=True, ignore=shutil.ignore_patterns('*.py'))\n"
    )
    done = corral("run", "--code", str(code), "--", sys.executable, "копия.py")
    assert done.returncode == 0, done.stderr

    corral.ok("artifacts", "get", "latest", str(tmp_path / "got"))

    found = {str(p.relative_to(tmp_path / "got")) for p in (tmp_path / "got").rglob("*") if p.is_file()}
    assert found == set(NAMES)
    assert all((tmp_path / "got" / name).read_text() == name for name in NAMES)


def test_a_folder_of_twenty_thousand_files_goes_out_and_comes_back(
    corral: Installation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "code"
    for number in range(200):
        folder = code / f"d{number}"
        folder.mkdir(parents=True)
        for inner in range(100):
            (folder / f"f{inner}").write_text(f"{number} {inner}")
    began = time.monotonic()

    copy = f"{PRELUDE}import shutil\nshutil.copytree('.', O, dirs_exist_ok=True)"
    done = corral("run", "--code", str(code), "--", sys.executable, "-c", copy)

    assert done.returncode == 0, done.stderr
    listed = json.loads(corral.ok("artifacts", "ls", "--json", "-n", "1"))[0]
    assert listed["files"] == 20_000
    with capsys.disabled():
        print(f"\n20,000 files as code and as output: {time.monotonic() - began:.1f} s")


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
    eventually(lambda: not _alive(marker), "its process to be gone", within_s=10)


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
    eventually(lambda: not _alive(f"sleep(600) {marker}"), "what it forked to be gone", within_s=15)


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


def test_after_all_this_everything_checks(corral: Installation) -> None:
    """Runs last: every run has ended, and the store is whole."""
    eventually(lambda: json.loads(corral.ok("ls", "--state", "running", "--json")) == [], "runs to end")

    assert corral("fsck").returncode == 0
    log = (corral.home / "logs" / "server.log").read_text(errors="replace")
    assert "Traceback" not in log, log[-4000:]
