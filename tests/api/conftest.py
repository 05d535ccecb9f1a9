"""One server per file; tests keep apart by projects, hosts and names of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.live_server import FakeHost, LiveServer, new_host, serve


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(tmp_path_factory.mktemp("home"), max_body_bytes=1 << 20, max_blob_bytes=512 << 20) as server:
        yield server


@pytest.fixture
def worker(live: LiveServer) -> FakeHost:
    return new_host(live)
