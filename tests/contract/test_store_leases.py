"""Attempts, ranks, leases, hosts, tokens and secrets."""

from __future__ import annotations

import pytest

from contract.conftest import Database
from contract.samples import a_host, a_lease, a_run, a_token
from corral.domain.errors import Conflict
from corral.domain.ids import HostId, LeaseId
from corral.domain.leases import LeaseState
from corral.domain.runs.queue import LeaseHolding
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import Attempt, Rank
from corral.domain.runs.states import RankState, RunState
from corral.domain.secrets.secrets import Secret
from corral.domain.tokens import Scope

H1, H2 = HostId("h-bbbbbbbbbbbb"), HostId("h-cccccccccccc")


def test_attempts_open_and_close_once(db: Database) -> None:
    run = a_run()
    db.each((1, 2), lambda tx, n: tx.attempts.open(Attempt(run.id, n, float(n), None)))
    db.write(lambda tx: tx.attempts.close(run.id, 1, 5.0))
    db.write(lambda tx: tx.attempts.close(run.id, 1, 9.0))

    assert db.read(lambda tx: tx.attempts.of_run(run.id)) == [
        Attempt(run.id, 1, 1.0, 5.0),
        Attempt(run.id, 2, 2.0, None),
    ]


def test_a_rank_is_saved(db: Database) -> None:
    run = a_run()
    ranks = [Rank(run.id, 1, n, RankState.WAITING, 0, None, None, None) for n in (0, 1)]
    db.each(ranks, lambda tx, rank: tx.attempts.insert_rank(rank))
    ended = ranks[1]._replace(
        state=RankState.ENDED, epoch=3, lease_id=LeaseId("l-x"), reason=Reason.HOST_LOST, exit_code=1
    )
    db.write(lambda tx: tx.attempts.save_rank(ended))

    assert db.read(lambda tx: tx.attempts.ranks(run.id, 1)) == [ranks[0], ended]
    assert db.read(lambda tx: tx.attempts.rank(run.id, 1, 1)) == ended
    assert db.read(lambda tx: tx.attempts.rank(run.id, 2, 0)) is None


def test_a_lease_comes_back_as_it_was_saved(db: Database) -> None:
    lease = a_lease(a_run())
    db.write(lambda tx: tx.leases.insert(lease))
    changed = lease._replace(
        boot_id="boot-2",
        state=LeaseState.CLOSED,
        beaten_at=110.0,
        expires_at=140.0,
        active_at=111.0,
        closed_at=120.0,
        outcome="finish",
        outcome_digest="d",
        outcome_answer="{}",
        progress='{"step": 1}',
        sample='{"gpu": 1}',
        event_seq=4,
        log_bytes=1 << 40,
    )
    assert db.read(lambda tx: tx.leases.get(lease.id)) == lease
    db.write(lambda tx: tx.leases.save(changed))

    assert db.read(lambda tx: tx.leases.get(lease.id)) == changed
    assert db.read(lambda tx: tx.leases.get(LeaseId("l-none"))) is None


def test_a_rank_has_at_most_one_live_lease(db: Database) -> None:
    run = a_run()
    db.write(lambda tx: tx.leases.insert(a_lease(run)))
    db.write(lambda tx: tx.leases.insert(a_lease(run, rank=1)))
    db.write(lambda tx: tx.leases.insert(a_lease(run, state=LeaseState.EXPIRED)))

    with pytest.raises(Conflict):
        db.write(lambda tx: tx.leases.insert(a_lease(run, attempt=2, epoch=2)))


def test_the_gpus_that_a_host_holds_are_those_of_its_live_leases(db: Database) -> None:
    held, ended = a_lease(a_run(), gpus="[0, 2]"), a_lease(a_run(), gpus="[1]", state=LeaseState.CLOSED)
    db.each((held, ended), lambda tx, lease: tx.leases.insert(lease))

    found = db.read(lambda tx: tx.leases.held(held.host_id))
    assert found == [LeaseHolding(held.id, held.request_id, "[0, 2]")]


