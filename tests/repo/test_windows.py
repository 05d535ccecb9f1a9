"""A worker on Windows, as far as that can be tested without Windows: what it imports is there, and what it
cannot do is said. `make check` also reads these packages with the types of Windows (`mypy --platform win32`).
"""

from __future__ import annotations

import json
import subprocess
import sys

from corral.domain.hosts.capability import Capability, Requirements, judge, lacks
from repo.sources import modules

PACKAGES = ("worker", "client", "cli", "files", "functions", "instance", "domain", "wire", "recipes")
# The shim and what belongs to it; `worker/child/system.py` takes `plain_process.py` instead.
NOT_THERE = {f"corral.worker.child.{name}" for name in ("process", "shim", "strays", "view")}

# Everything is imported once as it is, so that the standard library and others are loaded as this system has
# them; then Corral once more, without what Windows does not have.
PROBE = """
import importlib, json, os, select, signal, socket, sys, types

names = sys.argv[1:]
for name in names:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.partition(".")[0] == "corral"]:
    del sys.modules[name]
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
missing = {
    os: '''fork forkpty killpg getpgid getpgrp setpgid setsid getsid getuid geteuid getgid getegid chown
        lchown fchown fchmod statvfs sync fdatasync pread preadv pwrite mkfifo mknod sched_getaffinity wait3
        wait4 WNOHANG uname fwalk sendfile posix_fadvise pidfd_open memfd_create getloadavg openpty nice
        O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_CLOEXEC O_PATH O_NOCTTY O_SYNC O_DSYNC''',
    signal: '''SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGCHLD SIGSTOP SIGCONT SIGALRM SIGPIPE SIG_SETMASK
        pthread_kill pthread_sigmask alarm setitimer''',
    select: "poll epoll POLLIN EPOLLIN",
    socket: "AF_UNIX",
}
for module, words in missing.items():
    for word in words.split():
        if hasattr(module, word):
            delattr(module, word)
sys.platform = "win32"
failed = {}
for name in names:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
print(json.dumps(failed))
"""


def test_all_that_a_windows_host_needs_can_be_imported_without_what_windows_lacks() -> None:
    """FL-D09: nothing that a worker imports fails where there is no fork, no flock and no Unix socket."""
    names = [m.name for m in modules() if m.name.startswith(tuple(f"corral.{p}" for p in PACKAGES))]

    done = subprocess.run([sys.executable, "-c", PROBE, *names], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout)
    assert {name: why for name, why in failed.items() if name not in NOT_THERE} == {}
    assert set(failed) == NOT_THERE


def test_no_function_is_placed_on_windows() -> None:
    host = Capability("box", "windows", "x86_64")

    found = judge(Requirements(kind="service"), host, host="box").shortfalls

    assert found == ("is a function; a host with Windows cannot run any",)
    assert judge(Requirements(kind="command"), host, host="box").eligible
    assert "functions" in lacks("windows")
    assert lacks("linux") == ()
