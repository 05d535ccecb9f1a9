"""The forecast of traffic against rounds that really happen, in a store that counts."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from corral.diloco import blocks, codec
from corral.diloco.codec import BLOCK, Compression
from corral.diloco.folder_store import FolderStore
from corral.diloco.loop import OuterLoop
from corral.diloco.rounds import RoundRules
from corral.recipes import diloco_traffic
from corral.recipes.diloco_traffic import Traffic, even_sizes, round_traffic, run_traffic, start_traffic
from diloco.counted_store import CountedStore
from diloco.test_rounds import Replica, a_round

# 301 blocks: pieces of two, the last one shorter, in shards of unequal size.
SIZE = 300 * BLOCK + 17


def counted(replicas: list[Replica]) -> Traffic:
    stores = [one.store for one in replicas]
    return Traffic(
        up=sum(one.up for one in stores),
        down=sum(one.down for one in stores),
        records=sum(one.records for one in stores),
        puts=sum(one.puts for one in stores),
        gets=sum(one.gets for one in stores),
    )


@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize("compression", ["none", "bf16", "int8", "int4"])
def test_a_round_moves_the_bytes_that_were_forecast(
    tmp_path: Path, members: int, compression: Compression
) -> None:
    """DL-D06: payloads and state to the byte. Records are at most as forecast, but for those that are read
    again while somebody waits; there are two thirds of the requests at least, and each wait adds its own."""
    rules = RoundRules(quorum=members, grace_s=600.0, compression=compression, poll_s=600.0)
    replicas = [Replica(tmp_path, str(number), rules, size=SIZE) for number in range(members)]
    a_round(replicas)
    waits = 0

    def wait(replica: Replica) -> None:
        sleep = replica.rounds.sleep

        def counts(seconds: float) -> None:
            nonlocal waits
            waits += 1
            sleep(min(seconds, 0.05))

        replica.rounds.sleep = counts

    for one in replicas:
        wait(one)
        one.store.clear()
    a_round(replicas)

    said, seen = round_traffic(SIZE, members, compression), counted(replicas)
    assert (seen.up, seen.down) == (said.up, said.down)
    again = said.records // members + said.records // (2 * members)
    assert said.records // 4 <= seen.records <= said.records + waits * again
    assert said.requests * 2 / 3 <= seen.requests <= said.requests + waits * (6 + 2 * members)


@pytest.mark.parametrize("members", [1, 3])
def test_a_run_begins_with_what_was_forecast_at_most(tmp_path: Path, members: int) -> None:
    """Who comes after another finds the first weights there."""
    replicas = [Replica(tmp_path, str(number), RoundRules(), size=SIZE) for number in range(members)]

    said, seen = start_traffic(SIZE, members), counted(replicas)
    assert seen.down == said.down
    assert said.up / members == seen.up
    assert seen.records <= said.records
    assert seen.requests <= said.requests


@pytest.mark.parametrize("fragments", [1, 3])
def test_a_whole_run_moves_what_was_forecast(tmp_path: Path, fragments: int) -> None:
    """From the first weights to the last round of each fragment, by the loop that users have."""
    steps, inner, members = 25, 9, 2
    params = {f"p{number}": np.zeros((number + 1) * 3000, np.float32) for number in range(5)}
    sizes = [sum(params[name].size for name in sorted(params)[n::fragments]) for n in range(fragments)]
    stores = [CountedStore(FolderStore(tmp_path)) for _ in range(members)]
    rounds: list[int] = []

    def work(replica: int) -> None:
        loop = OuterLoop(
            {name: one.copy() for name, one in params.items()},
            store=stores[replica],
            run="run",
            replica=replica,
            inner_steps=inner,
            quorum=members,
            grace=600.0,
            compress="int8",
            fragments=fragments,
            poll_s=0.05,
            total=steps,
        )
        reports = [report for _ in range(steps) for report in loop.step()] + loop.finish()
        rounds.append(len(reports))

    threads = [threading.Thread(target=work, args=(replica,)) for replica in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    said = run_traffic(sizes, steps=steps, inner_steps=inner, members=members, compression="int8")
    assert rounds == [said.rounds] * members
    assert sum(one.down for one in stores) == said.whole.down
    # The first weights are put by one replica at least, and by each at most.
    up = sum(one.up for one in stores)
    assert said.whole.up - said.start.up // members <= up <= said.whole.up
    even = run_traffic(
        even_sizes(sum(sizes), fragments), steps=steps, inner_steps=inner, members=members, compression="int8"
    )
    assert even.whole.total == pytest.approx(said.whole.total, rel=0.1)


def test_the_formula_has_the_sizes_of_the_protocol() -> None:
    assert diloco_traffic.BLOCK == codec.BLOCK
    assert diloco_traffic.MOST_PIECES == blocks._MOST_PIECES
