"""Generated requests against every published route; they are in `openapi_cases`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_calls_of_operators_and_hosts_are_answered_as_documented() -> None:
    """FL-C01, MT-C36: never a server error, always as documented.

    By a pytest of its own: every process collects all tests, and to prepare these takes half a minute.
    """
    cases = Path(__file__).with_name("openapi_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]

    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

    assert done.returncode == 0, done.stdout