def test_a_run_is_found_and_held_by_its_lease(db: Database) -> None:
    run = a_run()
    lease = a_lease(run)
    db.write(lambda tx: tx.runs.insert(run, "{}"))
    db.write(lambda tx: tx.leases.insert(lease))

    assert db.write(lambda tx: tx.leases.hold(lease.id)) == (run, lease)
    assert db.write(lambda tx: tx.runs.try_lock(run.id)) == (run, "{}")
    assert db.write(lambda tx: tx.leases.hold(LeaseId("l-nosuchlease"))) is None


def test_leases_are_found_by_host_run_and_request(db: Database) -> None:
    run = a_run()
    a = a_lease(run, host_id=H1, granted_at=1.0)
    b = a_lease(run, host_id=H1, granted_at=2.0, rank=1, request_id="request-2")
    c = a_lease(run, host_id=H2, rank=2, state=LeaseState.EXPIRED)
    db.each((a, b, c), lambda tx, lease: tx.leases.insert(lease))

    assert db.read(lambda tx: tx.leases.live_of_host(H1)) == [a, b]
    assert db.read(lambda tx: tx.leases.live_of_host(H2)) == []
    assert db.read(lambda tx: tx.leases.live_of_run(run.id)) == [a, b]
    assert [held.request_id for held in db.read(lambda tx: tx.leases.held(H1))] == [a.request_id, "request-2"]
    assert db.read(lambda tx: tx.leases.held(H2)) == []
    assert db.read(lambda tx: tx.leases.live_count()) == 2
    assert db.read(lambda tx: tx.hosts.busy()) == [(H1, 2)]


def test_only_live_leases_run_out_and_all_of_them_are_restamped(db: Database) -> None:
    early, late = a_lease(a_run(), expires_at=10.0), a_lease(a_run(), expires_at=20.0)
    over = a_lease(a_run(), expires_at=5.0, state=LeaseState.EXPIRED)
    db.each((late, early, over), lambda tx, lease: tx.leases.insert(lease))

    assert db.read(lambda tx: tx.leases.expired(9.9, 10)) == []
    assert db.read(lambda tx: tx.leases.expired(20.0, 10)) == [early.id, late.id]
    assert db.read(lambda tx: tx.leases.expired(20.0, 1)) == [early.id]
    assert db.write(lambda tx: tx.leases.restamp(50.0)) == 2
    assert db.read(lambda tx: tx.leases.expired(49.0, 10)) == []


def test_hosts_are_kept_and_found_by_name(db: Database) -> None:
    hosts = sorted((a_host() for _ in range(3)), key=lambda host: host.id)
    db.each(hosts, lambda tx, host: tx.hosts.insert(host))
    changed = hosts[0]._replace(
        capability="{}", capability_digest="d", slots=8, boot_id="b", draining=True, last_seen_at=5.0
    )
    db.write(lambda tx: tx.hosts.save(changed))

    assert db.read(lambda tx: tx.hosts.get(changed.id)) == changed
    assert db.read(lambda tx: tx.hosts.by_name(hosts[1].name)) == hosts[1]
    assert db.read(lambda tx: tx.hosts.by_name("nobody")) is None
    assert db.read(lambda tx: tx.hosts.page(None, 2)) == [changed, hosts[1]]
    assert db.read(lambda tx: tx.hosts.page(hosts[1].id, 2)) == [hosts[2]]
    with pytest.raises(Conflict):
        db.write(lambda tx: tx.hosts.insert(a_host(name=hosts[1].name)))


def test_a_token_is_revoked_once_and_keeps_the_first_time(db: Database) -> None:
    token = a_token(scope=Scope.OPERATOR, project=None, expires_at=500.0)
    db.write(lambda tx: tx.tokens.insert(token))

    assert db.write(lambda tx: tx.tokens.revoke(token.id, 200.0))
    assert db.write(lambda tx: tx.tokens.revoke(token.id, 300.0))
    assert not db.write(lambda tx: tx.tokens.revoke(a_token().id, 300.0))
    assert db.read(lambda tx: tx.tokens.get(token.id)) == token._replace(revoked_at=200.0)


