"""What acceptance tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.installation import Installation, installed


@pytest.fixture(scope="session")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A server and a worker that all tests of a process share; who harms them has others."""
    with installed(tmp_path_factory.mktemp("home")) as made:
        yield made
        made.check_whole()
