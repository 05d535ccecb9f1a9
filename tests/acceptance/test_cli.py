"""The installed `corral` as a user runs it, against a server and a worker of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.installation import CORRAL, Installation
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


def test_after_up_the_worker_is_there_at_once(tmp_path: Path) -> None:
    machine = Installation(tmp_path / "home")
    try:
        machine.ok("up", "--detach")

        assert "1 of 1 here" in machine.ok("status")
    finally:
        machine("down", "--timeout", "1")


def test_a_port_that_is_taken_is_one_clear_error(tmp_path: Path) -> None:
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
    shown = corral.ok("status")

    assert f"pid {corral.pid('server')}," in shown
    assert f"pid {corral.pid('worker')}," in shown
    assert "1 of 1 here" in shown


def test_stdout_holds_what_the_program_prints_and_nothing_else(corral: Installation) -> None:
    done = corral.python("import sys; print('hello'); print('aside', file=sys.stderr)")

    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "aside\n" in done.stderr


@pytest.mark.parametrize(
    ("code", "expected"),
    [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("", 0)],
)
def test_the_exit_code_is_the_programs(code: str, expected: int, corral: Installation) -> None:
    assert corral.python(code).returncode == expected


@pytest.mark.parametrize(("mode", "expected"), [(None, 127), (0o644, 126)])
def test_a_program_that_cannot_be_started_gives_the_code_of_a_shell(
    mode: int | None, expected: int, corral: Installation, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    if mode is not None:
        program.touch(mode)

    done = corral("run", "--", str(program))

    assert done.returncode == expected
    assert "cannot execute" in done.stderr
    assert "corral logs" not in done.stderr
    assert json.loads(corral.ok("show", "latest", "--json"))["exit_code"] == expected


def test_quiet_leaves_only_the_programs_output(corral: Installation) -> None:
    done = corral.python("print('x')", "--quiet")

    assert (done.stdout, done.stderr) == ("x\n", "")


def test_env_labels_and_overrides_reach_the_run(corral: Installation) -> None:
    done = corral.python(
        "import os; print(os.environ['A'])", "--env", "A=b=c", "--label", "team=x", "--set", "priority=5"
    )

    assert done.stdout == "b=c\n"
    newest = json.loads(corral.ok("ls", "--label", "team=x", "--json"))[0]
    assert (newest["priority"], newest["labels"]) == (5, {"team": "x"})


def test_code_is_shipped_without_what_is_ignored(corral: Installation, tmp_path: Path) -> None:
    (tmp_path / "say.py").write_text("import os; print(sorted(os.listdir('.')))")
    (tmp_path / "big.bin").write_bytes(b"x" * 1000)
    (tmp_path / ".gitignore").write_text("*.bin\n")

    done = corral("run", "--code", str(tmp_path), "--", sys.executable, "say.py")

    assert done.returncode == 0, done.stderr
    assert "say.py" in done.stdout
    assert "big.bin" not in done.stdout


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    (tmp_path / "data.txt").write_text("from the input")
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
        name = "sweep"
        argv = [{sys.executable!r}, "-c", "print('lr', '{{params.lr}}', 'seed', '{{seed}}')"]
        seeds = [0, 1]
        [inputs]
        data = "data.txt"
        [sweep]
        lr = [0.1, 0.2]
        """
    )
    return path


def test_a_dry_run_shows_spec_and_hosts_and_stores_nothing(corral: Installation, sweep: Path) -> None:
    before = corral.ok("ls", "--all", "--json")
    artifacts = corral.ok("artifacts", "ls", "--json")

    shown = json.loads(corral.ok("submit", str(sweep), "--dry-run", "--json", "--set", "params.x=3e-4"))

    assert [(run["params"]["lr"], run.get("seed")) for run in shown["runs"]] == [
        (0.1, 0),
        (0.1, 1),
        (0.2, 0),
        (0.2, 1),
    ]
    assert shown["runs"][0]["params"]["x"] == 3e-4
    assert [host["eligible"] for host in shown["hosts"]] == [True]
    assert corral.ok("ls", "--all", "--json") == before
    assert corral.ok("artifacts", "ls", "--json") == artifacts


def test_a_group_prints_all_ids_and_is_followed_to_its_end(corral: Installation, sweep: Path) -> None:
    done = corral("submit", str(sweep), "--follow", "--json")

    assert done.returncode == 0, done.stderr
    ids = json.loads(done.stdout)["ids"]
    assert len(ids) == 4
    assert {corral.state(run) for run in ids} == {"succeeded"}
    assert corral.ok("logs", ids[3]) == "lr 0.2 seed 1\n"
    group = json.loads(done.stdout)["group_id"]
    listed = corral.ok("ls", "--group", group).splitlines()
    assert [line.split()[0] for line in listed[1:]] == ids
    assert "lr=0.2" in listed[-1]


