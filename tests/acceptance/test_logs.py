"""What runs print."""

from __future__ import annotations

import os
import signal
import sys

from support.installation import Installation
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
