"""Routes: planning and applying manifests, and looking at them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import ValidationError

from corral.core import secrets
from corral.core.manifests.apply import Apply, ApplyResult, delete, refused
from corral.core.manifests.plan import ManifestPlan, WantedManifest, plan
from corral.core.manifests.starts import NeedsOfRuns, needs_of_runs, problems_of
from corral.core.runs.model_policy import refuse_models
from corral.core.runs.submit import NewRun
from corral.domain.errors import SPEC_HINT, FieldError, InvalidInput, NotFound
from corral.domain.hosts.policy import render_declared
from corral.domain.ids import Digest, is_name
from corral.domain.manifests import ApplyOptions, Manifest, ManifestChange, ManifestEntry
from corral.domain.runs.holds import HoldKind, hold_kind
from corral.domain.runs.states import FINAL
from corral.server.auth import Operator, User
from corral.server.bodies.large import LargeBodyRoute
from corral.server.new_runs import new_run, refuse_large_spec
from corral.server.pages import Limit, NameCursor, filled, in_portions, json_answer, parse_name_cursor
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire import manifests as wire
from corral.wire.base import explain
from corral.wire.errors import ErrorField
from corral.wire.spec.identity import identity_of
from corral.wire.spec.run_file import RunSpec

router = APIRouter(prefix="/v1", tags=["manifests"], route_class=LargeBodyRoute)
# How many of a list are read at a time: each names all its runs, which may be ten thousand.
_PORTION = 16
AlsoOptions = Annotated[list[ApplyOptions] | None, Query(max_length=3)]


@router.post("/manifests")
async def apply_manifest(body: wire.ApplyRequest, caller: Operator, svc: Svc) -> wire.ApplyAnswer:
    """Say what a manifest would change, or make it so: all of it or nothing."""
    caller.check_project(body.project)
    asked = await svc.in_thread(lambda: ManifestQuery(body))
    refuse_models(list(asked.fresh.values()), svc.policy.models)

    def look(tx: Tx) -> tuple[ManifestPlan, NeedsOfRuns]:
        secrets.refuse_exposed(tx, svc.redactor, body.project, asked.text(), what="the manifest")
        made = plan(tx, asked.wanted, asked.fresh)
        needs = needs_of_runs(tx, made, asked.wanted, asked.fresh, asked.remade)
        made.problems += problems_of(tx, needs)
        return made, needs

    made, needs = await svc.store.read(look)
    lacking = made.lacking(asked.fresh)
    if not lacking:
        made.problems += await _refusals(svc, needs)
        if made.problems and body.mode == "apply":
            raise refused(asked.wanted, made)
    answer = _answer(asked.wanted, made, needs=lacking)
    if body.mode == "plan" or lacking:
        return answer
    known = await svc.store.read(lambda tx: tx.manifests.get(body.project, body.name))
    unit = Apply(asked.wanted, asked.fresh, asked.remade, caller.by(svc.clock), svc.policy)
    if not made.changes and not made.problems and known is not None and unit.is_same(known):
        return answer.model_copy(update={"applied": True, "revision": known.revision})
    done: ApplyResult = await svc.store.write(unit)
    return _answer(asked.wanted, done.plan, manifest=done.manifest)


async def _refusals(svc: Services, needs: NeedsOfRuns) -> list[FieldError]:
    """What the executors that runs name say of them, in the words of their clusters."""
    asked = [(new.run.name, await svc.placer.refusals(need)) for need, new in needs.items()]
    return [
        FieldError(f"runs.{name}.placement.executors", said.message)
        for name, said in asked
        if said is not None
    ]


class ManifestQuery:
    """A request in the core's words."""

    def __init__(self, body: wire.ApplyRequest) -> None:
        policies = [wire.ManifestPolicy(table) for table in body.policies]
        if any(entry.policy >= len(policies) for entry in body.runs):
            raise InvalidInput("`runs` name a policy that `policies` does not have")
        self._policies = {policy.digest: policy for policy in policies}
        entries = [
            ManifestEntry(Digest(e.identity), e.name, e.group, policy.digest, policy.values, e.fitted)
            for e in body.runs
            for policy in (policies[e.policy],)
        ]
        self.wanted = WantedManifest(
            project=body.project,
            name=body.name,
            entries={entry.identity: entry for entry in entries},
            hosts={name: render_declared(table.declared()) for name, table in body.hosts.items()},
            also=frozenset(ApplyOptions(text) for text in body.also),
            limits=body.max_running,
        )
        self.fresh = self._fresh(body)

    def remade(self, spec: str, entry: ManifestEntry) -> NewRun:
        """A stored spec with the policy that the manifest has for it now."""
        try:
            return new_run(RunSpec.model_validate({**json.loads(spec), **entry.values, "name": entry.name}))
        except ValidationError as error:
            raise explain(RunSpec, error, what=f"the run {entry.name}", hint=SPEC_HINT) from None

    def _fresh(self, body: wire.ApplyRequest) -> dict[Digest, NewRun]:
        environments = {environment.digest: environment for environment in body.environments}
        made: dict[Digest, NewRun] = {}
        for given in body.specs:
            if given.environment is not None and given.environment not in environments:
                raise InvalidInput(f"the environment of {given.name} is not sent along")
            spec = given.unpacked(environments)
            entry = self.wanted.entries.get(identity_of(spec))
            if entry is None:
                raise InvalidInput(
                    f"the spec of {spec.name} is not of a run that `runs` names",
                    hint="Install the same version of corral here and on the server.",
                )
            if spec.project != body.project:
                raise InvalidInput(f"the spec of {spec.name} is of project {spec.project}")
            own = {**self._policies[entry.policy].fields, "name": entry.name}
            run = made[entry.identity] = new_run(spec.model_copy(update=own))
            refuse_large_spec(run.run.name, run.spec)
        return made

    def text(self) -> str:
        """All of what would be stored."""
        wanted = self.wanted
        policies = {entry.policy: json.dumps(entry.values) for entry in wanted.entries.values()}
        names = {text for entry in wanted.entries.values() for text in (entry.name, entry.group or "")}
        return "\n".join(
            [*(run.spec for run in self.fresh.values()), *policies.values(), *names, *wanted.hosts.values()]
        )


