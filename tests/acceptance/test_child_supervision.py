"""Real processes, real signals: nothing that a run starts may outlive its lease."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil
import pytest
from support.waiting import eventually

from corral.worker.child import strays
from corral.worker.child.command import Command, Exit
from corral.worker.child.process import Child
from corral.worker.child.shim import PR_SET_CHILD_SUBREAPER, prctl

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="supervision of whole trees needs Linux")

PATH = {"PATH": "/usr/bin:/bin"}
SETSID_DAEMON = """
import os, sys, time
def daemon(env):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", "60"], env)
        os._exit(0)
    os.wait()
"""


@pytest.fixture
def others() -> frozenset[int]:
    """Children that this process had before: other tests share some."""
    return frozenset(process.pid for process in psutil.Process().children())


def children(others: frozenset[int]) -> list[psutil.Process]:
    return [process for process in psutil.Process().children() if process.pid not in others]


@pytest.fixture
def lease(tmp_path: Path) -> dict[str, str]:
    return {**PATH, "CORRAL_LEASE_ID": f"lease-{os.urandom(4).hex()}", "CORRAL_DATA_DIR": str(tmp_path)}


@pytest.fixture
def subreaper() -> Iterator[None]:
    assert strays.become_subreaper()
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0)


def stop(one: Child, *, grace_s: float) -> Exit | None:
    """Terminate, then kill after the grace."""
    one.terminate()
    if (found := one.wait(grace_s)) is not None:
        return found
    one.kill()
    return one.wait(10.0)


def start_python(code: str, cwd: Path, env: Mapping[str, str] = PATH) -> Child:
    return Child(Command((sys.executable, "-S", "-c", code), cwd, env))


def read_all(fd: int) -> str:
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    return b"".join(parts).decode()


def living(environment: Mapping[str, str]) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get("CORRAL_LEASE_ID") == environment["CORRAL_LEASE_ID"]:
                found.append(process.pid)
    return found


def sleepers_below(pid: int) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if process.name() == "sleep":
                found.append(process)
    return found


def wait_for_sleeper(pid: int) -> psutil.Process:
    return eventually(lambda: sleepers_below(pid), "it to sleep")[0]


def dead(process: psutil.Process) -> bool:
    """A zombie is dead; when its adopter collects it is no matter of ours."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ended(one: Child) -> Exit:
    result = one.wait(10)
    assert result is not None
    return result


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_an_exit_code_is_kept(code: int, tmp_path: Path) -> None:
    with start_python(f"import os; os._exit({code})", tmp_path) as one:
        result = ended(one)
    assert (result.code, result.signal, result.error) == (code, None, None)
    assert result.max_rss_bytes is not None
    assert result.max_rss_bytes > 1 << 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1, signal.SIGABRT])
def test_the_signal_that_ended_a_child_is_kept(number: signal.Signals, tmp_path: Path) -> None:
    with start_python(f"import os; os.kill(os.getpid(), {number:d})", tmp_path) as one:
        result = ended(one)
    assert (result.code, result.signal, result.error) == (None, number, None)


def test_output_and_errors_come_apart_and_end_with_the_child(tmp_path: Path) -> None:
    with start_python("import sys; print('out'); print('err', file=sys.stderr)", tmp_path) as one:
        assert (read_all(one.stdout), read_all(one.stderr)) == ("out\n", "err\n")


def test_a_child_gets_exactly_the_given_environment_and_directory(tmp_path: Path) -> None:
    env = {"PATH": "/bin", "SECRET": "s3cret\udcff", "EMPTY": ""}
    with Child(Command(("cat", "/proc/self/environ"), tmp_path, env)) as one:
        given = os.read(one.stdout, 65536)
    assert given == b"PATH=/bin\0SECRET=s3cret\xff\0EMPTY=\0"
    with Child(Command(("pwd",), tmp_path, PATH)) as one:
        assert read_all(one.stdout) == f"{tmp_path}\n"


def test_a_child_starts_with_no_blocked_or_ignored_signals_and_no_foreign_files(tmp_path: Path) -> None:
    with Child(Command(("grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"), tmp_path, PATH)) as one:
        masks = read_all(one.stdout).split()[1::2]
    # 32 and 33 are the C library's own; what was inherited of them cannot be changed through it.
    assert [int(mask, 16) & ~(0b11 << 31) for mask in masks] == [0, 0]
    with start_python("import os; print(sorted(os.listdir('/proc/self/fd')))", tmp_path) as one:
        # The fourth is the listing's own.
        assert read_all(one.stdout) == "['0', '1', '2', '3']\n"
    with Child(Command(("readlink", "/proc/self/fd/0"), tmp_path, PATH)) as one:
        assert read_all(one.stdout) == "/dev/null\n"


