"""DEF-10: an idle `corral up` holds less than 150 MB (3.14: 165)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.installation import Installation
from support.waiting import eventually

# As bench/memory.py measures it, with a table of what holds how much.
# Python 3.14 itself takes some 7 MB more in each of the two.
LIMIT_BYTES = 150_000_000 if sys.version_info < (3, 14) else 165_000_000


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Installation]:
    """The installed program, not forked: what is forked shares its memory."""
    made = Installation(tmp_path)
    try:
        done = made.really("up", "--detach")
        assert done.returncode == 0, done.stderr
        eventually(lambda: "1 of 1 here" in made("status").stdout, "the worker to come")
        yield made
    finally:
        made.really("down", "--timeout", "5")


def _libraries(process: psutil.Process) -> str:
    return "\n".join(each.path for each in process.memory_maps())


def test_an_idle_corral_up_is_small(idle: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    """DEF-10: the largest library of an idle server was one that most servers never use."""
    used = {role: idle.process(role).memory_info().rss for role in ("server", "worker")}
    with capsys.disabled():
        print(f"\nidle: {', '.join(f'{role} {rss / 1e6:.0f} MB' for role, rss in used.items())}")

    assert sum(used.values()) < LIMIT_BYTES
    assert "cryptography" not in _libraries(idle.process("server"))

    # It comes with the first secret.
    done = idle("secrets", "set", "KEY", given="word")
    assert done.returncode == 0, done.stderr
    assert "cryptography" in _libraries(idle.process("server"))
