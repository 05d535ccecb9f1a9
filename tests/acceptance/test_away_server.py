"""A server that goes away and comes back at another address: programs and followers wait for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.local_cluster import CLEAN, LocalCluster, local_cluster
from support.waiting import eventually

ROOT = str(Path(__file__).parents[2])

PROGRAM = """
import os, sys, time
import corral

app = corral.App("away")


@app.function(concurrency=8)
def waits(n, gate):
    while n and not os.path.exists(gate):
        time.sleep(0.02)
    return n


@app.function(concurrency=8)
def gives(gate):
    yield 0
    while not os.path.exists(gate):
        time.sleep(0.02)
    yield 1


@app.function()
def asks(gate):
    return waits.remote(5, gate)


if __name__ == "__main__":
    gate = sys.argv[1]
    call = waits.spawn(7, gate)
    nested = asks.spawn(gate)
    stream = gives.stream(gate)
    results = waits.map([0, 1, 2], gate=gate)
    print(next(results), next(stream), flush=True)
    print(list(results), list(stream), call.result(), nested.result(), flush=True)
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("away") / "home", lease_s=30.0) as made:
        made.own_worker(slots=40)
        yield made


@contextmanager
def started(stack: LocalCluster, folder: Path, *words: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A program of the user's, which finds the server in its home; its stderr goes to a file."""
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *words],
            env={**CLEAN, "CORRAL_HOME": str(stack.home), "PYTHONPATH": ROOT, **env},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(120)
        assert process.stdout is not None
        process.stdout.close()


def away_and_back(stack: LocalCluster, folder: Path, told: str) -> None:
    """Not before somebody has noticed."""
    before = stack.url
    stack.kill_server()
    eventually(lambda: told in (folder / "stderr").read_text(), "somebody to say that the server is away")
    stack.start_server()
    assert stack.url != before, "it listens elsewhere"


def test_a_program_waits_for_its_results_and_says_so_once(stack: LocalCluster, tmp_path: Path) -> None:
    """STO-02: `result`, `map` and `stream`, here and in a function that calls another."""
    (tmp_path / "away.py").write_text(PROGRAM)
    gate = tmp_path / "gate"

    with started(stack, tmp_path, "away.py", str(gate)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0 0\n", (tmp_path / "stderr").read_text()
        away_and_back(stack, tmp_path, "waiting for the server")
        gate.touch()

        assert process.stdout.readline() == "[1, 2] [1] 7 5\n", (tmp_path / "stderr").read_text()
        assert process.wait(30) == 0

    said = [
        line for line in (tmp_path / "stderr").read_text().splitlines() if "waiting for the server" in line
    ]
    assert len(said) == 1
    assert "for 10m at most" in said[0]


def test_the_patience_of_a_program_can_be_set(stack: LocalCluster, tmp_path: Path) -> None:
    """STO-02."""
    (tmp_path / "away.py").write_text(PROGRAM)

    with started(stack, tmp_path, "away.py", str(tmp_path / "gate"), CORRAL_PATIENCE_S="0.1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0 0\n"
        stack.kill_server()
        try:
            assert process.wait(60) == 1
        finally:
            (tmp_path / "gate").touch()
            stack.start_server()

    assert "ServerUnreachable" in (tmp_path / "stderr").read_text()


def test_a_follower_finds_the_server_again(stack: LocalCluster, tmp_path: Path) -> None:
    """STO-02: `run --follow`, and `logs -f` is the same."""
    code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('{0}'): time.sleep(0.02)"
    gate = tmp_path / "gate"
    words = ["-m", "corral", "run", "--", sys.executable, "-S", "-c", code.format(gate) + "\nprint('done')"]

    with started(stack, tmp_path, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n", (tmp_path / "stderr").read_text()
        away_and_back(stack, tmp_path, "trying again")
        gate.touch()

        assert process.stdout.read() == "done\n", (tmp_path / "stderr").read_text()
        assert process.wait(30) == 0
