"""Keys that the kernel keeps: a run has a keyring of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral.worker.child import view
from corral.worker.host.isolation import try_it

_JOIN = 1
# By machine: add_key, request_key and keyctl.
_NUMBERS = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}

# Looks for keys by their names, and prints what is in those that it finds.
FIND = """
import ctypes, sys
libc = ctypes.CDLL(None)
for name in sys.argv[3:]:
    key = libc.syscall(int(sys.argv[1]), b"user", name.encode(), None, 0)
    text = ctypes.create_string_buffer(100)
    if key >= 0 and libc.syscall(int(sys.argv[2]), 11, key, text, 100, 0) > 0:
        print(text.value.decode())
"""
# Covers a folder, as a run is covered, and goes on as a program that looks for keys.
CONFINED = (
    "import os, sys; sys.path.append(sys.argv[1]); import view; "
    "view.enter(([sys.argv[2]], [], False)); os.execv(sys.executable, [sys.executable, *sys.argv[3:]])"
)


def numbers() -> tuple[int, int, int]:
    found = _NUMBERS.get(os.uname().machine) if sys.platform == "linux" else None
    if found is None or try_it() is not None:
        pytest.skip("this machine has no namespaces, or numbers its calls in another way")
    return found


def in_a_session_with_a_key(name: str, work: list[str]) -> str:
    """What a command prints whose session has a key by this name, as that of a user with a ticket."""
    add, _, control = numbers()
    code = (
        "import ctypes, os, sys; libc = ctypes.CDLL(None); "
        f"libc.syscall({control}, {_JOIN}, None) >= 0 or sys.exit('no keys here'); "
        f"libc.syscall({add}, b'user', b'{name}', b'a ticket', 8, -3) >= 0 or sys.exit('no keys here'); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *work], capture_output=True, text=True, timeout=60, check=False
    )
    if "no keys here" in done.stderr:
        pytest.skip("this machine keeps no keys")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_has_no_key_of_the_session_that_its_worker_was_started_in(tmp_path: Path) -> None:
    """ATK4-08: it read the tickets of whoever started the worker, and left keys for other projects' runs."""
    _, request, control = numbers()
    look = ["-c", FIND, str(request), str(control), "corral-test-ticket"]

    plainly = in_a_session_with_a_key("corral-test-ticket", [sys.executable, *look])
    folder = os.path.dirname(view.__file__)
    confined = [sys.executable, "-I", "-S", "-c", CONFINED, folder, str(tmp_path), *look]
    as_a_run = in_a_session_with_a_key("corral-test-ticket", confined)

    assert plainly == "a ticket\n"
    assert as_a_run == ""


def test_the_numbers_of_the_calls_are_those_of_this_machine() -> None:
    """ATK4-08: a wrong one would be another call, which might say that all is well."""
    _, _, control = numbers()
    assert view.KEYCTL[os.uname().machine] == control
    # KEYCTL_GET_KEYRING_ID of the session's own keyring.
    assert ctypes.CDLL(None).syscall(control, 0, -3, 0) != 0
