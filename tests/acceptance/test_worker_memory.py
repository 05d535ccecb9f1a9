"""Real workers fit beside the server: ten of them and a hundred runs within 1 GiB (FL-D14)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psutil
from support.local_cluster import LocalCluster
from support.waiting import eventually

from corral.client.runs import RunQuery
from corral.wire.spec.run_file import RunSpec

# Of a machine with 1 GiB, what is left of it beside its system.
MOST_BYTES = 800 << 20
RUNS, WORKERS = 100, 10


def held(pids: list[int]) -> int:
    """What the processes hold, with their shared pages counted once."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in pids)


def test_a_hundred_runs_and_ten_workers_stay_within_the_memory_of_a_small_machine(tmp_path: Path) -> None:
    settings = {"CORRAL_LEASE_S": "60"}
    with closing(LocalCluster(tmp_path / "home", settings, own_interpreters=True)) as made:
        corral = made.start_server()
        ids = corral.runs.submit([RunSpec(argv=["true"])] * RUNS).ids
        workers = [made.own_worker(slots=1)]
        for number in range(1, WORKERS):
            workers.append(made.other_worker(tmp_path / f"w{number}", f"w{number}", slots=1))
        assert made.server is not None
        pids = [made.server.pid, *(worker.pid for worker in workers)]
        most = 0

        def ended() -> bool:
            nonlocal most
            most = max(most, held(pids))
            done = corral.runs.page(RunQuery(states=("succeeded",)), limit=RUNS).items
            return len(done) == len(ids)

        eventually(ended, "all of them to end", within_s=160)
        assert len([host for host in corral.hosts.page().items if host.alive]) == WORKERS
        assert most <= MOST_BYTES, f"{most / 2**20:.0f} MiB"
        print(f"at most {most / 2**20:.0f} MiB")
