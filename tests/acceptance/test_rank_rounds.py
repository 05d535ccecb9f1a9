"""Replicas of one run that meet in the control plane's store, through a server that is killed in a round."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from support.local_cluster import LocalCluster, local_cluster, problems, wait_final
from support.waiting import eventually

import corral as package

# 1.2 MB: payloads and shards are larger than what comes with its name.
SIZE, ROUNDS, BROKEN = 300_000, 4, 3
REPLICA = """
import sys
from pathlib import Path

sys.path.insert(0, ROOT)
import numpy as np

from corral.diloco import OuterLoop

size, rounds, broken = SIZES


def train(store, replica, run, reached=lambda point: None):
    random = np.random.default_rng(replica)
    params = {"w": np.zeros(size, np.float32)}
    truth = np.arange(size, dtype=np.float32) / size
    loop = OuterLoop(
        params, store=store, run=run, replica=replica, inner_steps=3, quorum=2, grace="1h", compress="int8",
        poll_s=0.05, reached=reached,
    )
    while loop.rounds[0] < rounds:
        params["w"] -= 0.1 * (params["w"] - truth + random.normal(size=size).astype(np.float32) / 10)
        for report in loop.step(tokens=7 + replica):
            print(f"round {report.round}: {report.fate}, {len(report.members)} members", flush=True)
    return params["w"]
"""
IN_THE_RUN = """
import time
from corral import rank

folder, me, seen = Path(FOLDER), rank.rank(), []


def reached(point):
    # The server dies when one payload is there and the other is not.
    if point == ("after payload" if me == 0 else "before payload"):
        seen.append(point)
        if len(seen) == broken:
            (folder / f"here-{me}").touch()
            while not (folder / "go").exists():
                time.sleep(0.02)
            (folder / f"goes-on-{me}").touch()


np.save(folder / f"{me}.npy", train("corral", me, "run", reached))
"""
REPLICA = REPLICA.replace("ROOT", repr(str(Path(package.__file__).parents[1])))
REPLICA = REPLICA.replace("SIZES", f"{SIZE}, {ROUNDS}, {BROKEN}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A server that keeps its port, and a host with room for both."""
    with local_cluster(tmp_path / "server", lease_s=3.0) as made:
        made.port = urlsplit(made.url).port or 0
        made.own_worker(slots=2)
        hosts = made.client().hosts
        eventually(lambda: any(host.capability for host in hosts.all()), "the host to be here")
        yield made


def alone(folder: Path) -> np.ndarray:
    """The same replicas in a folder, where nothing is killed."""
    made: dict[str, object] = {}
    exec(REPLICA, made)
    found: dict[int, np.ndarray] = {}

    def work(replica: int) -> None:
        found[replica] = made["train"](str(folder), replica, "run")  # type: ignore[operator]

    threads = [threading.Thread(target=work, args=(replica,)) for replica in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(found[0], found[1])
    return found[0]


def test_two_replicas_of_a_run_end_with_the_same_bits_though_the_server_was_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """DL-D09, DL-D34: in the middle of a round, by SIGKILL; as if nothing had been."""
    program = tmp_path / "replica.py"
    program.write_text(REPLICA + IN_THE_RUN.replace("FOLDER", repr(str(tmp_path))))
    command = [sys.executable, "-m", "corral", "run", "--detach", "--replicas", "2", "--"]
    done = subprocess.run(
        [*command, sys.executable, str(program)],
        env=cluster.env(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.split()[0]
    here, on = ([tmp_path / f"{word}-{rank}" for rank in range(2)] for word in ("here", "goes-on"))
    eventually(lambda: all(path.exists() for path in here), "both to be in the middle of a round")
    cluster.kill_server()
    (tmp_path / "go").touch()
    eventually(lambda: all(path.exists() for path in on), "both to go on without a server")
    corral = cluster.start_server()
    run = wait_final(corral, run_id)
    told = [[line.text for line in corral.runs.iter_logs(run_id, rank=rank)] for rank in range(2)]
    assert run.state == "succeeded", (run.detail, told)
    assert len(run.attempts) == 1
    rounds = [f"round {number}: committed, 2 members" for number in range(1, ROUNDS + 1)]
    assert told == [rounds] * 2
    found = [np.load(tmp_path / f"{rank}.npy") for rank in range(2)]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], alone(tmp_path / "folder"))
    assert problems(corral) == []
