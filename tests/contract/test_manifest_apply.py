"""Applying a manifest, on every store: what it changes, what it leaves, and that it is all or nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from contract.conftest import Database
from contract.samples import an_artifact
from corral.client.manifests.apply import Also, Declaration, ManifestSpec, Mode
from corral.core.audit import Author
from corral.core.leases.fence import expire
from corral.core.manifests.apply import Apply, ApplyResult, delete
from corral.core.manifests.plan import ManifestPlan, plan
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.claim import Claim, ClaimResult, ClaimTerms
from corral.core.queue.eligibility import Shapes
from corral.core.queue.fair_share import Shares
from corral.core.queue.lanes import Lanes
from corral.core.runs.cancel import cancel
from corral.core.runs.requeue import requeue
from corral.domain.errors import Conflict, InvalidInput
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import read_declared
from corral.domain.ids import LeaseId, RunId, new_host_id
from corral.domain.manifests import PRUNED
from corral.domain.manifests import ApplyOptions as AlsoAction
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunState
from corral.server.routes.manifests import ManifestQuery
from corral.store.transaction import Tx
from corral.wire.hosts import HostTable
from corral.wire.manifests import ApplyRequest
from corral.wire.spec.run_file import RunSpec

NOW = 1_000_000.0
BY = Author("operator:ada", "127.0.0.1", NOW)


def spec(n: int = 0, **fields: Any) -> ManifestSpec:
    group, limit = fields.pop("group", None), fields.pop("max_running", None)
    fitted = fields.pop("fitted", False)
    table = {"name": f"run-{n}", "argv": ["train", "{params.n}"], "params": {"n": n}, **fields}
    return ManifestSpec(RunSpec.model_validate(table), group, max_running=limit, fitted=fitted)


class ManifestHarness:
    """Manifests applied to a store as the server does it."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.lanes, self.shapes, self.shares = Lanes(), Shapes(), Shares()
        self.requests = 0

    def ask(
        self,
        runs: Sequence[ManifestSpec],
        *,
        mode: Mode = "apply",
        also: Sequence[Also] = (),
        name: str = "fleet",
        hosts: dict[str, dict[str, Any]] | None = None,
        sending: bool = True,
    ) -> ManifestQuery:
        tables = {key: HostTable.model_validate(table) for key, table in (hosts or {}).items()}
        whole = Declaration("default", name, runs=runs, hosts=tables)
        sent = [run.spec for run in runs] if sending else []
        # As it travels, so that what is sent is what is meant.
        text = whole.request(mode, also, sent).model_dump_json(exclude_defaults=True)
        return ManifestQuery(ApplyRequest.model_validate_json(text))

    def apply(self, *runs: ManifestSpec, **options: Any) -> ApplyResult:
        asked = self.ask(runs, **options)
        return self.db.write(Apply(asked.wanted, asked.fresh, asked.remade, BY, ServerPolicy()))

    def plan(self, *runs: ManifestSpec, **options: Any) -> ManifestPlan:
        asked = self.ask(runs, mode="plan", **options)
        return self.db.read(lambda tx: plan(tx, asked.wanted, asked.fresh))

    def run(self, done: ApplyResult, name: str) -> Run:
        run_id = next(c.run_id for c in done.plan.changes if c.name == name and c.kind == "run")
        return self.get(run_id)

    def get(self, run_id: RunId | None) -> Run:
        found = self.db.read(lambda tx: tx.runs.get(RunId(str(run_id))))
        assert found is not None
        return found

    def named(self, name: str) -> Run:
        """The newest generation of the run of this name."""
        known = self.db.read(lambda tx: tx.runs.of_manifest("default", "fleet"))
        (run_id,) = [run.id for run in known.values() if run.name == name]
        return self.get(run_id)

    def host(self, name: str = "box") -> Host:
        host = Host(new_host_id(), name, CAPABILITY, "c" * 64, 100, None, False, NOW, NOW)
        self.db.write(lambda tx: tx.hosts.insert(host))
        return host

    def claim(self, host: Host, leases: int = 1) -> ClaimResult:
        """As a server that has just started does: with no hints of its own."""
        return self.db.write(self.claiming(host, leases))

    def claiming(self, host: Host, leases: int = 1) -> Claim:
        self.requests += 1
        ask = ClaimTerms(host.id, "boot", f"claim-{self.requests}", 100, leases, False, None, None)
        lanes = Lanes()
        lanes.reconcile(self.db.read(lambda tx: tx.runs.lanes()))
        return Claim(Board(lanes, self.shapes, self.shares), ServerPolicy(), ask, lambda: NOW)

    def cancel(self, run: Run) -> None:
        self.db.write(
            lambda tx: cancel(tx, run.id, reason="", actor="user:ada", now=NOW, policy=ServerPolicy())
        )