def test_what_a_run_leaves_can_be_read_in_every_way(corral: Installation, tmp_path: Path) -> None:
    """FL-C09."""
    code = (
        "import json, os, pathlib\n"
        "pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'], 'model.txt').write_text('weights')\n"
        "with open(os.environ['CORRAL_EVENTS'], 'a') as events:\n"
        "    for step in range(5):\n"
        "        events.write(json.dumps({'metrics': {'loss': 1 / (step + 1)}, 'step': step}) + '\\n')\n"
        "print('line one'); print('line two')\n"
    )
    done = corral.python(code)
    assert done.returncode == 0, done.stderr
    assert "artifact a-" in done.stderr

    run = json.loads(corral.ok("show", "latest", "--json"))
    assert corral.ok("logs", run["id"], "--tail", "1") == "line two\n"
    assert [json.loads(line)["text"] for line in corral.ok("logs", run["id"], "--json").splitlines()][:2] == [
        "line one",
        "line two",
    ]
    assert corral("logs", "-f", run["id"][:8]).stdout == "line one\nline two\n"
    assert "█" in corral.ok("metrics", run["id"])
    assert len(corral.ok("metrics", run["id"], "--json").splitlines()) == 5
    assert "succeeded" in corral.ok("show", run["id"])
    assert corral.ok("events", run["id"]).count("\n") >= 3
    assert corral.ok("why", run["id"])
    target = tmp_path / "got"
    said = corral.ok("artifacts", "get", run["id"], str(target))
    assert said == f"{target}/: 1 file, 7 B; every file matches its digest\n"
    assert (target / "model.txt").read_text() == "weights"
    assert "all match their digests" in corral.ok("artifacts", "verify", run["artifact_id"])
    assert "is pinned" in corral.ok("artifacts", "pin", run["artifact_id"])


def test_a_result_is_the_input_of_the_next_run(corral: Installation, tmp_path: Path) -> None:
    write = (
        "import os, pathlib; pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'], 'a.txt').write_text('passed on')"
    )
    assert corral.python(write, "--name", "first").returncode == 0
    first = json.loads(corral.ok("ls", "--name", "first", "--json"))[0]["id"]
    path = tmp_path / "run.toml"
    read = "import os, pathlib; print(pathlib.Path(os.environ['CORRAL_INPUT_DIR'], 'x', 'a.txt').read_text())"
    path.write_text(
        f'argv = {json.dumps([sys.executable, "-c", read])}\n[inputs]\nx = {{ run = "{first}" }}\n'
    )

    assert corral("submit", str(path), "--follow").stdout == "passed on\n"


def test_a_cancelled_run_ends_its_follower_with_143_and_can_be_requeued(corral: Installation) -> None:
    follower = corral.popen(
        "run", "--name", "slow", "--", sys.executable, "-c", "import time; time.sleep(300)"
    )
    eventually(lambda: '"running"' in corral("ls", "--name", "slow", "--json").stdout, "the run to start")
    run = json.loads(corral.ok("ls", "--name", "slow", "--json"))[0]["id"]

    assert run in corral.ok("cancel", run)

    follower.communicate(timeout=60)
    assert follower.returncode == 143
    again = corral.ok("requeue", run).strip()
    assert again != run
    corral.ok("cancel", again)


def test_ctrl_c_detaches_and_says_how_to_come_back(corral: Installation) -> None:
    follower = corral.popen(
        "run", "--name", "left", "--", sys.executable, "-c", "import time; time.sleep(300)"
    )
    eventually(lambda: '"running"' in corral("ls", "--name", "left", "--json").stdout, "the run to start")
    run = json.loads(corral.ok("ls", "--name", "left", "--json"))[0]["id"]

    follower.send_signal(signal.SIGINT)
    _, said = follower.communicate(timeout=30)

    assert follower.returncode == 130
    assert f"corral logs -f {run}" in said
    assert corral.state(run) == "running"
    corral.ok("cancel", run)


def test_a_follower_and_a_run_outlive_a_server_that_is_killed(corral: Installation) -> None:
    code = "import time\nprint('before', flush=True)\ntime.sleep(6)\nprint('after')"
    follower = corral.popen("run", "--name", "tough", "--", sys.executable, "-c", code)
    eventually(lambda: '"running"' in corral("ls", "--name", "tough", "--json").stdout, "the run to start")
    worker = corral.pid("worker")

    os.kill(corral.pid("server"), signal.SIGKILL)
    restarted = corral("up", "--detach")
    out, said = follower.communicate(timeout=90)

    assert restarted.returncode == 0, restarted.stderr
    assert f"the worker that was running goes on (pid {worker})" in restarted.stderr
    assert (follower.returncode, out) == (0, "before\nafter\n"), said


