"""Batches survive restarts, full disks and servers that forget; each is sent until it is accepted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corral.domain.errors import InvalidInput, LeaseLost, SequenceGap, ServerUnreachable
from corral.wire.logs import EventAnswer, EventBatch
from corral.worker.lease import LeaseSession
from corral.worker.report.spool import HELD_MAX_BYTES, BatchSender, Spool


class Server:
    """Takes batches as the real one does: a seen one is dropped, an early one refused."""

    def __init__(self) -> None:
        self.batches: list[EventBatch] = []
        self.before: Callable[[EventBatch], None] = lambda _: None

    def send_events(self, _: str, __: int, batch: EventBatch) -> EventAnswer:
        self.before(batch)
        wanted = len(self.batches) + 1
        if batch.seq > wanted:
            raise SequenceGap(f"batch {batch.seq} came before {wanted}")
        accepted = batch.seq == wanted
        if accepted:
            self.batches.append(batch)
        return EventAnswer(accepted=accepted, next_seq=len(self.batches) + 1)

    @property
    def notes(self) -> list[str]:
        return [note for batch in self.batches for note in batch.notes]


class Losses:
    def __init__(self) -> None:
        self.why: list[str] = []
        self.given_up = threading.Event()

    def lose(self, why: str) -> None:
        self.why.append(why)
        self.given_up.set()


def sender(spool: Spool, server: Server, losses: Losses | None = None) -> BatchSender:
    link: Any = SimpleNamespace(
        corral=SimpleNamespace(leases=server), answered=lambda: None, look_again=lambda: None
    )
    lease: Any = SimpleNamespace(id="l-1", epoch=1)
    control: Any = losses or Losses()
    made = BatchSender(spool, LeaseSession(link, lease, control))
    made.start()
    return made


def test_batches_are_numbered_from_one_and_sent_in_order(tmp_path: Path) -> None:
    spool, server = Spool(tmp_path / "s"), Server()
    sending = sender(spool, server)

    for n in range(20):
        spool.append(notes=[f"note {n}"])
    sending.drain()

    assert [batch.seq for batch in server.batches] == list(range(1, 21))
    assert server.notes == [f"note {n}" for n in range(20)]


def test_what_was_accepted_leaves_the_disk_except_the_newest(tmp_path: Path) -> None:
    spool, server = Spool(tmp_path / "s"), Server()
    for n in range(5):
        spool.append(notes=[str(n)])

    sender(spool, server).drain()

    assert [path.name for path in (tmp_path / "s").iterdir()] == ["000000005.json"]


def test_a_new_worker_goes_on_with_the_next_number(tmp_path: Path) -> None:
    server = Server()
    first = Spool(tmp_path / "s")
    first.append(notes=["before"])
    sender(first, server).drain()

    second = Spool(tmp_path / "s")
    second.append(notes=["after"])
    sender(second, server).drain()

    assert server.notes == ["before", "after"]


def test_a_server_that_is_away_gets_everything_later(tmp_path: Path) -> None:
    spool, server = Spool(tmp_path / "s"), Server()
    failures = iter(range(4))

    def away(_: EventBatch) -> None:
        if next(failures, None) is not None:
            raise ServerUnreachable("away")

    server.before = away
    spool.append(notes=["one"])
    spool.append(notes=["two"])

    sender(spool, server).drain()

    assert server.notes == ["one", "two"]


def test_a_server_that_lost_batches_gets_them_again(tmp_path: Path) -> None:
    spool, server = Spool(tmp_path / "s"), Server()
    for n in range(3):
        spool.append(notes=[str(n)])
    # Accepted once by a server whose disk then lost the last two.
    spool.accepted(1)
    server.batches = [EventBatch(seq=1, notes=["0"])]

    sender(spool, server).drain()

    assert server.notes == ["0", "1", "2"]


def test_a_batch_that_the_disk_lost_becomes_a_note_and_the_rest_arrives(tmp_path: Path) -> None:
    first = Spool(tmp_path / "s")
    for n in range(3):
        first.append(notes=[str(n)])
    (tmp_path / "s" / "000000002.json").write_bytes(b"")
    server = Server()

    sender(Spool(tmp_path / "s"), server).drain()

    assert server.notes[0] == "0"
    assert "missing" in server.notes[1]
    assert server.notes[2] == "2"


def test_a_batch_that_the_server_refuses_does_not_block_the_rest(tmp_path: Path) -> None:
    spool, server = Spool(tmp_path / "s"), Server()

    def picky(batch: EventBatch) -> None:
        if batch.notes == ["bad"]:
            raise InvalidInput("not this one")

    server.before = picky
    spool.append(notes=["bad"])
    spool.append(notes=["good"])

    sender(spool, server).drain()

    assert "refused" in server.notes[0]
    assert server.notes[1] == "good"


def test_a_lost_lease_ends_the_sending(tmp_path: Path) -> None:
    spool, server, losses = Spool(tmp_path / "s"), Server(), Losses()

    def fenced(_: EventBatch) -> None:
        raise LeaseLost("another epoch")

    server.before = fenced
    spool.append(notes=["never"])

    sender(spool, server, losses).drain()

    assert losses.why == ["another epoch"]
    assert server.batches == []


def test_a_full_disk_is_bridged_by_memory_until_that_is_full_too(tmp_path: Path) -> None:
    spool, server = Spool(tmp_path / "s"), Server()
    # A file in the folder's place makes every write fail, for root as well.
    (tmp_path / "s").rmdir()
    (tmp_path / "s").write_text("")

    spool.append(notes=["held"])
    for _ in range(HELD_MAX_BYTES // 10_100):
        spool.append(notes=["x" * 10_000])
    with pytest.raises(OSError, match="Not a directory"):
        spool.append(notes=["x" * 10_000] * 8)
    (tmp_path / "s").unlink()
    (tmp_path / "s").mkdir()
    sender(spool, server).drain()

    assert server.notes[0] == "held"