CAPABILITY = json.dumps(
    {
        "hostname": "box",
        "os": "linux",
        "arch": "x86_64",
        "cores": 8,
        "ram_bytes": 1 << 36,
        "address": "10.0.0.1",
    }
)


@pytest.fixture
def fleet(db: Database) -> ManifestHarness:
    return ManifestHarness(db)


def actions(made: ManifestPlan | ApplyResult) -> list[tuple[str, str]]:
    changes = made.plan.changes if isinstance(made, ApplyResult) else made.changes
    return [(change.action.value, change.name) for change in changes]


def rows(db: Database) -> object:
    """Everything that an apply could have written."""

    def unit(tx: Tx) -> object:
        runs = tx.runs.page_by_id(None, 1000)
        events = [tx.events.of_run(run.id, after=0, limit=100) for run in runs]
        return runs, events, tx.manifests.page(None, 10), tx.hosts.page(None, 100), tx.audit.last()

    return db.read(unit)


def test_applying_the_same_manifest_twice_changes_nothing_the_second_time(fleet: ManifestHarness) -> None:
    """Promise 8; FL-C03: reload is idempotent, known rows keep their status."""
    runs = [spec(n, group="sweep") for n in range(3)]
    first = fleet.apply(*runs, hosts={"box": {"slots": 2}})
    before = rows(fleet.db)

    second = fleet.apply(*runs, hosts={"box": {"slots": 2}}, sending=False)

    assert actions(first) == [("new", "run-0"), ("new", "run-1"), ("new", "run-2"), ("new", "box")]
    assert [bool(change.run_id) for change in first.plan.changes] == [True, True, True, False]
    assert second.plan.changes == []
    assert second.plan.same == 3
    assert second.manifest.revision == first.manifest.revision == 1
    assert rows(fleet.db) == before


def test_a_plan_changes_nothing_and_says_what_applying_does(fleet: ManifestHarness) -> None:
    fleet.apply(spec(0), spec(1))
    before = rows(fleet.db)

    planned = fleet.plan(spec(1, priority=5), spec(2))

    assert rows(fleet.db) == before
    assert actions(planned) == [("changed", "run-1"), ("new", "run-2"), ("removed", "run-0")]
    assert actions(fleet.apply(spec(1, priority=5), spec(2))) == actions(planned)


def test_known_runs_keep_their_status_whatever_it_is(fleet: ManifestHarness) -> None:
    """FL-C03."""
    done = fleet.apply(spec(0), spec(1))
    host = fleet.host()
    running = fleet.claim(host).grants[0].run
    other = next(fleet.run(done, f"run-{n}") for n in (0, 1) if f"run-{n}" != running.name)
    fleet.cancel(other)

    again = fleet.apply(spec(0), spec(1))

    assert again.plan.changes == []
    assert [change.name for change in again.plan.ended] == [other.name]
    assert fleet.get(running.id).state is RunState.RUNNING
    assert fleet.get(other.id).state is RunState.CANCELLED


