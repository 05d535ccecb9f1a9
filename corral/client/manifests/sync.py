"""From a manifest file to the server: resolve it, ask what is new, upload what that needs, apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from corral.client.corral import Corral
from corral.client.manifests.apply import Also, Declaration, ManifestSpec, Mode
from corral.client.manifests.read import ManifestRunTable, ParsedManifest
from corral.client.submit.local_files import Key, LocalFiles
from corral.client.submit.prepare import PreparedRuns, RunPreparer, placed
from corral.client.training.model_hub import NOT_PINNED
from corral.domain.errors import (
    Conflict,
    CorralError,
    Forbidden,
    InvalidInput,
    ServerUnreachable,
    StoreUnavailable,
    Unauthenticated,
)
from corral.wire.manifests import ApplyAnswer
from corral.wire.spec.identity import identity_of
from corral.wire.spec.run_file import RunSpec

# What is not the manifest's fault.
_ELSEWHERE = (ServerUnreachable, StoreUnavailable, Unauthenticated, Forbidden)
_TRIES = 3


@dataclass(frozen=True)
class ResolvedManifest:
    """A manifest whose runs are all known by what they are. `notes` are for people."""

    declaration: Declaration
    sources: dict[Key, LocalFiles] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def check(loaded: ParsedManifest, shop: RunPreparer) -> tuple[str, ...]:
    """What can be found wrong without a server; raises InvalidInput with all of it."""
    notes: list[str] = []
    for run in loaded.runs:
        shop.listener.step(f"checking {run.name}")
        try:
            found = _preparer(loaded, shop, run).check(run.run_file)
            notes += (f"{run.name}: {text}" for text in found)
        except CorralError as error:
            loaded.refuse(run, error)
    loaded.check()
    return tuple(dict.fromkeys(notes))


def resolve(loaded: ParsedManifest, shop: RunPreparer) -> ResolvedManifest:
    """Read, resolve and check everything; raises InvalidInput with all that is wrong."""
    runs: list[ManifestSpec] = []
    sources: dict[Key, LocalFiles] = {}
    notes: list[str] = []
    for run in loaded.runs:
        shop.listener.step(f"reading {run.name}")
        try:
            survey = _preparer(loaded, shop, run).survey(run.run_file)
            _refuse_unpinned(survey, shop)
        except _ELSEWHERE:
            raise
        except CorralError as error:
            loaded.refuse(run, error)
            continue
        sources |= survey.sources
        notes += (f"{run.name}: {text}" for text in survey.notes)
        limit = survey.max_running
        fitted = run.run_file.train is not None and "gpus" not in run.run_file.resources.model_fields_set
        runs += (ManifestSpec(spec, run.group, run.place, limit, fitted) for spec in survey.specs)
    loaded.check()
    return ResolvedManifest(_declaration(loaded, _linked(loaded, runs)), sources, tuple(dict.fromkeys(notes)))


def _preparer(loaded: ParsedManifest, shop: RunPreparer, run: ManifestRunTable) -> RunPreparer:
    return replace(shop, base_dir=run.base_dir, declaring=frozenset(loaded.files))


def _linked(loaded: ParsedManifest, runs: Sequence[ManifestSpec]) -> list[ManifestSpec]:
    """Each with the identities of the runs that it waits for: what they are is part of what it is."""
    named: dict[str, list[ManifestSpec]] = {}
    for run in runs:
        named.setdefault(run.spec.name, []).append(run)
    made: dict[str, list[ManifestSpec]] = {}
    for name in loaded.in_order():
        made[name] = [_after(loaded, run, made) for run in named.get(name, [])]
    loaded.check()
    turn = {name: iter(found) for name, found in made.items()}
    return [next(turn[run.spec.name]) for run in runs]


def _after(
    loaded: ParsedManifest, run: ManifestSpec, made: Mapping[str, Sequence[ManifestSpec]]
) -> ManifestSpec:
    origins = dict(run.spec.origins)
    for one in run.spec.after:
        if one.run not in made:
            continue
        parents: list[str] = [identity_of(parent.spec) for parent in made[one.run]]
        origins[one.run] = parents
        if one.input is None:
            continue
        origins[f"inputs.{one.input}"] = parents
        if len(parents) != 1:
            message = f"names {one.run}, which is {len(parents)} runs; an input takes the result of one"
            loaded.add(loaded.source.problem(f"{run.place}.after", message))
    return (
        run
        if origins == run.spec.origins
        else replace(run, spec=run.spec.model_copy(update={"origins": origins}))
    )


def _declaration(loaded: ParsedManifest, runs: Sequence[ManifestSpec]) -> Declaration:
    try:
        return Declaration(loaded.project, loaded.name, runs=runs, hosts=loaded.hosts)
    except InvalidInput as error:
        for found in error.fields:
            loaded.add(loaded.source.problem(found.path, found.message))
        loaded.check()
        raise


def _refuse_unpinned(survey: PreparedRuns, shop: RunPreparer) -> None:
    """A model that is pinned today and was not yesterday would be other work: all of it would run again."""
    if shop.environ.get("HF_HUB_OFFLINE"):
        return
    if found := [note for note in survey.notes if note.endswith(NOT_PINNED)]:
        raise InvalidInput(f"{found[0]}, so what the run is cannot be told; HF_HUB_OFFLINE=1 goes without")


def sync(
    corral: Corral, resolved: ResolvedManifest, shop: RunPreparer, *, mode: Mode, also: Sequence[Also]
) -> ApplyAnswer:
    """Plan or apply. Runs that the server knows travel by their identity alone."""
    whole = resolved.declaration
    shop.listener.step("comparing")
    answer = corral.manifests.send(whole.request(mode, also))
    for _ in range(_TRIES):
        if answer.complete:
            return answer
        specs = [run.spec for run in whole.lacking(answer.needs)]
        if mode == "apply":
            ids = shop.upload(whole.project, _needed(resolved, specs))
            specs = [placed(spec, ids) for spec in specs]
        shop.listener.step(f"sending {len(specs)} runs")
        answer = corral.manifests.send(whole.request(mode, also, specs))
    raise Conflict(
        f"the manifest {whole.name} is being changed by somebody else",
        hint="Nothing was changed. Apply it again when they are done.",
    )


def _needed(resolved: ResolvedManifest, specs: Sequence[RunSpec]) -> dict[Key, LocalFiles]:
    digests = {digest for spec in specs for digest in (spec.code_digest, *spec.input_digests.values())}
    return {key: source for key, source in resolved.sources.items() if key[1] in digests}
