"""A real worker, and programs that really get no more memory: the next attempt is given more (MT-D18)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import eventually
from support.watched_worker import WatchedWorker

from acceptance.driver.cards import Card, Cards

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

# On its first attempt the system gives it no more than 1 GiB, and it wants 4.
WANTS_RAM = """
import os, resource
retries = os.environ["CORRAL_MEMORY_RETRIES"]
if retries == "0":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytearray(4 << 30)
print("attempt", os.environ["CORRAL_ATTEMPT"], "after", retries)
"""
# As torch ends where a GPU has no more; which GPU it has decides.
WANTS_VRAM = """
import os
OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
card = os.environ["CUDA_VISIBLE_DEVICES"]
if card == "0":
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 30.00 GiB.")
print("card", card)
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedWorker]:
    folder: Path = tmp_path_factory.mktemp("memory")
    cards = Cards(folder / "driver")
    cards.put(Card("L4", "GPU-aaaa", total_gib=24), Card("A100", "GPU-bbbb"))
    made = WatchedWorker(folder / "home", **cards.environment)
    made.start_server()
    made.start_worker()
    yield made
    made.close()


def test_a_run_that_was_refused_memory_has_twice_as_much_set_aside_next(fleet: WatchedWorker) -> None:
    run = fleet.python(WANTS_RAM, resources={"min_ram": "64MiB"})

    ended = fleet.final(run)

    assert (ended.state, ended.attempt) == ("succeeded", 2), fleet.output(run, "stderr")
    assert fleet.output(run).strip() == "attempt 2 after 1"
    assert ended.attempts[0].ranks[0].reason == "out_of_memory"
    assert ended.retries_used["memory"] == 1
    assert ended.asks_for is not None
    assert ended.asks_for.startswith("attempt 2 asks for 128 MiB of RAM, since attempt 1 ran out with 64 MiB")
    (again,) = [event for event in fleet.corral.runs.events(run).items if event.type == "requeue"]
    assert again.data["more"] == ended.asks_for


def test_a_run_that_ran_out_on_a_small_card_gets_the_large_one(fleet: WatchedWorker) -> None:
    """MT-D18."""
    run = fleet.python(WANTS_VRAM, resources={"gpus": 1})

    ended = fleet.final(run)

    assert (ended.state, fleet.output(run).strip()) == ("succeeded", "card 1"), fleet.output(run, "stderr")
    assert "25.2 GiB of GPU memory, since attempt 1 ran out with 24 GiB" in (ended.asks_for or "")


def test_a_run_that_wants_no_retries_has_none(fleet: WatchedWorker) -> None:
    run = fleet.python(WANTS_VRAM, resources={"gpus": 1}, retries={"memory": 0})

    ended = fleet.final(run)

    assert (ended.state, ended.attempt, ended.reason) == ("failed", 1, "out_of_memory")


def test_a_worker_says_how_much_memory_is_free_and_takes_what_runs_were_promised_off(
    fleet: WatchedWorker,
) -> None:
    def free() -> int:
        (host,) = fleet.corral.hosts.all()
        return host.ram_free_bytes or 0

    (host,) = fleet.corral.hosts.all()
    assert host.capability is not None
    total = host.capability.ram_bytes or 0
    before = eventually(free, "the worker has said how much is free")
    assert 0 < before <= total

    # Little memory is used by it, and a quarter of what is free is its own.
    run = fleet.python("import time; time.sleep(600)", resources={"min_ram": before // 4})

    eventually(lambda: free() < before * 9 // 10 or None, "what was promised is no longer free")
    fleet.corral.runs.cancel(run)
    fleet.final(run)