def test_a_changed_policy_is_in_effect_at_the_next_claim(fleet: ManifestHarness) -> None:
    """FL-D32: changed constraints on an existing id are defined: the same run, with the new ones."""
    first = fleet.apply(spec(0), spec(1))
    old = fleet.run(first, "run-0")
    host = fleet.host()
    far = {"resources": {"min_cores": 64}}

    done = fleet.apply(
        spec(0, **far, labels={"who": "ada"}, retries={"code": 2}, wall_limit="2h", grace=5),
        spec(1, priority=9),
    )

    (change,) = [c for c in done.plan.changes if c.name == "run-0"]
    assert {d.path: (d.old, d.new) for d in change.differences} == {
        "grace": (30.0, 5.0),
        "labels.who": (None, "ada"),
        "resources.min_cores": (None, 64),
        "retries.code": (0, 2),
        "wall_limit": (None, 7200.0),
    }
    new = fleet.get(old.id)
    assert (new.state, new.identity, new.generation) == (RunState.QUEUED, old.identity, 1)
    assert (new.wall_limit_s, new.grace_s, new.retry_code, json.loads(new.labels)) == (
        7200,
        5,
        2,
        {"who": "ada"},
    )
    kept = json.loads(fleet.db.read(lambda tx: tx.runs.spec(old.id)))
    assert kept["resources"]["min_cores"] == 64
    # The box has 8 cores: it gets the other, and nothing more.
    assert [grant.run.name for grant in fleet.claim(host, leases=5).grants] == ["run-1"]
    assert (
        fleet.apply(
            spec(0, **far, labels={"who": "ada"}, retries={"code": 2}, wall_limit="2h", grace=5),
            spec(1, priority=9),
        ).plan.changes
        == []
    )


def test_resources_that_were_fitted_to_the_hosts_of_then_do_not_change_with_the_hosts_of_now(
    fleet: ManifestHarness,
) -> None:
    first = fleet.apply(spec(0, fitted=True, resources={"min_cores": 4}))
    away = spec(0, fitted=True)
    assert fleet.plan(away).changes == []

    fleet.apply(spec(0, fitted=True, priority=3))

    run = fleet.run(first, "run-0")
    kept = json.loads(fleet.db.read(lambda tx: tx.runs.spec(run.id)))
    assert (run.priority, kept["priority"], kept["resources"]["min_cores"]) == (3, 3, 4)
    assert fleet.apply(spec(0, fitted=True, priority=3)).plan.changes == []


def test_a_claim_with_a_stale_hint_does_not_take_a_run_at_its_old_priority(fleet: ManifestHarness) -> None:
    fleet.apply(spec(0, priority=9), spec(1, priority=5))
    stale = Lanes()
    stale.reconcile(fleet.db.read(lambda tx: tx.runs.lanes()))
    # The hints are filled in as they are before the change.
    fleet.db.read(lambda tx: stale.take(tx, lambda shape: False, lambda project: 0.0))
    candidate = fleet.db.read(lambda tx: stale.take(tx, lambda shape: True, lambda project: 0.0))
    assert candidate is not None
    stale.put_back([candidate])
    fleet.apply(spec(0, priority=1), spec(1, priority=5))
    host = fleet.host()

    ask = ClaimTerms(host.id, "boot", "stale", 100, 1, False, None, None)
    got = fleet.db.write(Claim(Board(stale, fleet.shapes, fleet.shares), ServerPolicy(), ask, lambda: NOW))

    assert [grant.run.name for grant in got.grants] == ["run-1"]


def test_a_rename_and_another_group_keep_the_run(fleet: ManifestHarness) -> None:
    first = fleet.apply(spec(0, group="a"), spec(1, group="a"))
    old = fleet.run(first, "run-0")

    done = fleet.apply(spec(0, name="other", group="b"), spec(1, group="a"))

    (change,) = done.plan.changes
    assert [(d.path, d.old, d.new) for d in change.differences] == [
        ("name", "run-0", "other"),
        ("group", "a", "b"),
    ]
    new = fleet.get(old.id)
    assert new.name == "other"
    assert new.group_id != old.group_id == fleet.named("run-1").group_id
    assert fleet.apply(spec(0, name="other", group="b"), spec(1, group="a")).plan.changes == []


