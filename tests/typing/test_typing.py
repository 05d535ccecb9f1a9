"""Decorated functions keep their signatures: mypy says so, line by line."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

HERE = Path(__file__).parent
_SAID = re.compile(r"^[^:]+:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)
_EXPECTED = re.compile(r"# error: ([a-z-]+)$")


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What strict mypy says of each file, as a user's program that has Corral installed."""
    folder = tmp_path_factory.mktemp("typing")
    said = {}
    for name in ("right.py", "wrong.py"):
        (folder / name).write_bytes((HERE / name).read_bytes())
        argv = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", "cache", name]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        said[name] = done.stdout
    return said


def test_right_uses_pass(complaints: dict[str, str]) -> None:
    assert complaints["right.py"].startswith("Success"), complaints["right.py"]


def test_each_wrong_use_is_refused_and_nothing_else(complaints: dict[str, str]) -> None:
    """RF-D60: also a call that is not awaited, and an id of another kind."""
    lines = (HERE / "wrong.py").read_text().splitlines()
    expected = {
        (number, found[1]) for number, line in enumerate(lines, start=1) if (found := _EXPECTED.search(line))
    }

    said = {(int(line), code) for line, code in _SAID.findall(complaints["wrong.py"])}

    assert said == expected, complaints["wrong.py"]


def test_the_package_says_that_it_is_typed() -> None:
    assert files("corral").joinpath("py.typed").is_file()
