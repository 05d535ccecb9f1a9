"""One server per file; tests keep apart by projects, hosts and names of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.live import Live, Worker, new_worker, serve


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serve(tmp_path_factory.mktemp("home"), max_body_bytes=1 << 20, max_blob_bytes=512 << 20) as server:
        yield server


@pytest.fixture
def worker(live: Live) -> Worker:
    return new_worker(live)