def test_a_removed_run_is_held_and_no_host_gets_it_until_it_is_back(fleet: ManifestHarness) -> None:
    """FL-D32: a removed job is not claimable. FL-C03: it stays until cancelled."""
    first = fleet.apply(spec(0), spec(1))
    host = fleet.host()

    removed = fleet.apply(spec(1))

    assert actions(removed) == [("removed", "run-0")]
    gone = fleet.run(first, "run-0")
    assert (gone.state, gone.hold_reason) == (RunState.HELD, "removed")
    assert [grant.run.name for grant in fleet.claim(host, leases=5).grants] == ["run-1"]
    again = fleet.apply(spec(1))
    assert (again.plan.changes, [c.name for c in again.plan.gone]) == ([], ["run-0"])

    back = fleet.apply(spec(0), spec(1))

    assert actions(back) == [("restored", "run-0")]
    assert fleet.get(gone.id).hold_reason is None
    assert [grant.run.id for grant in fleet.claim(host, leases=5).grants] == [gone.id]


def test_a_removed_run_that_runs_goes_on_but_is_not_queued_again(fleet: ManifestHarness) -> None:
    """FL-D32."""
    fleet.apply(spec(0), spec(1))
    host = fleet.host()
    (grant,) = fleet.claim(host).grants
    other = spec(1) if grant.run.name == "run-0" else spec(0)

    fleet.apply(other)

    assert fleet.get(grant.run.id).state is RunState.RUNNING
    late = NOW + 1000
    fleet.db.write(
        lambda tx: expire(tx, grant.lease.id, now=late, policy=ServerPolicy(), shares=fleet.shares)
    )
    assert [g.run.name for g in fleet.claim(host, leases=5).grants] == [other.spec.name]
    lost = fleet.get(grant.run.id)
    assert (lost.state, lost.hold_reason) == (RunState.HELD, "removed")


def test_pruning_cancels_what_waits_and_what_runs_only_when_asked(fleet: ManifestHarness) -> None:
    fleet.apply(*(spec(n) for n in range(3)))
    host = fleet.host()
    (grant,) = fleet.claim(host).grants
    waiting = {f"run-{n}" for n in range(3)} - {grant.run.name}

    pruned = fleet.apply(spec(9), also=["prune"])

    assert {(a, n) for a, n in actions(pruned) if a == "pruned"} == {("pruned", name) for name in waiting}
    assert ("removed", grant.run.name) in actions(pruned)
    assert fleet.get(grant.run.id).state is RunState.RUNNING
    assert all(fleet.named(name).state is RunState.CANCELLED for name in waiting)
    stopped = fleet.apply(spec(9), also=["prune", "prune_running"])
    assert actions(stopped) == [("stopped", grant.run.name)]
    assert fleet.get(grant.run.id).state is RunState.STOPPING
    assert fleet.apply(spec(9), also=["prune", "prune_running"]).plan.changes == []


def test_a_pruned_run_that_comes_back_is_run_again(fleet: ManifestHarness) -> None:
    first = fleet.apply(spec(0), spec(1))
    fleet.apply(spec(1), also=["prune"])

    back = fleet.apply(spec(0), spec(1), sending=False)

    assert actions(back) == [("again", "run-0")]
    new = fleet.named("run-0")
    assert (new.state, new.generation) == (RunState.QUEUED, 2)
    assert fleet.run(first, "run-0").state is RunState.CANCELLED


def test_what_failed_is_run_again_as_the_next_generation_only_when_asked(fleet: ManifestHarness) -> None:
    first = fleet.apply(spec(0), spec(1))
    fleet.cancel(fleet.run(first, "run-0"))
    assert fleet.apply(spec(0), spec(1)).plan.changes == []

    retried = fleet.apply(spec(0, priority=7), spec(1), also=["retry_failed"])

    assert actions(retried) == [("again", "run-0")]
    new = fleet.named("run-0")
    assert (new.generation, new.priority, new.state) == (2, 7, RunState.QUEUED)
    assert new.identity == fleet.run(first, "run-0").identity
    assert fleet.apply(spec(0, priority=7), spec(1), also=["retry_failed"]).plan.changes == []


