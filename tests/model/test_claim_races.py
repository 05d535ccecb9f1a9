"""Claims at the same moment: a client that gave up waiting sends again while the first is still at work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.postgres import PrivatePostgres, private_postgres

from model.claim_rules import capability
from model.model import Host
from model.world import PostgresBackend, SqliteBackend, World


@pytest.fixture(scope="module")
def server() -> PrivatePostgres:
    return private_postgres()


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "sqlite":
        made = World(SqliteBackend())
    else:
        made = World(PostgresBackend(request.getfixturevalue("server")))
    yield made
    made.close()


def enrolled(world: World, *, slots: int) -> Host:
    made = world.call("POST", "tokens", {"scope": "host", "name": "box"}).body
    return Host(made["host_id"], "box", made["token"], slots, 0, ())


def queued(world: World, count: int) -> None:
    spec = {"argv": ["true"]}
    assert world.call("POST", "runs", {"request_id": "submit-one", "runs": [spec] * count}).status == 201


def claim_body(host: Host, request_id: str) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "boot_id": "boot-one",
        "slots": host.slots,
        "max_leases": 1,
        "capability": capability(host),
    }


def at_once(world: World, host: Host, bodies: list[dict[str, Any]]) -> list[str]:
    """The leases of all answers, sent together."""

    async def both() -> list[Any]:
        return list(
            await asyncio.gather(*(world.send("POST", "claims", body, host.token) for body in bodies))
        )

    answers = world.do(both())
    return [lease["id"] for answer in answers for lease in answer.body["leases"]]


def live(world: World) -> int:
    return world.read(lambda tx: tx.leases.live_count())


def test_the_same_claim_twice_at_once_is_one_claim(world: World) -> None:
    """FL-C04, FL-D30."""
    host = enrolled(world, slots=1)
    for n in range(8):
        world.call("POST", "claims", {**claim_body(host, f"warm-up-{n}"), "max_leases": 0}, token=host.token)
    queued(world, 6)
    world.do(world.server.loops.reconcile())
    leases = at_once(world, host, [claim_body(host, "request-1")] * 6)
    assert (len(set(leases)), live(world)) == (1, 1)


def test_claims_at_once_never_give_a_host_more_than_its_slots(world: World) -> None:
    host = enrolled(world, slots=2)
    queued(world, 6)
    world.do(world.server.loops.reconcile())
    at_once(world, host, [claim_body(host, f"request-{n}") for n in range(6)])
    assert live(world) <= 2


def test_runs_claimed_at_once_by_many_are_each_given_once(world: World) -> None:
    """Promise 2."""
    host = enrolled(world, slots=100)
    queued(world, 12)
    world.do(world.server.loops.reconcile())
    at_once(world, host, [claim_body(host, f"request-{n}") for n in range(20)])
    assert live(world) == 12


def test_a_run_that_was_held_and_let_go_is_as_old_as_its_release(world: World) -> None:
    """FL-D03: what is remembered of its first place in the queue does not let it pass others."""
    host = enrolled(world, slots=2)
    ids = []
    for number in (1, 2, 3):
        body = {"request_id": f"submit-{number}", "runs": [{"argv": ["true"]}]}
        ids += world.call("POST", "runs", body).body["ids"]
        world.clock.advance(1)
    world.settle()
    first = world.call("POST", "claims", claim_body(host, "claim-one"), token=host.token)
    for verb in ("hold", "release"):
        assert world.call("POST", f"runs/{ids[1]}/{verb}").status == 200
    world.settle()
    second = world.call("POST", "claims", claim_body(host, "claim-two"), token=host.token)

    taken = [lease["run_id"] for answer in (first, second) for lease in answer.body["leases"]]
    assert taken == [ids[0], ids[2]]
