"""Calls within calls on a host with fewer slots than callers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.local_cluster import local_cluster
from support.waiting import eventually

import corral
from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.functions import backend
from corral.functions.http_backend import HttpBackend

pytestmark = pytest.mark.timeout(300)
SLOTS = 2


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    with local_cluster(tmp_path_factory.mktemp("lent") / "home", lease_s=30.0) as made:
        made.own_worker(slots=SLOTS)
        backend.set_backend(HttpBackend(made.client(), "default"))
        yield made.client()
        backend.set_backend(None)


def test_callers_that_fill_all_slots_lend_them_to_what_they_call(client: Corral) -> None:
    """FNX-05: a chain that is deeper than there are slots, and as many callers as there are slots.

    When all is done, no more instances stay than there are slots.
    """
    app = corral.App("chain")

    @app.function()
    def leaf(n: int) -> int:
        return n

    @app.function(max_instances=SLOTS, queue_delay=0.1)
    def wide(n: int) -> int:
        return leaf.remote(n) + 1

    @app.function(queue_delay=0.1)
    def deep(n: int) -> int:
        return deep.remote(n - 1) + 1 if n else wide.remote(0)

    assert deep.spawn(3).result(120) == 4
    assert sorted(wide.map(range(6))) == [1, 2, 3, 4, 5, 6]

    def few_are_left() -> bool:
        running = client.runs.page(RunQuery(states=("running",)), limit=100).items
        return len(running) <= SLOTS

    eventually(few_are_left, "the instances beyond the slots to end")


def test_an_error_with_half_a_character_is_told_like_any_other(client: Corral) -> None:
    """SEC-17: its outcome could not be sent, and all other calls of its instance were lost with it."""
    app = corral.App("odd")

    @app.function(concurrency=4, max_instances=1)
    def odd(fail: bool) -> str:
        if fail:
            raise FileNotFoundError("no such file: \udce9t\udce9.txt")
        return "well"

    found = list(odd.map([False, True, False], return_exceptions=True))

    assert (found[0], found[2]) == ("well", "well")
    assert isinstance(found[1], FileNotFoundError)