def test_a_run_that_was_queued_again_by_hand_is_known(fleet: ManifestHarness) -> None:
    first = fleet.apply(spec(0))
    old = fleet.run(first, "run-0")
    fleet.cancel(old)
    fleet.db.write(lambda tx: requeue(tx, old.id, request_id="again", principal="user:ada", now=NOW))

    again = fleet.apply(spec(0), also=["retry_failed"])

    assert again.plan.changes == []
    assert fleet.named("run-0").generation == 2


def test_another_manifest_with_the_same_work_is_left_alone(fleet: ManifestHarness) -> None:
    fleet.apply(spec(0), name="one")
    done = fleet.apply(spec(0), name="two")
    fleet.apply(spec(1), name="two", also=["prune"])

    mine = fleet.db.read(lambda tx: tx.runs.of_manifest("default", "one"))
    assert actions(done) == [("new", "run-0")]
    assert [run.state for run in mine.values()] == [RunState.QUEUED]


def test_hosts_are_declared_changed_and_let_go(fleet: ManifestHarness) -> None:
    """FL-C05: the manifest declares per host what it may take; of one that has not enrolled too."""
    here = fleet.host("here")
    fleet.apply(spec(0), hosts={"here": {"slots": 2}, "later": {"gpus": 1}})

    found = {host.name: host for host in fleet.db.read(lambda tx: tx.hosts.page(None, 10))}
    assert found["here"].id == here.id
    assert read_declared(found["here"].declared).slots == 2
    assert (found["here"].declared_by, found["later"].last_seen_at) == ("default/fleet", None)

    changed = fleet.apply(spec(0), hosts={"here": {"slots": 1, "deny": ["kind:train"]}})

    assert actions(changed) == [("changed", "here"), ("removed", "later")]
    (differences,) = [c.differences for c in changed.plan.changes if c.name == "here"]
    assert [(d.path, d.old, d.new) for d in differences] == [("deny", None, ["kind:train"]), ("slots", 2, 1)]
    found = {host.name: host for host in fleet.db.read(lambda tx: tx.hosts.page(None, 10))}
    assert (found["later"].declared, found["later"].declared_by) == (None, None)


def test_a_host_of_two_manifests_is_refused_and_both_are_named(fleet: ManifestHarness) -> None:
    fleet.apply(spec(0), name="one", hosts={"box": {"slots": 2}})
    before = rows(fleet.db)

    with pytest.raises(InvalidInput, match=r"hosts\.box.*default/one.*default/two"):
        fleet.apply(spec(1), name="two", hosts={"box": {"slots": 3}})

    assert rows(fleet.db) == before
    assert fleet.plan(spec(1), name="two", hosts={"box": {}}).problems[0].path == "hosts.box"


def test_one_run_that_names_what_is_not_there_keeps_all_from_being_queued(fleet: ManifestHarness) -> None:
    before = rows(fleet.db)

    with pytest.raises(InvalidInput, match="HF_TOKEN"):
        fleet.apply(spec(0), spec(1, secrets=["HF_TOKEN"]), hosts={"box": {}})

    assert rows(fleet.db) == before


def test_a_gang_that_no_host_could_hold_is_refused_as_when_it_is_submitted(fleet: ManifestHarness) -> None:
    fleet.host()
    before = rows(fleet.db)
    wide = spec(1, replicas={"min": 101, "max": 101})

    with pytest.raises(InvalidInput, match=r"`runs\.run-1\.replicas` asks for 101 ranks at once; all hosts"):
        fleet.apply(spec(0), wide)

    assert rows(fleet.db) == before
    elastic = spec(1, replicas={"min": 1, "max": 101})
    assert actions(fleet.apply(spec(0), elastic)) == [("new", "run-0"), ("new", "run-1")]


def test_an_executor_that_is_not_there_is_refused_in_new_and_in_changed_runs(fleet: ManifestHarness) -> None:
    elsewhere = {"placement": {"executors": ["elsewhere"]}}
    words = "`runs.run-0.placement.executors` names elsewhere; there is no executor but `fleet`"
    with pytest.raises(InvalidInput, match=words):
        fleet.apply(spec(0, **elsewhere))
    fleet.apply(spec(0))
    before = rows(fleet.db)

    with pytest.raises(InvalidInput, match=words):
        fleet.apply(spec(0, **elsewhere))

    assert rows(fleet.db) == before


