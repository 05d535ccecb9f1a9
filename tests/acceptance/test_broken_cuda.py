"""promises.md: CUDA that is broken does not count as CUDA; a driver may answer everything and run nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from support.watched_worker import WatchedWorker

from acceptance.driver.cards import Card, Cards
from corral.domain.hosts.capability import Requirements, judge
from corral.worker.host.gpus import CUDA, TRY_AGAIN_S, GpuProbe, GpuSurvey
from corral.worker.host.probe import HostProbe

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

NVML = [sys.executable, "-P", "-m", "corral.worker.host.nvml"]


class Driver:
    """Two GPUs, as both of NVIDIA's libraries tell of them, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.time = 0.0
        self.cards = Cards(folder / "driver")
        self.cards.put(*(Card("H200", f"GPU-{uuid.UUID(bytes=bytes([n] * 16))}") for n in (0xAA, 0xBB)))
        self.library = folder / "driver" / "libcuda.so.1"
        source = Path(__file__).parent / "driver" / "cuda.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(self.library), str(source)], check=True)
        self._file = folder / "cuda"
        self.env = {**os.environ, **self.cards.environment, "FAKE_CUDA": str(self._file)}
        # Given by its path: LD_LIBRARY_PATH of this process is what it is.
        nvml = ["env", *(f"{name}={value}" for name, value in self.cards.environment.items()), *NVML]
        self.probe = GpuProbe(nvml, cuda=[*CUDA, str(self.library)], now=lambda: self.time)

    def says(self, text: str) -> GpuSurvey:
        self._file.write_text(text)
        return self.probe.survey(self.env)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def indexes(found: GpuSurvey) -> list[int] | None:
    return None if found.gpus is None else [state.gpu.index for state in found.gpus]


def test_where_cuda_does_not_start_no_gpu_counts_and_why_says_so(driver: Driver, tmp_path: Path) -> None:
    """FL-C06."""
    found = driver.says("init 803\n")

    assert (found.gpus, found.note) == (None, "CUDA does not start: cuInit fails with 803 (as the file says)")
    have = HostProbe(tmp_path, [], driver.env, gpus=driver.probe).capability()
    (reason,) = judge(Requirements(gpus=1), have, host="box").shortfalls
    assert reason.endswith("which the host has is unknown: " + str(found.note))


def test_a_library_that_is_missing_is_said_by_name(driver: Driver) -> None:
    driver.library.unlink()
    found = driver.says("")
    assert found.gpus is None
    assert "libcuda.so.1" in str(found.note)


def test_one_broken_gpu_is_left_out_and_comes_back_when_it_is_tried_again(driver: Driver) -> None:
    found = driver.says("aa 0\nbb 719\n")
    assert indexes(found) == [0]
    assert found.note == "GPU 1 is left out: cuDevicePrimaryCtxRetain fails with 719 (as the file says)"

    assert indexes(driver.says("aa 0\nbb 0\n")) == [0], "it is not tried at every look"
    driver.time += TRY_AGAIN_S
    assert indexes(driver.says("aa 0\nbb 0\n")) == [0, 1]
    driver.time += TRY_AGAIN_S
    assert indexes(driver.says("init 999\n")) == [0, 1], "what is well is tried once"


def test_a_gpu_that_cuda_does_not_see_is_left_out_and_one_that_is_in_use_is_not(driver: Driver) -> None:
    found = driver.says("bb 2\n")
    assert indexes(found) == [1]
    assert found.note == "GPU 0 is left out: CUDA does not see it"


def test_a_worker_tries_cuda_before_it_offers_gpus(driver: Driver, tmp_path: Path) -> None:
    """With real processes: without the check it would offer both."""
    driver.says("init 803\n")
    env = {**driver.cards.environment, "CORRAL_GPU_CHECK": "on", "FAKE_CUDA": driver.env["FAKE_CUDA"]}
    fleet = WatchedWorker(tmp_path / "home", **env)
    try:
        fleet.start_server()
        fleet.start_worker()
        assert fleet.final(fleet.submit("true")).state == "succeeded"
        (host,) = fleet.corral.hosts.all()
        assert host.capability is not None
        assert host.capability.gpus is None
        assert "cuInit fails with 803" in (host.capability.gpu_note or "")
    finally:
        fleet.close()
