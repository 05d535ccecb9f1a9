"""The contract of executors, on a real Slurm; what only Slurm has is in test_slurm_jobs.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import slurm_cluster
from support.executor_contract import ExecutorContract
from support.slurm_harness import SlurmHarness


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SlurmHarness]:
    made = SlurmHarness(slurm_cluster.slurm_cluster(), tmp_path)
    yield made
    made.clean()


class TestSlurmExecutor(ExecutorContract):
    """The contract."""