def test_a_spec_that_is_lacking_is_named_and_nothing_is_written(fleet: ManifestHarness) -> None:
    asked = fleet.ask([spec(0)], sending=False)
    made = fleet.db.read(lambda tx: plan(tx, asked.wanted, asked.fresh))

    assert made.lacking(asked.fresh) == list(asked.wanted.entries)
    before = rows(fleet.db)
    with pytest.raises(Conflict, match="not known"):
        fleet.apply(spec(0), sending=False)
    assert rows(fleet.db) == before


def test_two_applies_at_once_come_one_after_the_other(fleet: ManifestHarness) -> None:
    asked = [fleet.ask([spec(n) for n in range(20)]) for _ in range(4)]

    async def together() -> list[ApplyResult]:
        units = [Apply(one.wanted, one.fresh, one.remade, BY, ServerPolicy()) for one in asked]
        return await asyncio.gather(*(fleet.db.store.write(unit) for unit in units))

    done = fleet.db.do(together())

    assert sorted(len(one.plan.changes) for one in done) == [0, 0, 0, 20]
    assert len(fleet.db.read(lambda tx: tx.runs.of_manifest("default", "fleet"))) == 20


def test_an_apply_is_in_the_audit_and_a_run_knows_what_changed(fleet: ManifestHarness) -> None:
    first = fleet.apply(spec(0), hosts={"box": {}})
    entry = fleet.db.read(lambda tx: tx.audit.last())
    assert entry is not None
    assert (entry.action, entry.target, entry.actor) == ("manifest.apply", "default/fleet", BY.actor)
    assert json.loads(entry.data)["new runs"] == 1

    fleet.apply(spec(0, priority=3), hosts={"box": {}})

    run = fleet.run(first, "run-0")
    events = fleet.db.read(lambda tx: tx.events.of_run(run.id, after=0, limit=10))
    assert [event.type for event in events] == ["submit", "changed"]
    assert json.loads(events[-1].data) == {"priority": [0, 3]}


def test_a_manifest_is_deleted_once_none_of_its_runs_waits_or_runs(fleet: ManifestHarness) -> None:
    first = fleet.apply(spec(0), spec(1), hosts={"box": {"slots": 1}})
    (grant,) = fleet.claim(fleet.db.read(lambda tx: tx.hosts.by_name("box")) or fleet.host("x")).grants or (
        None,
    )
    assert grant is None, "the box has not reported yet"

    def forget(*also: AlsoAction) -> None:
        chosen = frozenset(also)
        fleet.db.write(lambda tx: delete(tx, "default", "fleet", also=chosen, by=BY, policy=ServerPolicy()))

    with pytest.raises(Conflict, match="2 runs"):
        forget()
    forget(AlsoAction.PRUNE)

    assert fleet.run(first, "run-0").state is RunState.CANCELLED
    assert fleet.db.read(lambda tx: tx.manifests.get("default", "fleet")) is None
    box = fleet.db.read(lambda tx: tx.hosts.by_name("box"))
    assert box is not None
    assert box.declared is None


def test_equal_bytes_are_recorded_for_each_run_that_reads_them(fleet: ManifestHarness) -> None:
    """FL-D18: two jobs with equal bytes both have their provenance."""
    kept = an_artifact()
    fleet.db.write(lambda tx: tx.artifacts.insert(kept, []))
    runs = [spec(n, inputs={"data": kept.id}, input_digests={"data": kept.digest}) for n in range(2)]

    done = fleet.apply(*runs)

    ids = [fleet.run(done, f"run-{n}").id for n in range(2)]
    assert fleet.db.read(lambda tx: [tx.artifacts.used_by(run_id) for run_id in ids]) == [[kept.id]] * 2


