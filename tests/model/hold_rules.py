"""Runs that somebody holds, and runs that wait for others."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from model.model import Run
from model.user_rules import UserRules, pick, render, specs

ORPHANED = {"fail": "failed", "cancel": "cancelled"}


class HoldRules(UserRules):
    def _childless(self) -> list[Run]:
        parents = {parent.id for run in self.model.runs.values() for parent, _ in run.parents}
        return [run for run in self._by_age() if run.id not in parents]

    @precondition(lambda self: self._room() and self._childless())
    @rule(which=pick, spec=specs, on_failure=st.sampled_from(sorted(ORPHANED)))
    def submit_a_child(self, which: int, spec: dict[str, Any], on_failure: str) -> None:
        """It starts only when its parent has succeeded; otherwise it ends as was asked (FL-D06)."""
        found = self._childless()
        parent = found[which % len(found)]
        after = [{"run": parent.id, "on_failure": on_failure}]
        body = {
            "request_id": self.new_request(),
            "runs": [{**render(parent.project, spec), "after": after}],
        }
        (run_id,) = self.call("POST", "runs", body, status=201).body["ids"]
        self._born(run_id, parent.project, spec)
        child = self.model.runs[run_id]
        child.state, child.held_for, child.parents = "held", "parents", [(parent, on_failure)]
        child.history = [("submit", "held")]
        self.settle_children()
        self._no_two_of_an_age()
        assert self.call("GET", f"runs/{run_id}").body["state"] == child.state

    @precondition(lambda self: bool(self.model.runs))
    @rule(which=pick)
    def hold(self, which: int) -> None:
        """Whatever it waits for; one that runs or has ended cannot be held."""
        run = self._by_age()[which % len(self.model.runs)]
        may = run.state in ("queued", "held")
        self.call("POST", f"runs/{run.id}/hold", status=200 if may else 409)
        if may:
            self.model.hold(run)

    @precondition(lambda self: any(run.state == "held" for run in self.model.runs.values()))
    @rule(which=pick)
    def release(self, which: int) -> None:
        """Back to what it waited for before, or into the queue."""
        held = [run for run in self._by_age() if run.state == "held"]
        run = held[which % len(held)]
        deaths = self.world.deaths
        reply = self.world.call("POST", f"runs/{run.id}/release")
        self.note_deaths()
        if run.held_for == "parents":
            assert reply.status == 409, reply
            return
        # Killed after its commit, the first try released it; the second finds it queued or ended.
        assert reply.status == 200 or (reply.status == 409 and self.world.deaths > deaths), reply
        self.model.release(run, self.now)
        self._no_two_of_an_age()
