"""Messages between a worker and its instance, however they are cut on the way; and who listens for them."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from corral.instance.channel import Channel


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


@pytest.mark.parametrize("ending", ["fault", "worker gone"])
def test_an_instance_hears_beside_its_main_thread_and_ends_when_it_can_hear_no_more(ending: str) -> None:
    ours, theirs = socket.socketpair()
    code = (
        "import socket, time; from corral.instance.channel import Channel; "
        "from corral.instance.listener import start_listening; "
        f"channel = Channel(socket.socket(fileno={ours.fileno()})); "
        "start_listening(channel, lambda header, body: print(10 // header['n'], len(body), flush=True)); "
        "time.sleep(600)"
    )
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            pass_fds=[ours.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        ours.close()
        theirs.sendall(message(b'{"n":1}') + message(b'{"n":2}', b"body"))
        if ending == "fault":
            theirs.sendall(message(b'{"n":0}'))
        else:
            theirs.shutdown(socket.SHUT_WR)
        printed, errors = process.communicate(timeout=120)

    assert (process.returncode, printed) == (1, b"10 0\n5 4\n")
    assert (b"ZeroDivisionError" in errors) == (ending == "fault")