def _answer(
    wanted: WantedManifest,
    made: ManifestPlan,
    *,
    needs: Iterable[Digest] = (),
    manifest: Manifest | None = None,
) -> wire.ApplyAnswer:
    lacking = list(needs)
    return wire.ApplyAnswer(
        project=wanted.project,
        name=wanted.name,
        applied=manifest is not None,
        complete=not lacking,
        revision=None if manifest is None else manifest.revision,
        changes=[_change(change) for change in made.changes],
        same=made.same,
        ended=[_change(change) for change in made.ended],
        gone=[_change(change) for change in made.gone],
        needs=lacking,
        problems=[ErrorField(path=f.path, message=f.message) for f in made.problems],
    )


def _change(change: ManifestChange) -> wire.ChangeView:
    # Built without validation: there may be ten thousand, and all of it is ours.
    fields = [wire.DifferenceView.model_construct(**d._asdict()) for d in change.differences]
    shown = {**change._asdict(), "action": change.action.value, "fields": fields}
    del shown["differences"]
    return wire.ChangeView.model_construct(**shown)


@router.get("/manifests", response_model=wire.ManifestPage)
async def list_manifests(caller: User, svc: Svc, cursor: NameCursor = None, limit: Limit = 100) -> Response:
    """Manifests as they were last applied."""
    after = parse_name_cursor(cursor)

    def view(found: Manifest) -> wire.ManifestView | None:
        return _view(found) if found.revision and caller.sees(found.project) else None

    def unit(tx: Tx) -> bytes:
        rows = in_portions(
            tx.manifests.page,
            lambda one: (one.project, one.name),
            after=after,
            limit=limit,
            portion=_PORTION,
        )
        return filled(rows, limit, view).with_next(lambda last: last.key)

    return json_answer(await svc.store.read(unit))


@router.get("/manifests/{project}/{name}")
async def get_manifest(project: str, name: str, caller: User, svc: Svc) -> wire.ManifestDetail:
    """One manifest: its hosts, how its runs stand, and which are held because it no longer names them."""

    def unit(tx: Tx) -> wire.ManifestDetail:
        found = tx.manifests.get(project, name) if is_name(project) and is_name(name) else None
        if found is None or not found.revision or not caller.sees(project):
            raise _absent(project, name)
        runs = tx.runs.of_manifest(project, name).values()
        named = json.loads(found.body)["runs"]
        states = Counter(str(run.state) for run in runs if run.identity in named)
        gone = [
            wire.ChangeView(**run._asdict(), action="removed", kind="run", run_id=run.id)
            for run in runs
            if hold_kind(run.hold_reason) is HoldKind.REMOVED and run.state not in FINAL
        ]
        return wire.ManifestDetail(**_view(found).model_dump(), states=states, gone=gone)

    return await svc.store.read(unit)


@router.delete("/manifests/{project}/{name}", status_code=204)
async def delete_manifest(
    project: str, name: str, caller: Operator, svc: Svc, also: AlsoOptions = None
) -> None:
    """Forget a manifest. Its runs that wait or run must be pruned with it."""
    if not is_name(project) or not is_name(name):
        raise _absent(project, name)
    caller.check_project(project)
    by = caller.by(svc.clock)
    wanted = frozenset(also or ())
    await svc.store.write(lambda tx: delete(tx, project, name, also=wanted, by=by, policy=svc.policy))


def _view(found: Manifest) -> wire.ManifestView:
    body = json.loads(found.body)
    return wire.ManifestView(**found._asdict(), runs=len(body["runs"]), hosts=sorted(body["hosts"]))


def _absent(project: str, name: str) -> NotFound:
    return NotFound(
        f"there is no manifest {name[:80]!r} in project {project[:80]!r}",
        hint="List them with `corral manifest ls`.",
    )
