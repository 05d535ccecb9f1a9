"""FL-D07: webhooks and deliveries on each database; events become deliveries once, whoever races or dies."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from contract.conftest import Database
from contract.samples import a_run
from corral.adapters.secrets.cipher import FileCipher
from corral.adapters.secrets.key import load_key
from corral.core import secrets
from corral.core.audit import Author
from corral.core.runs.dependencies import move
from corral.core.runs.transitions import born
from corral.core.webhooks.notices import PAGE, gather
from corral.domain.ids import WebhookId, new_delivery_id, new_webhook_id
from corral.domain.runs.states import RunEvent
from corral.domain.webhooks.deliveries import Delivery, DeliveryState, Webhook, WebhookFormat
from corral.store.postgres.store import PostgresStore
from corral.store.store import Store
from corral.store.transaction import Tx

# Unmistakably fake.
VALUE = "canary-NOT-A-REAL-SECRET-0099"


@pytest.fixture
def cipher(tmp_path: Path) -> FileCipher:
    return FileCipher(load_key(tmp_path / "key"))


def a_hook(**fields: object) -> Webhook:
    hook_id = new_webhook_id()
    base = Webhook(
        hook_id,
        None,
        f"hook-{hook_id}",
        "",
        WebhookFormat.CORRAL,
        '["run.*"]',
        "",
        "",
        False,
        1.0,
        "operator:a",
    )
    return base._replace(**fields)  # type: ignore[arg-type]


def a_delivery(hook: Webhook, **fields: object) -> Delivery:
    base = Delivery(new_delivery_id(), hook.id, "run.failed", "{}", 5.0, 1.0)
    return base._replace(**fields)  # type: ignore[arg-type]


def _runs(tx: Tx, count: int, **fields: object) -> None:
    """Each is submitted and cancelled: two events."""
    for _ in range(count):
        run = a_run(**fields)
        tx.runs.insert(run, "{}")
        born(tx, run, actor="user:ada")
        move(tx, run, RunEvent.CANCEL, at=101.0, actor="user:ada", data={"reason": VALUE})


def _made(db: Database, hook: Webhook) -> list[Delivery]:
    return db.read(lambda tx: tx.webhooks.deliveries(hook.id, after=None, limit=10_000))


def test_a_webhook_and_its_deliveries_come_and_go(db: Database) -> None:
    hook, other = a_hook(), a_hook()
    for made in (hook, other):
        db.write(lambda tx, made=made: tx.webhooks.insert(made))  # type: ignore[misc]
    mine = [a_delivery(hook, created_at=float(n), next_at=float(10 - n)) for n in range(3)]
    dead = a_delivery(hook, state=DeliveryState.DEAD, created_at=9.0, next_at=None, ended_at=9.0)
    db.each([*mine, dead, a_delivery(other)], lambda tx, d: tx.webhooks.insert_delivery(d))

    assert db.read(lambda tx: tx.webhooks.by_name(hook.name)) == hook
    assert db.read(lambda tx: tx.webhooks.due(hook.id, 9.0, 10)) == [mine[2], mine[1]]
    assert db.read(lambda tx: tx.webhooks.waiting(hook.id, 10)) == 3
    assert db.read(lambda tx: tx.webhooks.waiting(hook.id, 2)) == 2
    assert _made(db, hook) == [dead, *mine[::-1]]
    after = (mine[2].created_at, mine[2].id)
    page = db.read(lambda tx: tx.webhooks.deliveries(hook.id, after=after, limit=1))
    assert page == [mine[1]]
    found = db.read(lambda tx: tx.webhooks.deliveries(hook.id, after=None, limit=9, state=DeliveryState.DEAD))
    assert found == [dead]
    assert db.write(lambda tx: tx.webhooks.forget(10.0, 100)) == 1
    db.write(lambda tx: tx.webhooks.set_paused(hook.id, True))
    assert db.read(lambda tx: tx.webhooks.get(hook.id)) == hook._replace(paused=True)
    db.write(lambda tx: tx.webhooks.set_secret(hook.id, "new", keep_until=50.0))
    both = hook._replace(paused=True, secret="new", old_secret=hook.secret, old_secret_until=50.0)
    db.write(lambda tx: tx.webhooks.forget_old_secrets(49.0))
    assert db.read(lambda tx: tx.webhooks.get(hook.id)) == both
    assert (both.secrets(49.0), both.secrets(50.0)) == (("new", hook.secret), ("new",))
    db.write(lambda tx: tx.webhooks.forget_old_secrets(50.0))
    assert db.read(lambda tx: tx.webhooks.get(hook.id)) == hook._replace(paused=True, secret="new")
    assert db.write(lambda tx: tx.webhooks.delete(hook.id))
    assert _made(db, hook) == []
    assert len(_made(db, other)) == 1


def test_the_cursor_moves_only_from_where_it_was(db: Database) -> None:
    hook = a_hook(cursor="1.1")
    db.write(lambda tx: tx.webhooks.insert(hook))

    assert db.write(lambda tx: tx.webhooks.advance(hook.id, before="1.1", after="1.5"))
    assert not db.write(lambda tx: tx.webhooks.advance(hook.id, before="1.1", after="1.9"))
    found = db.read(lambda tx: tx.webhooks.get(hook.id))
    assert found is not None
    assert found.cursor == "1.5"


def test_a_new_webhook_hears_what_comes_after_it(db: Database, cipher: FileCipher) -> None:
    db.write(lambda tx: _runs(tx, 2))
    hook = a_hook(cursor=db.write(lambda tx: tx.events.feed_end()))
    db.write(lambda tx: tx.webhooks.insert(hook))
    db.write(lambda tx: _runs(tx, 1))

    db.write(lambda tx: gather(tx, hook.id, secrets.SecretRedactor(cipher), now=1.0))

    assert sorted(d.event for d in _made(db, hook)) == ["run.cancelled", "run.submitted"]


def test_each_event_makes_one_delivery_and_pages_go_on(db: Database, cipher: FileCipher) -> None:
    hook = a_hook(events='["run.cancelled"]')
    db.write(lambda tx: tx.webhooks.insert(hook))
    db.write(lambda tx: _runs(tx, PAGE))

    rounds = 0
    while db.write(lambda tx: gather(tx, hook.id, secrets.SecretRedactor(cipher), now=1.0)):
        rounds += 1

    bodies = [json.loads(d.body) for d in _made(db, hook)]
    assert rounds == 2
    assert len({body["run"]["id"] for body in bodies}) == len(bodies) == PAGE
    assert {(body["version"], body["type"], body["number"]) for body in bodies} == {(1, "run.cancelled", 2)}


def test_a_unit_that_fails_loses_no_event(db: Database, cipher: FileCipher) -> None:
    hook = a_hook()
    db.write(lambda tx: tx.webhooks.insert(hook))
    db.write(lambda tx: _runs(tx, 3))

    def dies(tx: Tx) -> None:
        gather(tx, hook.id, secrets.SecretRedactor(cipher), now=1.0)
        raise KeyError("killed before the commit")

    with pytest.raises(KeyError):
        db.write(dies)
    assert _made(db, hook) == []
    db.write(lambda tx: gather(tx, hook.id, secrets.SecretRedactor(cipher), now=1.0))
    assert len(_made(db, hook)) == 6


def test_other_projects_a_paused_one_one_get_nothing(
    db: Database, cipher: FileCipher, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, paused = a_hook(project="mine"), a_hook(paused=True)
    for made in (mine, paused):
        db.write(lambda tx, made=made: tx.webhooks.insert(made))  # type: ignore[misc]
    db.write(lambda tx: _runs(tx, 1, project="mine"))
    db.write(lambda tx: _runs(tx, 1, project="theirs"))

    for made in (mine, paused):
        db.write(lambda tx, made=made: gather(tx, made.id, secrets.SecretRedactor(cipher), now=1.0))  # type: ignore[misc]

    assert {json.loads(d.body)["run"]["project"] for d in _made(db, mine)} == {"mine"}
    assert _made(db, paused) == []


def test_a_secret_of_the_project_is_in_no_body(db: Database, cipher: FileCipher) -> None:
    """FL-D48: redacted when the record is made."""
    hook = a_hook()
    db.write(lambda tx: tx.webhooks.insert(hook))
    db.write(lambda tx: secrets.put(tx, cipher, "default", "KEY", VALUE, by=Author("user:ada", "", 1.0)))
    db.write(lambda tx: _runs(tx, 1, detail=f"bad key {VALUE}", labels=json.dumps({VALUE: VALUE})))

    db.write(lambda tx: gather(tx, hook.id, secrets.SecretRedactor(cipher), now=1.0))

    bodies = [d.body for d in _made(db, hook)]
    assert len(bodies) == 2
    assert not any(VALUE in body for body in bodies)
    assert all("bad key [secret KEY]" in body for body in bodies)


def test_servers_that_gather_at_once_make_each_delivery_once(pg_url: str, cipher: FileCipher) -> None:
    """As when the lead passes from one to the other and both believe they have it."""
    stores = [PostgresStore(pg_url), PostgresStore(pg_url)]
    hook = a_hook(events='["run.cancelled"]')

    async def main() -> int:
        await stores[0].write(lambda tx: tx.webhooks.insert(hook))
        await asyncio.gather(
            *(store.write(lambda tx: _runs(tx, 5)) for store in stores for _ in range(20)),
            *(_gather_often(store, hook.id) for store in stores for _ in range(4)),
        )
        while await stores[0].write(lambda tx: gather(tx, hook.id, secrets.SecretRedactor(cipher), now=1.0)):
            pass
        await stores[0].write(lambda tx: gather(tx, hook.id, secrets.SecretRedactor(cipher), now=1.0))
        found = await stores[0].read(lambda tx: tx.webhooks.deliveries(hook.id, after=None, limit=1000))
        for store in stores:
            await store.close()
        assert len({json.loads(d.body)["run"]["id"] for d in found}) == len(found)
        return len(found)

    async def _gather_often(store: Store, webhook_id: WebhookId) -> None:
        for _ in range(20):
            await store.write(lambda tx: gather(tx, webhook_id, secrets.SecretRedactor(cipher), now=1.0))

    assert asyncio.run(main()) == 200
