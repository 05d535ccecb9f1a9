"""Sends a manifest: the identities of its runs first, then the specs that the server lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corral.client.api import Api
from corral.domain.canonical import canonical
from corral.domain.errors import FieldError, InvalidInput
from corral.wire.hosts import HostTable
from corral.wire.manifests import (
    ApplyAnswer,
    ApplyRequest,
    ManifestDetail,
    ManifestPage,
    ManifestView,
    RunEntry,
)
from corral.wire.spec.identity import identity_of, policy_of
from corral.wire.spec.run_file import RunSpec, packed

Mode = Literal["plan", "apply"]
Also = Literal["prune", "prune_running", "retry_failed"]
# Ten thousand new runs are one transaction, and a busy server has others too.
APPLY_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class ManifestSpec:
    """One run of a manifest; `place` is where it stands there."""

    spec: RunSpec
    group: str | None = None
    place: str = ""
    max_running: int | None = None
    fitted: bool = False


class Declaration:
    """A whole manifest, resolved. Raises InvalidInput where two of its runs are the same work."""

    def __init__(
        self, project: str, name: str, *, runs: Sequence[ManifestSpec], hosts: Mapping[str, HostTable]
    ) -> None:
        self.project, self.name, self.hosts = project, name, dict(hosts)
        self.runs: dict[str, ManifestSpec] = {}
        self._limits: dict[str, int] = {}
        policies: dict[str, int] = {}
        self._entries: list[RunEntry] = []
        self._policies: list[dict[str, Any]] = []
        twice: list[FieldError] = []
        for run in runs:
            identity = identity_of(run.spec)
            if (first := self.runs.setdefault(identity, run)) is not run:
                twice.append(_same_work(first, run))
                continue
            if run.group is not None and run.max_running is not None:
                self._limits[run.group] = run.max_running
            policy = policy_of(run.spec)
            place = policies.setdefault(canonical(policy), len(policies))
            if place == len(self._policies):
                self._policies.append(policy)
            # Built without validation: a spec's own fields were checked.
            self._entries.append(
                RunEntry.model_construct(
                    identity=identity, name=run.spec.name, group=run.group, policy=place, fitted=run.fitted
                )
            )
        if twice:
            raise _refused(name, twice)

    def request(self, mode: Mode, also: Sequence[Also], specs: Sequence[RunSpec] = ()) -> ApplyRequest:
        environments = {spec.environment.digest: spec.environment for spec in specs if spec.environment}
        return ApplyRequest.model_construct(
            project=self.project,
            name=self.name,
            mode=mode,
            also=list(also),
            hosts=self.hosts,
            max_running=self._limits,
            policies=self._policies,
            runs=self._entries,
            environments=list(environments.values()),
            specs=[packed(spec) for spec in specs],
        )

    def lacking(self, identities: Collection[str]) -> list[ManifestSpec]:
        return [self.runs[identity] for identity in identities if identity in self.runs]


class Manifests(Api):
    root = "/v1/manifests"

    def send(self, request: ApplyRequest) -> ApplyAnswer:
        """May arrive twice: the second time there is nothing left to do."""
        content = request.model_dump_json(exclude_defaults=True).encode()
        headers = {"content-type": "application/json"}
        return self._transport.repeat(
            "POST", self.root, ApplyAnswer, content=content, headers=headers, timeout_s=APPLY_TIMEOUT_S
        )

    def page(self, cursor: str | None = None, limit: int = 100) -> ManifestPage:
        return self._transport.get(self.root, ManifestPage, {"cursor": cursor, "limit": limit})

    def all(self) -> Iterator[ManifestView]:
        return self._transport.items(self.root, ManifestPage, {"limit": 100})

    def get(self, project: str, name: str) -> ManifestDetail:
        return self._transport.get(self._path(project, name), ManifestDetail)

    def delete(self, project: str, name: str, also: Sequence[Also] = ()) -> None:
        # Once: what is gone cannot be told from what never was.
        path = self._path(project, name)
        self._transport.once("DELETE", path, type(None), params={"also": list(also)})


def _same_work(first: ManifestSpec, second: ManifestSpec) -> FieldError:
    message = f"is the same work as {first.place or first.spec.name}: give it other params or a seed"
    return FieldError(second.place or second.spec.name, message)


def _refused(name: str, fields: Sequence[FieldError]) -> InvalidInput:
    lines = "; ".join(f"`{f.path}` {f.message}" for f in fields[:20])
    return InvalidInput(
        f"the manifest {name} names the same work twice: {lines}",
        hint="What is run is told apart by what it does, not by its name.",
        fields=fields,
    )
