"""An instance of an endpoint that a test plays: it speaks the worker's protocol with a host's token."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from support.live_server import FakeHost, Json, Lease, LiveServer, named
from support.waiting import eventually


@dataclass(frozen=True)
class FakeEndpoint:
    """A deployed endpoint whose instances only one host may take."""

    live: LiveServer
    worker: FakeHost
    project: str
    name: str

    def call(self, *values: bytes, token: str = "", **more: Any) -> list[str]:
        """Make calls of `f`, and return their ids without waiting."""
        options = {key: more.pop(key) for key in ("options", "params") if key in more}
        calls = [{"function": "f", "args": inline(value), **options} for value in values or (b"x",)]
        body = {"project": self.project, "endpoint": self.name, "calls": calls, **more}
        return [one["id"] for one in self.live.ok("POST", "/v1/calls", body, token=token)["calls"]]

    def instance(self) -> FakeInstance:
        """Take the run that the server makes of it for a call that waits."""

        def look() -> Lease | None:
            ask = self.worker.ask(wait_s=1)
            found = self.live.ok("POST", "/v1/claims", ask, token=self.worker.token)["leases"]
            return Lease(self.worker, found[0]) if found else None

        return FakeInstance(eventually(look, "an instance to start"))

    def runs(self) -> list[Json]:
        """The runs of all its instances so far."""
        found = self.live.ok("GET", "/v1/runs", params={"project": self.project, "limit": 200})["items"]
        return [run for run in found if run["name"] == self.name]


@dataclass(frozen=True)
class FakeInstance:
    lease: Lease

    def exchange(self, **body: Any) -> Json:
        return dict(self.lease.ok("POST", "calls", body))

    def next_call(self, **body: Any) -> Json:
        """The next call that it is given."""

        def look() -> Json | None:
            found = self.exchange(want=1, wait_s=1, **body)["calls"]
            return found[0] if found else None

        return eventually(look, "a call")


def inline(value: bytes) -> Json:
    return {"format": "plain1", "body": base64.b64encode(value).decode()}


def as_blob(sha256: str, size: int, form: str = "plain1") -> Json:
    return {"format": form, "blob": sha256, "size": size}


def outcome(call: Json, value: bytes = b"y", **more: Any) -> Json:
    """How a call that an instance was given ended: with this result, unless `more` says otherwise."""
    how = {"result": inline(value)} if "result" not in more and "error" not in more else {}
    return {"call_id": call["id"], "attempt": call["attempt"], **how, **more}


def deploy(
    live: LiveServer,
    worker: FakeHost,
    *,
    project: str = "default",
    functions: Json | None = None,
    scaling: Json | None = None,
    service: Json | None = None,
    name: str = "",
    live_one: bool = False,
    **spec: Any,
) -> FakeEndpoint:
    """`live_one` is as a program makes it for its own calls; a `name` that is there gets a new version."""
    name = name or named("app")
    made = {
        "kind": "service",
        "project": project,
        "resources": {"hosts": [worker.name]},
        "service": {"entry": {}, **(service or {})},
        **spec,
    }
    body = {
        "project": project,
        "name": name,
        "spec": made,
        "functions": functions or {"f": {}},
        "scaling": scaling or {},
        "live": live_one,
    }
    live.ok("POST", "/v1/endpoints", body)
    return FakeEndpoint(live, worker, project, name)
