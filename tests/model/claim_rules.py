"""How workers come by leases: claims, lost replies, new boots."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from corral.core.queue.grants import ASSIGNED
from corral.domain.ids import LeaseId, RunId
from model.base import Base
from model.model import AGAIN_S, Host, Run
from model.tables import LEASED

pick = st.integers(0, 60)


def capability(host: Host) -> dict[str, Any]:
    return {
        "hostname": host.name,
        "os": "linux",
        "arch": "x86_64",
        "cores": 8,
        "gpus": [{"index": i, "name": "H100"} for i in range(host.gpus)],
        "labels": list(host.labels),
        "address": "10.0.0.1",
    }


def _as_places_allow(runs: list[Run]) -> list[Run]:
    """Of a group only as many as it has places for, by rank."""
    taken: dict[str, int] = {}
    found = []
    for run in sorted(runs, key=lambda run: (-run.priority, run.age)):
        if run.group is not None:
            running = sum(other.state in LEASED for other in run.group.runs)
            taken[run.group.id] = taken.get(run.group.id, running) + 1
            if taken[run.group.id] > run.group.most:
                continue
        found.append(run)
    return found


class ClaimRules(Base):
    def __init__(self) -> None:
        super().__init__()
        self.claims: list[tuple[Host, dict[str, Any]]] = []

    @rule(host=st.integers(0, 2))
    def a_host_polls(self, host: int) -> None:
        found = self.model.hosts[host]
        if found.revoked:
            self.call("POST", "claims", self._body(found, 1), host=found, status=401)
        else:
            self._claim(found, self._body(found, 1))

    def _hungry(self) -> list[Host]:
        return [host for host in self.model.hosts if self.model.takeable(host, self.now)]

    @precondition(lambda self: bool(self._hungry()))
    @rule(which=pick, most=st.integers(1, 2))
    def a_host_that_fits_polls(self, which: int, most: int) -> None:
        found = self._hungry()
        host = found[which % len(found)]
        self._claim(host, self._body(host, most))

    def _a_gang_waits(self) -> bool:
        return any(run.size > 1 and run.state == "queued" for run in self.model.runs.values())

    @precondition(_a_gang_waits)
    @rule(times=st.integers(1, 2))
    def every_host_polls(self, times: int) -> None:
        """A gang that fits starts with the last of them; the second time, each has what it was assigned."""
        for host in self.model.hosts * times:
            if not host.revoked:
                self._claim(host, self._body(host, 2))

    def _body(self, host: Host, most: int) -> dict[str, Any]:
        return {
            "request_id": self.new_request(),
            "boot_id": host.boot_id,
            "slots": host.slots,
            "max_leases": most,
            "capability": capability(host),
        }

    @rule(host=st.integers(0, 2), most=st.integers(0, 1), keep=st.integers(0, 3))
    def boot(self, host: int, most: int, keep: int) -> None:
        """A new boot of the worker lists what it holds; the rest is given back free of charge."""
        found = self.model.hosts[host]
        if found.revoked:
            return
        found.boot += 1
        live = self.model.live(host=found)
        holding = [lease.id for n, lease in enumerate(live) if keep >> n & 1]
        self._claim(found, {**self._body(found, most), "holding": holding})

    @precondition(lambda self: self.claims)
    @rule(which=pick)
    def claim_again_after_a_lost_reply(self, which: int) -> None:
        """The same request id has the same leases, if they still live, and no second effect (FL-D30)."""
        host, body = self.claims[which % len(self.claims)]
        if body["boot_id"] == host.boot_id and not host.revoked:
            self._claim(host, body)

    def _claim(self, host: Host, body: dict[str, Any]) -> None:
        if self.must_settle:
            self.world.settle()
        deaths = self.world.deaths
        ready = {run.id for run in self.model.runs.values() if run.state == "queued"}
        answer = self.call("POST", "claims", body, host=host).body
        self.claims.append((host, body))
        host.seen(self.now)
        if "holding" in body:
            released = self.model.new_boot(host, set(body["holding"]), self.now)
            # Killed after its commit, the first try released them; the second finds nothing to release.
            assert sorted(answer["released"]) == sorted(released) or self.world.deaths > deaths
        request_id = body["request_id"]
        earlier = {x.id for x in self.model.live(host=host) if x.request_id == request_id}
        granted = {lease["id"] for lease in answer["leases"]}
        if earlier:
            assert granted == earlier
            return
        self._take_up(host, body)
        self._gangs_started()
        alone = [lease for lease in answer["leases"] if lease["world_size"] == 1]
        gangs = len(answer["leases"]) - len(alone)
        self._check_choice(host, body["max_leases"] - gangs, ready, [lease["run_id"] for lease in alone])
        # A second answer lists them by their random ids; the model's order must not depend on those.
        for shown in sorted(alone, key=lambda x: self.model.runs[x["run_id"]].age):
            self._granted(host, request_id, shown)
        mine = [x for x in self.model.live(host=host) if x.request_id == request_id]
        assert {lease.id for lease in mine} == granted
        self._made_to_wait()

    def _take_up(self, host: Host, body: dict[str, Any]) -> None:
        """What was assigned to the host while it did not ask is in the answer, as far as it can take it."""
        assigned = [lease for lease in self.model.live(host=host) if lease.request_id == ASSIGNED]
        if not host.works_at(self.now):
            return
        for lease in assigned:
            row = self.world.read(lambda tx, lease=lease: tx.leases.get(LeaseId(lease.id)))  # type: ignore[misc]
            assert row is not None
            lease.request_id, lease.boot_id = row.request_id, row.boot_id
        left = [lease for lease in assigned if lease.request_id == ASSIGNED]
        assert len(left) == max(0, len(assigned) - body["max_leases"])

    def _gangs_started(self) -> None:
        """All ranks of a gang have leases, or none has; each on a host that may take it and has room."""
        for run in [run for run in self.model.runs.values() if run.size > 1 and run.state == "queued"]:
            row = self.world.read(lambda tx, run=run: tx.runs.get(RunId(run.id)))  # type: ignore[misc]
            assert row is not None
            if row.state != "running":
                continue
            live = self.world.read(lambda tx, run=run: tx.leases.live_of_run(RunId(run.id)))  # type: ignore[misc]
            assert [lease.rank for lease in live] == list(range(run.size))
            hosts = {host.id: host for host in self.model.hosts}
            self.model.claim_gang(run, [(x.id, hosts[x.host_id], x.request_id) for x in live], self.now)
            for lease in live:
                on = hosts[lease.host_id]
                assert on.works_at(self.now)
                assert on.admits(run.project)
                assert len(self.model.live(host=on)) <= on.room

    def _made_to_wait(self) -> None:
        """A claim that comes by a run whose group is full makes it wait; which ones is its own affair."""
        full = [
            run
            for run in self.model.runs.values()
            if run.state == "queued" and run.group is not None and run.group.is_full
        ]
        for run in full:
            row = self.world.read(lambda tx, run=run: tx.runs.get(RunId(run.id)))  # type: ignore[misc]
            assert row is not None
            if row.state == "held":
                assert row.hold_reason == "concurrency"
                run.wait_for_place()

    def _check_choice(self, host: Host, most: int, ready: set[str], taken: list[str]) -> None:
        """Promise 5: nothing that fits waits, and by priority, then by age within a project (FL-D03).

        What this very call released may be given out again by it, but need not be.
        """
        could = self.model.takeable(host, self.now)
        back = {run_id for run_id, at in host.gave_back.items() if 0 <= self.now - at < AGAIN_S}
        must = _as_places_allow([run for run in could if run.id in ready and run.id not in back])
        # Fewer than none: a lease that ran out may come back after its slot was given away.
        free = max(0, host.room - len(self.model.live(host=host)))
        assert len(taken) >= min(most, free, len(must)), "an eligible host with a free slot was not used"
        assert len(taken) <= min(most, free)
        chosen = [run for run in could if run.id in taken]
        assert len(chosen) == len(taken)
        for left in must:
            for run in chosen:
                assert left in chosen or not self._goes_before(left, run)

    @staticmethod
    def _goes_before(left: Run, taken: Run) -> bool:
        if left.priority != taken.priority:
            return left.priority > taken.priority
        return left.project == taken.project and left.age < taken.age

    def _granted(self, host: Host, request_id: str, shown: dict[str, Any]) -> None:
        run = self.model.runs[shown["run_id"]]
        assert run.group is None or not run.group.is_full, "more run than the group may have"
        before = run.epoch
        lease = self.model.claim(run, shown["id"], host, request_id, self.now)
        assert shown["epoch"] == lease.epoch == before + 1
        assert (shown["attempt"], shown["rank"], shown["world_size"]) == (lease.attempt, 0, 1)
        assert len(shown["gpus"]) == lease.gpus
        if run.wall_s is not None:
            assert shown["wall_left_s"] == max(0.0, run.wall_s - run.ran_s)
