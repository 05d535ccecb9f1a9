"""What every test can rely on, and which tests go to which process."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import forked, postgres
from support.slowest_files import pytest_runtest_logreport, pytest_terminal_summary

__all__ = ["pytest_runtest_logreport", "pytest_terminal_summary"]

TESTS = Path(__file__).parent
# Drawn once for all processes of a session, printed at its end, and given again to replay it.
for _name in ("CORRAL_CHAOS_SEED", "CORRAL_FLEET_SEED", "CORRAL_MODEL_SEED"):
    os.environ.setdefault(_name, str(random.SystemRandom().randrange(1_000_000)))

# Two processes with two threads each fight for two cores, and are far slower; set before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that runs this in the background has it ignore Ctrl-C, and every child would inherit that.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)

# One process and in this order: the second reads what the first has converted.
SMOLLM2 = ("engine/test_smollm2.py", "engine/test_greedy.py")
# The longest first, so that both processes are busy to the end.
LONGEST = (
    "docs/test_pages.py",
    "model/test_api_sqlite.py",
    "model/test_api_postgres.py",
    "chaos/test_chaos.py",
    "acceptance/test_training.py",
    "acceptance/test_run_folders.py",
    "acceptance/test_run_programs.py",
    "engine/test_resume.py",
    *SMOLLM2,
    "fleet",
    "acceptance",
    "durability",
    "calls",
    "model",
    "engine",
    "api",
)
# Each test of these can go to any process: they share nothing but what every process has of its own.
APART = (
    "docs/test_pages.py",
    "fleet",
    "acceptance/test_hosts.py",
    "acceptance/test_outage.py",
    "acceptance/test_dependencies.py",
    "durability/test_powercut_server.py",
)


def _is_in(item: pytest.Item, place: str) -> bool:
    return item.path == TESTS / place or TESTS / place in item.path.parents


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next((n for n, place in enumerate(LONGEST) if _is_in(item, place)), len(LONGEST))

    items.sort(key=rank)
    for item in items:
        if not any(_is_in(item, place) for place in APART):
            # One file, one process: its tests share fixtures, and some come in order.
            name = str(item.path.relative_to(TESTS))
            item.add_marker(pytest.mark.xdist_group("smollm2" if name in SMOLLM2 else name))


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