def test_a_run_waits_for_another_of_the_manifest_and_for_its_next_generation(fleet: ManifestHarness) -> None:
    parent, child = spec(0), spec(1, after=["run-0"])
    first = fleet.apply(parent, child)

    old = fleet.run(first, "run-1")
    assert (old.state, old.hold_reason) == (RunState.HELD, f"waits for {fleet.run(first, 'run-0').id}")
    assert fleet.apply(parent, child).plan.changes == []
    fleet.cancel(fleet.run(first, "run-0"))
    assert fleet.get(old.id).state is RunState.FAILED

    fleet.apply(parent, child, also=["retry_failed"])

    new, again = fleet.named("run-0"), fleet.named("run-1")
    assert (new.state, new.generation) == (RunState.QUEUED, 2)
    assert (again.state, again.generation) == (RunState.HELD, 2)
    assert again.hold_reason == f"waits for {new.id}"


def test_a_child_that_is_removed_and_comes_back_waits_again(fleet: ManifestHarness) -> None:
    parent, child = spec(0), spec(1, after=["run-0"])
    fleet.apply(parent, child)
    fleet.apply(parent)
    assert fleet.named("run-1").hold_reason == "removed"

    fleet.apply(parent, child)

    back = fleet.named("run-1")
    assert (back.state, back.hold_reason) == (RunState.HELD, f"waits for {fleet.named('run-0').id}")


def test_runs_that_wait_for_each_other_or_for_nobody_are_refused(fleet: ManifestHarness) -> None:
    with pytest.raises(InvalidInput, match="wait for each other"):
        fleet.apply(spec(0, after=["run-1"]), spec(1, after=["run-0"]))
    with pytest.raises(InvalidInput, match="nobody"):
        fleet.apply(spec(0, after=["nobody"]))


def test_a_group_has_as_many_places_as_the_manifest_says_now(fleet: ManifestHarness) -> None:
    def queued() -> int:
        known = fleet.db.read(lambda tx: tx.runs.of_manifest("default", "fleet"))
        return sum(run.state is RunState.QUEUED for run in known.values())

    fleet.apply(*(spec(n, group="g", max_running=2) for n in range(5)))
    assert queued() == 2
    assert fleet.apply(*(spec(n, group="g", max_running=2) for n in range(5))).plan.changes == []

    changed = fleet.apply(*(spec(n, group="g", max_running=4) for n in range(5)))

    assert actions(changed) == [("changed", "g")]
    assert queued() == 4

    fleet.apply(*(spec(n, group="g") for n in range(5)))

    assert queued() == 5, "a limit that is taken away holds nobody"


def test_a_limit_that_is_lowered_holds_at_the_next_claim(fleet: ManifestHarness) -> None:
    def states() -> dict[str, str]:
        known = fleet.db.read(lambda tx: tx.runs.of_manifest("default", "fleet"))
        return {run.name: str(run.state) for run in known.values()}

    fleet.apply(*(spec(n, group="g", max_running=4) for n in range(5)))
    host = fleet.host()
    first = {grant.run.name for grant in fleet.claim(host, leases=2).grants}
    assert first == {"run-0", "run-1"}, "in the order of the manifest"
    assert sorted(states().values()) == ["held", "queued", "queued", "running", "running"]

    lowered = fleet.apply(*(spec(n, group="g", max_running=1) for n in range(5)))

    assert actions(lowered) == [("changed", "g")]
    assert states() == {f"run-{n}": "running" if f"run-{n}" in first else "held" for n in range(5)}
    assert fleet.claim(host, leases=5).grants == ()
    assert fleet.apply(*(spec(n, group="g", max_running=1) for n in range(5))).plan.changes == []


def test_a_retry_does_not_start_beyond_a_limit_that_was_lowered_meanwhile(fleet: ManifestHarness) -> None:
    fleet.apply(*(spec(n, group="g", max_running=2) for n in range(3)))
    host = fleet.host()
    grants = fleet.claim(host, leases=5).grants
    fleet.apply(*(spec(n, group="g", max_running=1) for n in range(3)))

    def lose(lease_id: LeaseId) -> None:
        fleet.db.write(
            lambda tx: expire(tx, lease_id, now=NOW + 1000, policy=ServerPolicy(), shares=fleet.shares)
        )

    lose(grants[0].lease.id)
    assert fleet.get(grants[0].run.id).state is RunState.QUEUED
    assert fleet.claim(host, leases=5).grants == ()
    waiting = fleet.get(grants[0].run.id)
    assert (waiting.state, waiting.hold_reason) == (RunState.HELD, "concurrency")

    lose(grants[1].lease.id)
    assert len(fleet.claim(host, leases=5).grants) == 1
    assert fleet.claim(host, leases=5).grants == ()