@pytest.mark.parametrize(
    ("argv", "cwd", "number", "text"),
    [
        (("no-such-program",), "", errno.ENOENT, "cannot execute 'no-such-program'"),
        (("./plain.txt",), "", errno.EACCES, "cannot execute './plain.txt'"),
        (("true",), "absent", errno.ENOENT, "cannot enter the working directory"),
        (("true",), "plain.txt", errno.ENOTDIR, "cannot enter the working directory"),
        (("true", "x" * (1 << 18)), "", errno.E2BIG, "cannot execute 'true'"),
        (("true", "a\0b"), "", None, "embedded null byte"),
    ],
)
def test_a_command_that_cannot_be_executed_says_why(
    argv: tuple[str, ...], cwd: str, number: int | None, text: str, tmp_path: Path
) -> None:
    (tmp_path / "plain.txt").write_text("not a program")
    with Child(Command(argv, tmp_path / cwd, PATH)) as one:
        result = ended(one)
    assert (result.code, result.signal, result.errno) == (None, None, number)
    assert text in (result.error or "")
    assert one.pid is None


def test_a_daemon_in_a_session_of_its_own_dies_with_the_child(tmp_path: Path) -> None:
    code = SETSID_DAEMON + "daemon({}); time.sleep(1); os._exit(3)"
    with start_python(code, tmp_path) as one:
        daemon = wait_for_sleeper(one.supervisor_pid)
        result = ended(one)
        assert dead(daemon)
    assert result.code == 3


def test_nothing_outlives_a_worker_that_is_killed(tmp_path: Path, lease: dict[str, str]) -> None:
    code = SETSID_DAEMON + "daemon({}); time.sleep(60)"
    worker = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, code, str(tmp_path)], stdout=subprocess.PIPE, env=lease
    )
    assert worker.stdout is not None
    supervisor = int(worker.stdout.readline())
    daemon = wait_for_sleeper(supervisor)
    tree = [psutil.Process(supervisor), *psutil.Process(supervisor).children(recursive=True)]
    assert len(tree) == 3

    worker.kill()
    worker.communicate()

    eventually(lambda: all(dead(process) for process in tree), "the tree to end", within_s=30)
    assert dead(daemon)


_DRIVER = """
import sys, time
from pathlib import Path
from corral.worker.child.command import Command; from corral.worker.child.process import Child
one = Child(Command((sys.executable, "-S", "-c", sys.argv[1]), Path(sys.argv[2]), {}))
print(one.supervisor_pid, flush=True)
time.sleep(60)
"""


@pytest.mark.usefixtures("subreaper")
def test_a_lost_supervisor_is_noticed_and_leaves_nothing(tmp_path: Path, others: frozenset[int]) -> None:
    code = SETSID_DAEMON + "daemon({}); time.sleep(60)"
    with start_python(code, tmp_path) as one:
        daemon = wait_for_sleeper(one.supervisor_pid)
        os.kill(one.supervisor_pid, signal.SIGKILL)
        result = ended(one)
        assert dead(daemon)
    assert (result.code, result.signal) == (None, signal.SIGKILL)
    assert "supervisor" in (result.error or "")
    assert children(others) == []


def test_without_a_subreaper_a_lost_supervisors_processes_are_found_by_lease(
    tmp_path: Path, lease: dict[str, str]
) -> None:
    code = SETSID_DAEMON + "daemon(dict(os.environ)); time.sleep(60)"
    with start_python(code, tmp_path, lease) as one:
        daemon = wait_for_sleeper(one.supervisor_pid)
        os.kill(one.supervisor_pid, signal.SIGKILL)
        result = ended(one)
        eventually(lambda: dead(daemon), "the daemon to end")
    assert result.signal == signal.SIGKILL
    assert living(lease) == []


def test_a_child_may_end_in_its_own_way_within_the_grace(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5));"
        "print('up', flush=True); time.sleep(60)"
    )
    with start_python(code, tmp_path) as one:
        assert os.read(one.stdout, 10) == b"up\n"
        result = stop(one, grace_s=10)
    assert result is not None
    assert (result.code, result.signal) == (5, None)


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('up', flush=True); time.sleep(60)"
    )
    with start_python(code, tmp_path) as one:
        assert os.read(one.stdout, 10) == b"up\n"
        began = time.monotonic()
        result = stop(one, grace_s=0.3)
        took_s = time.monotonic() - began
    assert result is not None
    assert result.signal == signal.SIGKILL
    assert took_s >= 0.3


def test_a_stopped_child_still_hears_sigterm(tmp_path: Path) -> None:
    with Child(Command(("sleep", "60"), tmp_path, PATH)) as one:
        eventually(lambda: one.pid is not None, "its pid")
        os.kill(one.pid or 0, signal.SIGSTOP)
        result = stop(one, grace_s=5)
    assert result is not None
    assert result.signal == signal.SIGTERM


def test_signals_to_the_supervisor_itself_change_nothing(tmp_path: Path) -> None:
    with start_python("import time; time.sleep(0.3)", tmp_path) as one:
        eventually(lambda: one.pid is not None, "its pid")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(one.supervisor_pid, number)
        assert ended(one).code == 0