def test_a_secret_comes_from_stdin_and_is_hidden_in_the_output(corral: Installation) -> None:
    corral.ok("secrets", "set", "API_KEY", given="hunter2-hunter2\n")

    done = corral.python("import os; print(os.environ['API_KEY'])", "--secret", "API_KEY")

    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "API_KEY" in corral.ok("secrets", "ls")
    corral.ok("secrets", "rm", "API_KEY")
    assert "API_KEY" not in corral.ok("secrets", "ls")


def test_a_token_is_shown_once_and_worthless_after_it_is_revoked(corral: Installation) -> None:
    made = json.loads(corral.ok("tokens", "create", "ci", "--project", "default", "--json"))
    url = json.loads((corral.home / "server.json").read_text())["url"]

    def ls() -> subprocess.CompletedProcess[str]:
        env = {**corral.env, "CORRAL_URL": url, "CORRAL_TOKEN": made["token"]}
        return subprocess.run(
            [CORRAL, "ls"], capture_output=True, text=True, env=env, timeout=60, check=False
        )

    assert ls().returncode == 0
    corral.ok("tokens", "revoke", made["id"])
    refused = ls()
    assert refused.returncode == 1
    assert refused.stderr.startswith("error:")
    assert made["token"] not in corral.ok("tokens", "ls", "--json")


def test_a_drained_host_takes_nothing_until_it_resumes(corral: Installation) -> None:
    name = json.loads(corral.ok("hosts", "ls", "--json"))[0]["name"]
    assert "drains" in corral.ok("hosts", "drain", name)
    assert "takes runs again" in corral.ok("hosts", "resume", name)


@pytest.mark.parametrize("run", ["r-zzzzzzzzzzzz", "../tokens", "a\nb", "r-?x=1"])
def test_a_run_that_does_not_exist_is_a_clear_error(run: str, corral: Installation) -> None:
    done = corral("show", run)

    assert done.returncode == 1
    assert done.stderr.startswith("error:")
    assert "Traceback" not in done.stderr


def test_the_shell_completes_run_ids(corral: Installation) -> None:
    newest = json.loads(corral.ok("ls", "--json"))[0]["id"]
    env = {
        **corral.env,
        "_CORRAL_COMPLETE": "complete_bash",
        "COMP_WORDS": f"corral show {newest[:6]}",
        "COMP_CWORD": "2",
    }
    done = subprocess.run([CORRAL], capture_output=True, text=True, env=env, timeout=60, check=False)

    assert newest in done.stdout.split()


def test_piped_output_has_no_colours_and_a_closed_pipe_is_no_noise(corral: Installation) -> None:
    assert "\x1b" not in corral.ok("ls")
    env = {**corral.env, "PYTHONUNBUFFERED": "1"}
    script = f"{CORRAL} ls --all --json | head -c 1"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=env, timeout=60, check=False
    )

    assert (done.stdout, done.stderr) == ("[", "")


def test_fsck_finds_nothing_and_then_the_damaged_file(corral: Installation) -> None:
    assert "no problems" in corral.ok("fsck")
    write = (
        "import os, pathlib; pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'], 'f').write_text('to be damaged')"
    )
    assert corral.python(write).returncode == 0
    blob = next(path for path in (corral.home / "blobs").rglob("*") if _holds(path, b"to be damaged"))
    blob.chmod(0o644)
    blob.write_bytes(b"to be changed")

    done = corral("fsck")

    run_id = json.loads(corral.ok("ls", "--json"))[0]["id"]
    assert done.returncode == 1
    assert blob.name in done.stdout
    assert f"(run {run_id})" in done.stdout, "the harm is named as its owner knows it"
    assert "set aside as damaged" in corral("fsck").stdout, "the second look says what became of it"
    assert corral("artifacts", "verify", "latest").returncode == 1


def test_logs_mark_where_another_attempt_begins(corral: Installation) -> None:
    twice = "import os, sys; n = os.environ['CORRAL_ATTEMPT']; print('try', n); sys.exit(n == '1')"
    assert corral("run", "--set", "retries.code=1", "-q", "--", sys.executable, "-c", twice).returncode == 0

    done = corral("logs", "latest")

    assert done.stdout.split("\n")[:2] == ["try 1", "try 2"]
    assert "corral: attempt 2" in done.stderr


def test_options_after_the_program_are_the_program_s(corral: Installation) -> None:
    assert corral("run", "-q", "echo", "-l", "a", "--name", "b").stdout == "-l a --name b\n"


def test_a_dry_run_names_what_would_be_uploaded(corral: Installation, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "poem.txt").write_text("roses")
    (tmp_path / "run.toml").write_text('argv = ["true"]\ninputs.poems = "data"\n')

    said = corral.ok("submit", str(tmp_path / "run.toml"), "--dry-run")

    assert f"input poems: {tmp_path / 'data'} (1 file, 5 B)" in said


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


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
