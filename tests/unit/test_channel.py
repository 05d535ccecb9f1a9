"""Messages between a worker and its instance, however they are cut on the way; and who listens for them."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.waiting import eventually

from corral.instance.channel import Channel
from corral.instance.listener import MessageListener


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


def message(text: bytes, body: bytes = b"") -> bytes:
    return struct.pack("!II", len(text), len(body)) + text + body


def test_messages_come_whole_however_they_are_cut(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    sent = [({"n": n}, bytes([n]) * (n * 1000)) for n in range(80)]
    data = b"".join(message(b'{"n":%d}' % header["n"], body) for header, body in sent)

    def write() -> None:
        for at in range(0, len(data), 7_001):
            theirs.sendall(data[at : at + 7_001])
        theirs.close()

    threading.Thread(target=write).start()

    assert [channel.receive() for _ in sent] == sent
    assert channel.receive() is None


def test_what_was_read_with_the_one_before_is_not_waited_for(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    assert not channel.wait(0)
    theirs.sendall(message(b"{}") + message(b'{"n":1}'))

    assert channel.wait(60)
    assert channel.receive() == ({}, b"")
    assert channel.wait(0)
    assert channel.receive() == ({"n": 1}, b"")
    assert not channel.wait(0)


class Heard:
    def __init__(self) -> None:
        self.by: list[tuple[Any, str]] = []
        self.freed = threading.Event()

    def handle(self, header: dict[str, Any], _: bytes) -> None:
        self.by.append((header, threading.current_thread().name))

    def until(self, count: int) -> None:
        eventually(lambda: len(self.by) >= count, lambda: f"{count} to be heard, not only {self.by}")


def test_the_main_thread_listens_while_it_is_free_and_is_stood_in_for_while_it_is_not(
    pair: tuple[Channel, socket.socket],
) -> None:
    channel, theirs = pair
    heard, me = Heard(), threading.current_thread().name
    listener = MessageListener(channel)
    listener.start(heard.handle, heard.freed.set)

    theirs.sendall(message(b"1"))
    assert listener.listen(60) is True
    for turn in range(2, 5):
        listener.away()
        theirs.sendall(message(b"%d" % turn))
        if turn == 4:
            # Whoever asks for something waits for no tick.
            listener.needed()
        heard.until(turn)
        assert listener.listen(0) is None, "somebody else does"
        heard.freed.clear()
        listener.back()
        assert heard.freed.wait(60)
        assert listener.listen(0) is False

    assert heard.by == [(1, me), *((turn, "corral-listener") for turn in range(2, 5))]
