"""What every test can rely on."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from support import forked, postgres, ray_cluster, seaweed, slurm_cluster
from support.scheduling import FileScheduling, sort_longest_first
from support.slowest_files import pytest_runtest_logreport, pytest_terminal_summary

__all__ = ["pytest_runtest_logreport", "pytest_terminal_summary"]

# Drawn once for all processes of a session, printed at its end, and given again to replay it.
for _name in ("CORRAL_CHAOS_SEED", "CORRAL_DILOCO_SEED", "CORRAL_FLEET_SEED", "CORRAL_MODEL_SEED"):
    os.environ.setdefault(_name, str(random.SystemRandom().randrange(1_000_000)))

# Two processes with two threads each fight for two cores, and are far slower; set before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine may take any time for an example.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

# A shell that runs this in the background has it ignore Ctrl-C, and every child would inherit that.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)


# A million objects come with the modules and tests, and stay: the collector would look through them again
# and again, and free none.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    return FileScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sort_longest_first(items)


@pytest.fixture(scope="session")
def smollm2_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the model is converted, which takes half a minute."""
    folder = tmp_path_factory.mktemp("smollm2")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session", autouse=True)
def _end_what_the_process_shares() -> Iterator[None]:
    yield
    forked.stop()
    postgres.stop()
    seaweed.stop()
    slurm_cluster.stop()
    ray_cluster.stop_shared_ray()