@pytest.mark.parametrize("escape", ["pass", "os.setsid()"])
def test_a_chain_of_forks_is_caught(escape: str, tmp_path: Path, lease: dict[str, str]) -> None:
    code = f"""
import os, time
if os.fork():
    time.sleep(60)
for link in range(20000):
    if os.fork():
        os._exit(0)
    {escape}
    if link == 100:
        os.write(1, b"far")
open("escaped", "w").close()
"""
    with start_python(code, tmp_path, lease) as one:
        assert os.read(one.stdout, 10) == b"far"
        one.kill()
        result = ended(one)
    assert result.signal == signal.SIGKILL
    assert living(lease) == []
    assert not (tmp_path / "escaped").exists()


def test_a_bounded_fork_bomb_is_killed_whole(tmp_path: Path, lease: dict[str, str]) -> None:
    code = "import os, time\nfor _ in range(7):\n os.fork()\n os.setpgid(0, 0)\ntime.sleep(60)"
    # The leader of a session may not change its group, so the first process is a shell.
    script = ("sh", "-c", '"$0" -S -c "$1" & wait', sys.executable, code)
    with Child(Command(script, tmp_path, lease)) as one:
        eventually(lambda: len(living(lease)) == 129, "all of them to live")
        one.kill()
        assert ended(one).signal == signal.SIGKILL
        assert living(lease) == []


def test_closing_kills_what_is_left(tmp_path: Path, lease: dict[str, str]) -> None:
    one = Child(Command(("sleep", "60"), tmp_path, lease))
    eventually(lambda: len(living(lease)) == 1, "all but one to end")
    one.close()
    one.close()
    assert living(lease) == []
    assert ended(one).signal == signal.SIGKILL


def test_secrets_show_on_no_command_line(tmp_path: Path) -> None:
    with start_python("import time; time.sleep(60)", tmp_path, {**PATH, "TOKEN": "hunter2-hunter2"}) as one:
        eventually(lambda: one.pid is not None, "its pid")
        lines = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                lines.append(file.read_bytes())
    assert lines
    assert not any(b"hunter2" in line for line in lines)
    assert "hunter2" not in repr(Command(("true",), tmp_path, {"TOKEN": "hunter2"}))


def test_a_sweep_spares_kept_leases_and_other_data_directories(tmp_path: Path) -> None:
    def sleeper(lease_id: str, data_dir: str) -> subprocess.Popen[bytes]:
        env = {"CORRAL_LEASE_ID": lease_id, "CORRAL_DATA_DIR": str(tmp_path / data_dir)}
        return subprocess.Popen(["/bin/sleep", "60"], env=env)

    left, kept, other = sleeper("old", "mine"), sleeper("new", "mine"), sleeper("old", "theirs")
    try:
        assert strays.sweep({"new"}, data_dir=tmp_path / "mine") == [left.pid]
        assert (left.wait(5), kept.poll(), other.poll()) == (-signal.SIGKILL, None, None)
        assert strays.sweep({"new"}, data_dir=tmp_path / "mine") == []
        assert strays.kill_lease("old", data_dir=tmp_path / "theirs") == [other.pid]
    finally:
        for process in (left, kept, other):
            process.kill()
            process.wait()


def test_a_sweep_never_kills_the_process_that_runs_it(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from corral.worker.child import strays;"
        f"print(strays.sweep((), data_dir=Path({str(tmp_path)!r})))"
    )
    env = {"CORRAL_LEASE_ID": "mine", "CORRAL_DATA_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.usefixtures("subreaper")
def test_reaping_orphans_takes_no_exit_status_from_subprocess(tmp_path: Path, others: frozenset[int]) -> None:
    mine = subprocess.Popen(["/bin/sh", "-c", "exit 3"])
    orphaning = "import os\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: os._exit(0)\n os._exit(0)"
    subprocess.run([sys.executable, "-S", "-c", orphaning], check=True, start_new_session=True)
    with Child(Command(("true",), tmp_path, PATH)) as one:
        eventually(lambda: {p.status() for p in children(others)} == {"zombie"}, "zombies")
        orphans = strays.reap_orphans()
        assert ended(one).code == 0
    assert orphans
    assert mine.pid not in orphans
    assert mine.wait() == 3
    assert children(others) == []


def test_many_children_leak_neither_files_nor_zombies(tmp_path: Path, others: frozenset[int]) -> None:
    took_ms = []
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        began = time.perf_counter()
        with Child(Command(("true",), tmp_path, PATH)) as one:
            assert ended(one).code == 0
        took_ms.append((time.perf_counter() - began) * 1000)
    assert len(os.listdir("/proc/self/fd")) == files
    assert children(others) == []
    print(f"start to end of `true`: median {median(took_ms):.1f} ms, worst {max(took_ms):.1f} ms")
