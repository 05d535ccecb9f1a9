"""STO-01: what a host cannot do is no fault of the run that meets it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_cluster import LocalCluster, local_cluster, python
from support.waiting import eventually

from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.wire.hosts import HostView
from corral.wire.runs import RunView

RUNS = 30


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "corral-test", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a small tmpfs here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=False)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "home", lease_s=10.0) as made:
        yield made


def fill(disk: Path) -> Path:
    """Leave not a byte of it."""
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return disk / "filler"


def host(corral: Corral, name: str) -> HostView:
    return next(one for one in corral.hosts.all() if one.name == name)


def test_a_host_with_a_full_disk_loses_no_run_and_comes_back_when_there_is_room(
    cluster: LocalCluster, small_disk: Path
) -> None:
    """STO-01: all end well, none is charged, the host says why, and comes back by itself."""
    corral = cluster.client()
    cluster.other_worker(small_disk, "full", slots=4)
    eventually(lambda: host(corral, "full").alive, "the small host to come")
    filler = fill(small_disk)
    corral.runs.submit([python("pass")] * RUNS)
    aside = eventually(lambda: host(corral, "full").set_aside_why, "the full host to be set aside")
    assert "No space left on device" in aside
    cluster.own_worker(slots=2)

    def ended() -> list[RunView]:
        return corral.runs.page(RunQuery(states=["succeeded"]), limit=100).items

    eventually(lambda: len(ended()) == RUNS, "all to end well")
    met = [corral.runs.get(run.id) for run in ended() if run.attempt > 1]
    assert met, "the full host has tried some"
    assert {tuple(run.retries_used.values()) for run in met} == {(0, 0, 0)}
    assert "full" in {rank.host for run in met for attempt in run.attempts for rank in attempt.ranks}

    filler.unlink()
    eventually(lambda: host(corral, "full").set_aside_until is None, "the host to come back by itself")
    last = corral.runs.submit([python("pass", resources={"hosts": ["full"]})]).ids[0]
    eventually(lambda: corral.runs.get(last).state == "succeeded", "it to take work again")
