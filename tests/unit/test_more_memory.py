"""After a run ran out of memory its next attempt asks for more of it, or there is none (MT-D18)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.queue_of_hosts import QueueOfHosts

from corral.core.queue.eligibility import parse_requirements
from corral.core.queue.grants import Grant
from corral.core.queue.why import queue_notes
from corral.core.runs.more_memory import MemoryShortage, asks_for_more
from corral.core.runs.requeue import requeue
from corral.domain.hosts.capability import Requirements
from corral.domain.ids import RunId
from corral.domain.runs.reasons import Reason
from corral.domain.runs.retries import MemoryKind
from corral.domain.runs.states import RunState

GIB = 1 << 30
GPU, HOST = MemoryShortage(MemoryKind.GPU), MemoryShortage(MemoryKind.HOST)


@pytest.fixture
def yard() -> Iterator[QueueOfHosts]:
    made = QueueOfHosts()
    yield made
    made.db.end()


def need(yard: QueueOfHosts, run_id: RunId) -> Requirements:
    shape = yard.run(run_id).shape
    text = yard.db.now_read(lambda tx: tx.runs.shape(shape))
    assert text is not None
    return parse_requirements(text)


def said(yard: QueueOfHosts, run_id: RunId) -> str | None:
    run = yard.run(run_id)
    return yard.db.now_read(lambda tx: asks_for_more(tx, run))


def ran_out(yard: QueueOfHosts, grant: Grant, memory: MemoryShortage | None) -> str:
    return yard.end(grant, "fail", Reason.OUT_OF_MEMORY, memory=memory).run_state


def test_a_run_that_ran_out_on_a_card_goes_to_a_larger_one(yard: QueueOfHosts) -> None:
    """MT-D18: memory that runs out: a larger card next. Event, `show` and `why` say so in one sentence."""
    yard.host("small", gpus=1, vram=24 * GIB)
    yard.host("large", gpus=1, vram=80 * GIB)
    run = yard.submit(gpus=1, memory=1)
    (grant,) = yard.claim("small")

    assert ran_out(yard, grant, GPU) == "queued"

    assert need(yard, run).min_vram_bytes == 24 * GIB + 24 * GIB // 20
    assert yard.claimed("small") == []
    sentence = "attempt 2 asks for 25.2 GiB of GPU memory, since attempt 1 ran out with 24 GiB on small"
    assert json.loads(yard.events(run)[-1].data)["more"] == sentence
    assert said(yard, run) == sentence
    waiting, now = yard.run(run), yard.clock.now()
    notes = yard.db.now_read(lambda tx: queue_notes(tx, yard.board, waiting, now=now, policy=yard.policy))
    assert sentence in notes
    (grant,) = yard.claim("large")
    assert (grant.run.id, grant.run.attempt, grant.run.used_memory) == (run, 2, 1)


def test_the_budget_ends_it(yard: QueueOfHosts) -> None:
    yard.host("small", gpus=1, vram=24 * GIB)
    yard.host("large", gpus=1, vram=80 * GIB)
    yard.host("largest", gpus=1, vram=141 * GIB)
    run = yard.submit(gpus=1, memory=1)
    ran_out(yard, yard.claim("small")[0], GPU)

    assert ran_out(yard, yard.claim("large")[0], GPU) == "failed"

    ended = yard.run(run)
    assert (ended.reason, ended.detail) == (Reason.OUT_OF_MEMORY, None)


def test_where_no_host_has_more_it_fails_at_once_and_says_so(yard: QueueOfHosts) -> None:
    """A run that nobody can take would wait for ever. A host that is away does not count."""
    yard.host("gone", gpus=1, vram=80 * GIB)
    yard.clock.advance(yard.policy.away_s + 1)
    yard.host("small", gpus=1, vram=24 * GIB)
    run = yard.submit(gpus=1, memory=3)

    assert ran_out(yard, yard.claim("small")[0], GPU) == "failed"

    ended = yard.run(run)
    assert ended.used_memory == 0
    assert ended.detail == (
        "it is not tried again: attempt 1 ran out with 24 GiB on small,"
        " and no host that could take it has 25.2 GiB of GPU memory"
    )


def test_a_part_of_a_gpu_or_of_a_host_is_doubled_and_the_whole_is_exceeded(yard: QueueOfHosts) -> None:
    yard.host("box", gpus=1, vram=80 * GIB, ram=64 * GIB)
    yard.host("big", ram=256 * GIB)
    share = yard.submit(gpus=1, memory=1, needs={"min_vram_bytes": 10 * GIB, "share_gpu": True})
    ran_out(yard, yard.claim("box")[0], GPU)
    assert need(yard, share).min_vram_bytes == 20 * GIB
    yard.cancel(share)

    part = yard.submit(memory=1, needs={"min_ram_bytes": 16 * GIB})
    ran_out(yard, yard.claim("box")[0], HOST)
    assert need(yard, part).min_ram_bytes == 32 * GIB
    yard.cancel(part)

    whole = yard.submit(memory=1)
    ran_out(yard, yard.claim("box")[0], HOST)
    assert need(yard, whole).min_ram_bytes == 64 * GIB + 64 * GIB // 20
    assert yard.claimed("box") == []
    assert yard.claimed("big") == [whole]


def test_a_training_run_that_nobody_has_more_for_takes_less_at_once(yard: QueueOfHosts) -> None:
    yard.host("laptop", ram=16 * GIB)
    run = yard.submit(memory=1, kind="train")

    assert ran_out(yard, yard.claim("laptop")[0], MemoryShortage(MemoryKind.HOST, shrinks=True)) == "queued"

    assert need(yard, run).min_ram_bytes is None
    assert (
        said(yard, run)
        == "attempt 2 takes half as much at once, since attempt 1 ran out with 16 GiB on laptop"
    )


def test_what_is_not_known_of_a_host_is_asked_for_again_as_it_was(yard: QueueOfHosts) -> None:
    yard.host("box")
    run = yard.submit(memory=1)

    assert ran_out(yard, yard.claim("box")[0], HOST) == "queued"

    assert said(yard, run) == "attempt 2 asks for the same: how much RAM box has is not known"
    assert yard.claimed("box") == [run]


@pytest.mark.parametrize(("kind", "field"), [("train", "min_vram_bytes"), ("command", "min_ram_bytes")])
def test_an_older_worker_does_not_say_which_memory_it_was(yard: QueueOfHosts, kind: str, field: str) -> None:
    yard.host("small", gpus=1, vram=24 * GIB, ram=16 * GIB)
    yard.host("large", gpus=1, vram=80 * GIB, ram=512 * GIB)
    run = yard.submit(gpus=1, memory=1, kind=kind)

    assert ran_out(yard, yard.claim("small")[0], None) == "queued"

    raised = {"min_vram_bytes", "min_ram_bytes"} & {
        name for name, value in vars(need(yard, run)).items() if value is not None
    }
    assert raised == {field}


def test_the_next_generation_begins_with_what_the_run_file_asks_for(yard: QueueOfHosts) -> None:
    yard.host("small", gpus=1, vram=24 * GIB)
    yard.host("large", gpus=1, vram=80 * GIB)
    spec = json.dumps({"resources": {"min_vram": 8 * GIB, "min_ram": None}})
    run = yard.submit(gpus=1, memory=1, needs={"min_vram_bytes": 8 * GIB}, spec=spec)
    first = yard.run(run).shape
    ran_out(yard, yard.claim("small")[0], GPU)
    assert yard.run(run).shape != first
    yard.cancel(run)

    made = yard.db.now_write(
        lambda tx: requeue(tx, run, request_id="again-1", principal="user:ada", now=yard.clock.now())
    )

    assert yard.run(made.ids[0]).shape == first
    assert yard.run(made.ids[0]).state is RunState.QUEUED