def test_tokens_page_by_id(db: Database) -> None:
    tokens = sorted((a_token() for _ in range(3)), key=lambda token: token.id)
    db.each(tokens, lambda tx, token: tx.tokens.insert(token))

    assert db.read(lambda tx: tx.tokens.page(None, 2)) == tokens[:2]
    assert db.read(lambda tx: tx.tokens.page(tokens[1].id, 2)) == tokens[2:]
    assert db.read(lambda tx: tx.tokens.get(a_token().id)) is None


def test_a_secret_is_replaced_and_deleted(db: Database) -> None:
    old, new = Secret("default", "HF_TOKEN", "c1", 1.0), Secret("default", "HF_TOKEN", "c2", 2.0)
    db.write(lambda tx: tx.secrets.put(old))
    db.write(lambda tx: tx.secrets.put(new))

    assert db.read(lambda tx: tx.secrets.get("default", "HF_TOKEN")) == new
    assert db.read(lambda tx: tx.secrets.of_project("default")) == [new]
    assert db.read(lambda tx: tx.secrets.get("other", "HF_TOKEN")) is None
    assert db.write(lambda tx: tx.secrets.delete("default", "HF_TOKEN"))
    assert not db.write(lambda tx: tx.secrets.delete("default", "HF_TOKEN"))


def test_a_join_token_is_used_once_and_a_hosts_credentials_are_found(db: Database) -> None:
    """FL-D31."""
    host = a_host()
    join = a_token(scope=Scope.JOIN, project=None, labels='["lab"]')
    first = a_token(scope=Scope.HOST, project=None, host_id=host.id, expires_at=500.0)
    second = a_token(scope=Scope.HOST, project=None, host_id=host.id)
    db.each([join, first, second], lambda tx, token: tx.tokens.insert(token))

    assert db.write(lambda tx: tx.tokens.use(join.id, host.id, by="one", at=200.0))
    assert not db.write(lambda tx: tx.tokens.use(join.id, host.id, by="two", at=300.0))
    used = db.read(lambda tx: tx.tokens.get(join.id))
    assert used == join._replace(used_at=200.0, used_by="one", host_id=host.id)

    found = db.read(lambda tx: tx.tokens.of_host(host.id))
    assert found == sorted([first, second], key=lambda token: token.id)
    db.each([first, second], lambda tx, token: tx.tokens.shorten(token.id, 600.0))
    ends = {token.id: token.expires_at for token in db.read(lambda tx: tx.tokens.of_host(host.id))}
    assert ends == {first.id: 500.0, second.id: 600.0}
    db.write(lambda tx: tx.tokens.revoke(first.id, 400.0))
    assert [token.id for token in db.read(lambda tx: tx.tokens.of_host(host.id))] == [second.id]


def test_hosts_of_one_run_are_told_apart_and_found_when_it_has_ended(db: Database) -> None:
    """HOUR5-04; also where their tokens are revoked, and after they are gone their newest one."""
    open_run, ended = a_run(), a_run(state=RunState.FAILED, ended_at=50.0)
    own, working, idle = a_host(name="own"), a_host(name="working"), a_host(name="idle")
    of_working = a_token(scope=Scope.RUN, host_id=working.id, run_id=open_run.id)
    of_idle = a_token(scope=Scope.RUN, host_id=idle.id, run_id=ended.id, revoked_at=40.0)
    tokens = [a_token(scope=Scope.HOST, project=None, host_id=own.id), of_working, of_idle]
    db.each([open_run, ended], lambda tx, run: tx.runs.insert(run, "{}"))
    db.each([own, working, idle], lambda tx, host: tx.hosts.insert(host))
    db.each(tokens, lambda tx, token: tx.tokens.insert(token))

    assert db.read(lambda tx: tx.hosts.of_runs()) == {working.id: open_run.id, idle.id: ended.id}
    assert db.read(lambda tx: tx.hosts.of_ended_runs(50.0, 10)) == []
    assert db.read(lambda tx: tx.hosts.of_ended_runs(60.0, 10)) == [idle]
    db.write(lambda tx: tx.hosts.delete(idle.id))
    assert db.read(lambda tx: tx.tokens.newest_of_host(idle.id)) == of_idle
