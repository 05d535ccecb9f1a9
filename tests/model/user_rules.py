"""What users and operators do."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from corral.core.runs.dependencies import hold_over_limit, let_in
from corral.domain.ids import GroupId
from corral.store.transaction import Tx
from model import sweeping
from model.base import PROJECTS, Base
from model.model import Group, Run
from model.tables import FINAL, LEASED

MOST_RUNS = 9
RESOURCES: dict[str, dict[str, Any]] = {
    "any": {},
    "gpu": {"gpus": 1},
    "big": {"labels": ["big"]},
    "cuda": {"prefer": "cuda"},
    "pair": {},
}

pick = st.integers(0, 60)
specs = st.fixed_dictionaries(
    {
        "shape": st.sampled_from(["any", "any", "gpu", "big", "cuda"]),
        "priority": st.sampled_from([0, 0, 5]),
        "infrastructure": st.sampled_from([0, 1, 2, 5]),
        "memory": st.integers(0, 1),
        "code": st.integers(0, 2),
        "wall": st.sampled_from([None, None, 40, 500]),
        "stall": st.sampled_from([None, None, 35]),
        "grace": st.sampled_from([0, 20]),
    }
)


def render(project: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "model",
        "project": project,
        "argv": ["true"],
        "resources": RESOURCES[spec["shape"]],
        "replicas": 2 if spec["shape"] == "pair" else 1,
        "retries": {key: spec[key] for key in ("infrastructure", "memory", "code")},
        "wall_limit": spec["wall"],
        "stall_limit": spec["stall"],
        "grace": spec["grace"],
        "priority": spec["priority"],
        "secrets": ["KEY"] if project == "alpha" else [],
    }


class UserRules(Base):
    def _room(self) -> bool:
        return len(self.model.runs) < MOST_RUNS

    @initialize(spec=specs, other=specs, with_gang=st.booleans())
    def there_is_work(self, spec: dict[str, Any], other: dict[str, Any], with_gang: bool) -> None:
        if with_gang:
            self.submit_a_gang("alpha", spec)
        self.submit("alpha", {**spec, "shape": "any"}, 2)
        self.submit("beta", {**other, "shape": "any"}, 1)

    @precondition(_room)
    @rule(project=st.sampled_from(PROJECTS), spec=specs, count=st.sampled_from([1, 1, 1, 2, 3]))
    def submit(self, project: str, spec: dict[str, Any], count: int) -> None:
        """One run or a group; sent twice it is one submission (FL-D30), changed it is refused."""
        body = {"request_id": self.new_request(), "runs": [render(project, spec)] * count}
        answer = self.call("POST", "runs", body, status=201).body
        assert len(set(answer["ids"])) == count
        assert (answer["group_id"] is not None) == (count > 1)
        for run_id in answer["ids"]:
            assert run_id not in self.model.runs
            self._born(run_id, project, spec)
        self._no_two_of_an_age()
        assert self.call("POST", "runs", body, status=201).body == answer
        other = {**body, "runs": [render(project, {**spec, "priority": 7})] * count}
        assert self.call("POST", "runs", other, status=409).code == "conflict"

    @precondition(_room)
    @rule(project=st.sampled_from(PROJECTS), spec=specs)
    def submit_a_gang(self, project: str, spec: dict[str, Any]) -> None:
        """Two ranks; refused where all hosts that are known together have room for only one."""
        spec = {**spec, "shape": "pair"}
        known = [host for host in self.model.hosts if host.seen_at is not None and not host.revoked]
        places = sum(host.room for host in known if host.admits(project))
        body = {"request_id": self.new_request(), "runs": [render(project, spec)]}
        if known and places < 2:
            assert "holds" in self.call("POST", "runs", body, status=422).body["message"]
            return
        (run_id,) = self.call("POST", "runs", body, status=201).body["ids"]
        self._born(run_id, project, spec)
        self._no_two_of_an_age()

    @precondition(_room)
    @rule(
        project=st.sampled_from(PROJECTS),
        spec=specs,
        count=st.integers(2, 4),
        most=st.sampled_from([1, 1, 2]),
    )
    def submit_into_a_limited_group(self, project: str, spec: dict[str, Any], count: int, most: int) -> None:
        """No more of them have a place than the group allows; the others come in order."""
        runs = [render(project, spec)] * count
        body = {"request_id": self.new_request(), "runs": runs, "max_running": most}
        answer = self.call("POST", "runs", body, status=201).body
        group = Group(most, answer["group_id"])
        self.model.groups.append(group)
        for index, run_id in enumerate(answer["ids"]):
            self._born(run_id, project, spec)
            run = self.model.runs[run_id]
            run.ready_at += index * 1e-6
            run.joins(group)
        self._no_two_of_an_age()
        assert self.call("POST", "runs", body, status=201).body == answer

    @precondition(lambda self: self.model.groups)
    @rule(which=pick, most=st.integers(1, 3))
    def change_the_limit_of_a_group(self, which: int, most: int) -> None:
        """As a manifest does; it holds at the next claim."""
        group = self.model.groups[which % len(self.model.groups)]

        def unit(tx: Tx) -> None:
            tx.groups.limit(GroupId(group.id), most)
            hold_over_limit(tx, GroupId(group.id), actor="operator:operator", now=self.now)
            let_in(tx, GroupId(group.id), now=self.now, unlimited=True)

        self.world.write(unit)
        group.limit(most)
        self._no_two_of_an_age()

    @precondition(lambda self: self._room() and self.model.runs)
    @rule(
        spec=specs,
        which=st.lists(pick, min_size=1, max_size=2),
        on_failure=st.sampled_from(["fail", "cancel", "run"]),
    )
    def submit_after(self, spec: dict[str, Any], which: list[int], on_failure: str) -> None:
        """A run that comes after others starts when they have succeeded, and ends as is stated (FL-D06)."""
        found = self._by_age()
        first = found[which[0] % len(found)]
        parents = {run.id: run for n in which if (run := found[n % len(found)]).project == first.project}
        after = [{"run": run_id, "on_failure": on_failure} for run_id in parents]
        asked = {**render(first.project, spec), "after": after}
        body = {"request_id": self.new_request(), "runs": [asked]}
        answer = self.call("POST", "runs", body, status=201).body
        (run_id,) = answer["ids"]
        self._born(run_id, first.project, spec)
        self.model.runs[run_id].comes_after([(run, on_failure) for run in parents.values()])
        self._no_two_of_an_age()
        assert self.call("POST", "runs", body, status=201).body == answer

    @precondition(lambda self: bool(self.model.runs))
    @rule(which=pick)
    def hold(self, which: int) -> None:
        run = self._by_age()[which % len(self.model.runs)]
        before = len(run.history)
        done = run.hold()
        reply = self.world.call("POST", f"runs/{run.id}/hold")
        self.note_deaths()
        assert reply.status == (200 if done else 409), reply
        assert len(run.history) >= before

    @precondition(lambda self: bool(self.model.runs))
    @rule(which=pick)
    def release(self, which: int) -> None:
        """What somebody held, or waits between two tries; what waits for parents is refused."""
        found = [run for run in self._by_age() if run.state == "held"] or self._by_age()
        run = found[which % len(found)]
        may = run.state == "held" and run.held_for not in ("parents", "group")
        deaths = self.world.deaths
        reply = self.world.call("POST", f"runs/{run.id}/release")
        self.note_deaths()
        # Of a call that was cut short after its commit the second finds it done.
        assert reply.status == (200 if may else 409) or (may and self.world.deaths > deaths), reply
        if not may:
            return
        if run.held_for is None:
            sweeping.release(run)
        else:
            run.look()
            if run.state in FINAL:
                run.settle_children()

    def _born(self, run_id: str, project: str, spec: dict[str, Any]) -> None:
        self.model.runs[run_id] = Run(
            id=run_id,
            project=project,
            shape=spec["shape"],
            priority=spec["priority"],
            budgets={key: spec[key] for key in ("infrastructure", "memory", "code")},
            wall_s=spec["wall"],
            stall_s=spec["stall"],
            grace_s=spec["grace"],
            ready_at=self.now,
            size=2 if spec["shape"] == "pair" else 1,
            clock=lambda: self.now,
        )

    def _no_two_of_an_age(self) -> None:
        # Ties are broken by random ids, and a machine must do the same again when it is replayed. Steps
        # that grow are never undone by a jump of the clock.
        self.world.clock.advance(len(self.model.runs) / 1024)

    def _by_age(self) -> list[Run]:
        # Ids are random: by age, the same draws name the same run again when a failure is replayed.
        return sorted(self.model.runs.values(), key=lambda run: run.age)

    def _any_run(self) -> bool:
        return bool(self.model.runs)

    def _worth_cancelling(self) -> list[Run]:
        # Leased runs, and now and then one that waits or has ended: a queue that is emptied proves little.
        return [run for run in self._by_age() if run.state in LEASED] or self._by_age()[-1:]

    @precondition(lambda self: bool(self.model.runs))
    @rule(which=pick)
    def cancel(self, which: int) -> None:
        found = self._worth_cancelling()
        run = found[which % len(found)]
        was, deaths = run.state, self.world.deaths
        reply = self.world.call("POST", f"runs/{run.id}/cancel", {"reason": "the model"})
        self.note_deaths()
        done = self.model.cancel(run, self.now)
        if done and was in ("held", "queued") and self.world.deaths > deaths:
            # It may have been cancelled by the call that was cut short; then the second finds it final.
            assert reply.status in (200, 409)
            return
        assert reply.status == (200 if done else 409), reply
        if done:
            assert reply.body["state"] == run.state

    @precondition(lambda self: self._room() and self.model.runs)
    @rule(which=pick)
    def requeue(self, which: int) -> None:
        """The next generation is a run of its own; the old one stays as it ended. Others are refused."""
        old = self._by_age()[which % len(self.model.runs)]
        body = {"request_id": self.new_request()}
        if old.state not in FINAL:
            assert self.call("POST", f"runs/{old.id}/requeue", body, status=409).code == "conflict"
            return
        if any(p.state in ("failed", "cancelled") and what != "run" for p, what in old.parents):
            assert self.call("POST", f"runs/{old.id}/requeue", body, status=409).code == "conflict"
            return
        answer = self.call("POST", f"runs/{old.id}/requeue", body, status=201).body
        (new_id,) = answer["ids"]
        old.note("requeued_as")
        self.model.runs[new_id] = Run(
            new_id,
            old.project,
            old.shape,
            old.priority,
            old.budgets,
            old.wall_s,
            old.stall_s,
            old.grace_s,
            ready_at=self.now,
            generation=old.generation + 1,
            size=old.size,
            clock=lambda: self.now,
        )
        new = self.model.runs[new_id]
        if old.parents:
            new.comes_after(old.parents)
        if old.group is not None:
            new.joins(old.group)
        self._no_two_of_an_age()
        assert self.call("POST", f"runs/{old.id}/requeue", body, status=201).body == answer
        assert self.call("GET", f"runs/{new_id}").body["generation"] == old.generation + 1

    @rule()
    def drain_or_resume(self) -> None:
        """A drained host keeps what it runs and is given nothing new (FL-D44)."""
        found = self.model.hosts[1]
        found.draining = not found.draining
        verb = "drain" if found.draining else "resume"
        assert self.call("POST", f"hosts/{found.name}/{verb}").body["draining"] is found.draining
        if not found.draining:
            found.forgive()

    @rule()
    def drain_at_once(self) -> None:
        """What runs there is asked to yield, and goes on elsewhere free of charge (FL-D05)."""
        found = self.model.hosts[1]
        found.draining = True
        self.call("POST", f"hosts/{found.name}/drain?stop=all")
        for lease in self.model.live(host=found):
            if lease.run.state == "running":
                self.model.ask_to_stop(lease.run, "preempt", "yielded", self.now)

    @precondition(_any_run)
    @rule(which=pick)
    def read(self, which: int) -> None:
        run = self._by_age()[which % len(self.model.runs)]
        shown = self.call("GET", f"runs/{run.id}").body
        assert (shown["state"], shown["attempt"], shown["artifact_id"]) == (
            run.state,
            run.attempt,
            run.result,
        )
        assert shown["retries_used"] == run.used
        assert len(shown["attempts"]) == run.attempt
        listed = self.call("GET", f"runs?project={run.project}&state={run.state}").body["items"]
        assert {item["id"] for item in listed} == {
            r.id for r in self.model.runs.values() if (r.project, r.state) == (run.project, run.state)
        }
        self.check_logs(run)