def test_claims_at_once_never_start_more_than_a_lowered_limit(fleet: ManifestHarness) -> None:
    """On Postgres these are transactions side by side, as of several servers."""
    fleet.apply(*(spec(n, group="g", max_running=6) for n in range(6)))
    group_id = fleet.named("run-0").group_id
    assert group_id is not None
    # The limit alone: those that are queued already are left to the claims.
    fleet.db.write(lambda tx: tx.groups.limit(group_id, 2))
    claims = [fleet.claiming(fleet.host(f"box-{n}"), leases=2) for n in range(4)]

    async def at_once() -> list[ClaimResult]:
        return list(await asyncio.gather(*(fleet.db.store.write(claim) for claim in claims)))

    granted = [grant.run.id for claimed in fleet.db.do(at_once()) for grant in claimed.grants]

    assert len(granted) == 2
    known = fleet.db.read(lambda tx: tx.runs.of_manifest("default", "fleet"))
    assert sum(run.state is RunState.RUNNING for run in known.values()) == 2


def test_runs_that_are_moved_into_a_limited_group_wait_for_its_places(fleet: ManifestHarness) -> None:
    fleet.apply(spec(0, group="g", max_running=1), *(spec(n) for n in (1, 2)), spec(3, group="other"))
    host = fleet.host()

    moved = fleet.apply(*(spec(n, group="g", max_running=1) for n in range(4)))

    runs = [fleet.named(f"run-{n}") for n in range(4)]
    assert sorted(str(run.state) for run in runs) == ["held", "held", "held", "queued"]
    told = {change.name: change.state for change in moved.plan.changes}
    assert told == {run.name: run.state for run in runs[1:]}
    assert len(fleet.claim(host, leases=5).grants) == 1
    assert fleet.claim(host, leases=5).grants == ()


def test_a_child_pruned_with_its_parent_was_pruned_and_comes_back_with_it(fleet: ManifestHarness) -> None:
    chain = [spec(0), spec(1, after=["run-0"]), spec(2, after=["run-1", "run-0"]), spec(3)]
    fleet.apply(*chain)

    fleet.apply(spec(3), also=["prune"])

    names = ["run-0", "run-1", "run-2"]
    assert [(str(run.state), run.reason, run.detail) for run in map(fleet.named, names)] == [
        ("cancelled", "cancelled", PRUNED)
    ] * 3
    back = fleet.apply(*chain, sending=False)
    assert {(change.action.value, change.name) for change in back.plan.changes} == {
        ("again", name) for name in names
    }
    assert [(str(run.state), run.generation) for run in map(fleet.named, names)] == [
        ("queued", 2),
        ("held", 2),
        ("held", 2),
    ]
    # Deleting the manifest prunes the same way.
    fleet.db.write(
        lambda tx: delete(
            tx, "default", "fleet", also=frozenset({AlsoAction.PRUNE}), by=BY, policy=ServerPolicy()
        )
    )
    assert {fleet.named(name).detail for name in names} == {PRUNED}


def test_thousands_of_runs_are_one_apply(fleet: ManifestHarness) -> None:
    runs = [spec(n, group="grid", labels={"n": str(n % 7)}) for n in range(3_000)]

    first = fleet.apply(*runs)
    second = fleet.apply(*runs, sending=False)
    changed = fleet.apply(*(spec(n, group="grid", priority=n % 2) for n in range(3_000)), sending=False)

    assert len(first.plan.changes) == 3_000
    assert (second.plan.changes, second.plan.same) == ([], 3_000)
    assert {change.action.value for change in changed.plan.changes} == {"changed"}
    assert fleet.db.read(lambda tx: dict(tx.runs.counts())) == {"queued": 3_000}
