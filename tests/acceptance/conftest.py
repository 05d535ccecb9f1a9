"""What acceptance tests share."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.installation import Installation, installed


@pytest.fixture(scope="session")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A server and a worker that all tests of a process share; who harms them has others."""
    with installed(tmp_path_factory.mktemp("home"), CORRAL_PORT=str(_port())) as made:
        yield made
        made.check_whole()


def _port() -> int:
    """One that no connection of others is given while the server is down for a moment."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("a hundred ports are taken")
