"""What runs print."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.installation import CORRAL, Installation
from support.waiting import eventually


def test_stdout_holds_what_the_program_prints_and_nothing_else(corral: Installation) -> None:
    done = corral.python("import sys; print('hello'); print('aside', file=sys.stderr)")

    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "aside\n" in done.stderr


def test_quiet_leaves_only_the_programs_output(corral: Installation) -> None:
    done = corral.python("print('x')", "--quiet")

    assert (done.stdout, done.stderr) == ("x\n", "")


def test_logs_mark_where_another_attempt_begins(corral: Installation) -> None:
    twice = "import os, sys; n = os.environ['CORRAL_ATTEMPT']; print('try', n); sys.exit(n == '1')"
    assert corral("run", "--set", "retries.code=1", "-q", "--", sys.executable, "-c", twice).returncode == 0

    done = corral("logs", "latest")

    assert done.stdout.split("\n")[:2] == ["try 1", "try 2"]
    assert "corral: attempt 2" in done.stderr


def test_a_traceback_is_told_once_and_nobody_is_sent_to_read_it(corral: Installation) -> None:
    """NEW-25: it stands above, where the program wrote it."""
    done = corral.python("raise ValueError('so it goes')")

    assert done.returncode == 1
    assert done.stderr.count("ValueError: so it goes") == 1
    assert done.stderr.count("Traceback") == 1
    assert "the command ended with exit code 1" in done.stderr
    assert "Read its last lines" not in done.stderr


def test_who_did_not_see_the_output_is_told_the_last_words(corral: Installation) -> None:
    """NEW-25: nothing is kept back that was not shown."""
    corral.python("raise ValueError('so it goes')", "--quiet")

    done = corral("logs", "latest", "--follow", "--tail", "0")

    assert "ValueError: so it goes" in done.stderr
    assert "Read its last lines" in done.stderr


def test_a_run_that_cannot_start_says_why_while_it_is_followed(corral: Installation, tmp_path: Path) -> None:
    """NEW-08: with what the hosts lack, and again when that has changed."""
    asked = ("--name", "stuck", "--set", 'resources.hosts=["elsewhere"]')
    said = tmp_path / "said"
    with said.open("w") as file:
        follower = subprocess.Popen([CORRAL, "run", *asked, "--", "true"], stderr=file, env=corral.env)
    try:
        eventually(lambda: "no host of 1 can take it: " in said.read_text(), "the reason")
        assert "elsewhere" in said.read_text()
        run_id = said.read_text().split()[1]
        corral.ok("hold", run_id)
        eventually(lambda: "corral: held: " in said.read_text(), "the new reason")
        corral.ok("cancel", run_id)
        assert follower.wait(60) == 143
    finally:
        follower.kill()


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
