"""The machine's frame: a server, three hosts, a model of it, and what must hold after every step."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from corral.core.storage.fsck import check_run
from corral.domain.ids import RunId
from corral.store.transaction import Tx
from model.model import Host, Lease, Model, Run, Window
from model.tables import FINAL
from model.world import Backend, Reply, World

PROJECTS = ("alpha", "beta")
# Name, slots, GPUs, labels, and by how much its clock is wrong.
HOSTS: tuple[tuple[str, int, int, tuple[str, ...], float], ...] = (
    ("one", 1, 0, (), 18_000.0),
    ("two", 2, 2, (), 0.0),
    ("big", 2, 0, ("big",), -18_000.0),
)
SECRET = "a-secret-value-of-alpha"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Base(RuleBasedStateMachine):
    """Concrete machines say which database."""

    must_settle: ClassVar[bool] = False

    def make_backend(self) -> Backend:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.make_backend())
        self.model = Model()
        self.deaths_seen = 0
        self._requests = 0
        self.checked: dict[str, int] = {}
        self.contents: dict[str, bytes] = {}
        for name, slots, gpus, labels, skew_s in HOSTS:
            made = self.call("POST", "tokens", {"scope": "host", "name": name}, status=201).body
            host = Host(made["host_id"], name, made["token"], slots, gpus, labels, skew_s)
            self.model.hosts.append(host)
        self.call("PUT", "projects/alpha/secrets/KEY", {"value": SECRET})

    @property
    def now(self) -> float:
        return self.world.clock.now()

    def new_request(self) -> str:
        self._requests += 1
        return f"request-{self._requests}"

    def call(
        self, method: str, path: str, body: Any = None, *, status: int = 200, host: Host | None = None
    ) -> Reply:
        """One call, through whatever faults are armed; what a restart does to the sweeper's wait is noted."""
        reply = self.world.call(method, path, body, token=host.token if host else None)
        self.note_deaths()
        assert reply.status == status, f"{method} {path} was answered {reply}"
        return reply

    def note_deaths(self) -> bool:
        died = self.world.deaths > self.deaths_seen
        if died:
            self.model.window = Window()
        self.deaths_seen = self.world.deaths
        return died

    def lease_call(
        self,
        lease: Lease,
        method: str,
        path: str,
        body: Any = None,
        *,
        status: int = 200,
        epoch: int | None = None,
    ) -> Reply:
        shown = lease.epoch if epoch is None else epoch
        return self.call(
            method, f"leases/{lease.id}/{path}?epoch={shown}", body, status=status, host=lease.host
        )

    def usable(self) -> list[Lease]:
        return [lease for lease in self._of_hosts_that_may_speak() if lease.usable]

    def dead(self) -> list[Lease]:
        return [lease for lease in self._of_hosts_that_may_speak() if not lease.usable]

    def _of_hosts_that_may_speak(self) -> list[Lease]:
        return [lease for lease in self.model.leases.values() if not lease.host.revoked]

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        """FL-C30: whatever was done, and whenever the server was killed."""
        self.model.check_consistent()
        changed = self.world.read(self._compare)
        problems = self.world.read(lambda tx: [p for run_id in changed for p in check_run(tx, RunId(run_id))])
        assert not problems

    def _compare(self, tx: Tx) -> list[str]:
        """Promise 1: all are there and no others. Compare each; return those that changed."""
        rows = {str(row.id): row for row in tx.runs.page_by_id(None, 1000)}
        assert set(rows) == set(self.model.runs)
        changed = []
        for run in self.model.runs.values():
            row = rows[run.id]
            seen = {
                "state": str(row.state),
                "epoch": row.epoch,
                "attempt": row.attempt,
                "used": [row.used_infrastructure, row.used_memory, row.used_code],
                "result": row.artifact_id,
                "ended": row.ended_at is not None,
                "live": [str(lease.id) for lease in tx.leases.live_of_run(row.id)],
            }
            assert seen == self._expected(run), f"run {run.id}: {run.history}"
            if row.event_n != self.checked.get(run.id, 0) or len(run.history) != row.event_n:
                self._compare_events(tx, run)
                changed.append(run.id)
        return changed

    def _expected(self, run: Run) -> dict[str, Any]:
        return {
            "state": run.state,
            "epoch": run.epoch,
            "attempt": run.attempt,
            "used": [run.used["infrastructure"], run.used["memory"], run.used["code"]],
            "result": run.result,
            "ended": run.state in FINAL,
            "live": [lease.id for lease in self.model.live(run=run)],
        }

    def _compare_events(self, tx: Tx, run: Run) -> None:
        """Every transition has its event, numbered without a gap, and says the state that it led to."""
        after = self.checked.get(run.id, 0)
        events = tx.events.of_run(RunId(run.id), after=after, limit=1000)
        seen = [(e.n, e.type, json.loads(e.data).get("state")) for e in events]
        wanted = [(after + i + 1, kind, state) for i, (kind, state) in enumerate(run.history[after:])]
        assert seen == wanted, f"run {run.id}: the store has {seen}, the model {wanted}"
        self.checked[run.id] = len(run.history)

    def teardown(self) -> None:
        try:
            self.world.store.fault = None
            self.check_everything()
        finally:
            self.world.close()

    def check_everything(self) -> None:
        """What is too slow for every step: rows of every run, logs to the letter, results byte by byte."""
        problems = self.world.read(
            lambda tx: [p for run_id in self.model.runs for p in check_run(tx, RunId(run_id))]
        )
        assert not problems
        for run in self.model.runs.values():
            self.check_logs(run)
            if run.result is not None:
                self.check_result(run)

    def check_logs(self, run: Run) -> None:
        page = self.call("GET", f"runs/{run.id}/logs?limit=1000").body
        assert [(line["attempt"], line["text"]) for line in page["items"]] == sorted(
            run.logs, key=lambda line: line[0]
        )

    def check_result(self, run: Run) -> None:
        """Promise 3: the accepted result is whole."""
        files = self.call("GET", f"artifacts/{run.result}/files").body["items"]
        for file in files:
            got = self.call("GET", f"blobs/{file['sha256']}?project={run.project}").body
            assert digest(got) == file["sha256"]
