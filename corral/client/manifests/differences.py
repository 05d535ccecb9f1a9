"""What is new about new runs: what tells those of one name apart, and what changed since the last apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corral.client.corral import Corral
from corral.client.files.tree import Tree
from corral.client.manifests.sync import ResolvedManifest
from corral.domain.errors import NotFound
from corral.wire.manifests import ApplyAnswer, ChangeView, DifferenceView
from corral.wire.spec.run_file import RunSpec

CODE = "code/"
# Of the files of a folder of code that changed, these are named.
_FILES_SHOWN = 20
_DIGEST_SHOWN = 12
# What a run does, except for what tells the runs of a sweep apart.
_WORK = ("model", "model_revision", "train", "task", "argv", "env", "secrets", "input_digests", "input_paths")


def told_apart(resolved: ResolvedManifest) -> dict[str, str]:
    """By identity: the parameters and the seed by which a run differs from others of its name."""
    named: dict[str, dict[str, dict[str, Any]]] = {}
    for identity, run in resolved.declaration.runs.items():
        named.setdefault(run.spec.name, {})[identity] = _variant(run.spec)
    made: dict[str, str] = {}
    for runs in named.values():
        keys = list(dict.fromkeys(key for values in runs.values() for key in values))
        differ = [key for key in keys if len({repr(values.get(key)) for values in runs.values()}) > 1]
        for identity, values in runs.items():
            made[identity] = " ".join(f"{key}={values[key]}" for key in differ if key in values)
    return made


def explained(corral: Corral, resolved: ResolvedManifest, answer: ApplyAnswer) -> ApplyAnswer:
    """The answer with what changed about new runs that take the place of others. Runs of one name changed
    alike, so it is told of the first."""
    changes: list[ChangeView] = []
    seen: set[str] = set()
    for change in answer.changes:
        run = resolved.declaration.runs.get(change.identity or "")
        if change.former is not None and run is not None and change.name not in seen:
            seen.add(change.name)
            found = _differences(corral, resolved, change.former, run.spec)
            change = change.model_copy(update={"fields": found})
        changes.append(change)
    return answer.model_copy(update={"changes": changes})


def _variant(spec: RunSpec) -> dict[str, Any]:
    seed = {} if spec.seed is None else {"seed": spec.seed}
    return {**spec.params, **dict(_flat(spec.train or {})), **seed}


def _differences(
    corral: Corral, resolved: ResolvedManifest, former: str, new: RunSpec
) -> list[DifferenceView]:
    try:
        old = corral.runs.get(former).spec
    except NotFound:
        # It was removed for good since.
        return []
    found = list(_of_tables(_work(old), _work(new)))
    if old.code_digest != new.code_digest:
        found += _of_code(corral, resolved, old, new)
    return found


def _work(spec: RunSpec) -> dict[str, Any]:
    table = spec.model_dump(mode="json", include=set(_WORK))
    # Where what was shipped lay says nothing; its digest does.
    train = {key: value for key, value in (spec.train or {}).items() if key not in spec.input_digests}
    return {
        **table,
        "train": train,
        "input_digests": {name: _short(digest) for name, digest in spec.input_digests.items()},
        "environment": _short(spec.environment.digest) if spec.environment else None,
    }


def _of_tables(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[DifferenceView]:
    before, after = dict(_flat(old)), dict(_flat(new))
    for path in dict.fromkeys((*before, *after)):
        if before.get(path) != after.get(path):
            shown = path.replace("input_digests.", "inputs.", 1)
            yield DifferenceView(path=shown, old=before.get(path), new=after.get(path))


def _of_code(
    corral: Corral, resolved: ResolvedManifest, old: RunSpec, new: RunSpec
) -> Sequence[DifferenceView]:
    """File by file, where both are there to be compared."""
    source = resolved.sources.get(("code", new.code_digest or ""))
    whole = [DifferenceView(path="code", old=_short(old.code_digest), new=_short(new.code_digest))]
    if old.code is None or source is None:
        return whole
    try:
        before = _digests(corral.artifacts.tree(old.code))
    except NotFound:
        return whole
    after = _digests(source.tree)
    paths = [path for path in sorted({*before, *after}) if before.get(path) != after.get(path)]
    found = [
        DifferenceView(path=f"{CODE}{path}", old=_short(before.get(path)), new=_short(after.get(path)))
        for path in paths[:_FILES_SHOWN]
    ]
    if len(paths) > _FILES_SHOWN:
        found.append(DifferenceView(path="code", new=f"{len(paths) - _FILES_SHOWN} files more"))
    return found


def _digests(tree: Tree) -> dict[str, str]:
    return {file.path: f"{file.digest}{file.mode:o}" for file in tree.files}


def _short(digest: str | None) -> str | None:
    return None if digest is None else digest[:_DIGEST_SHOWN]


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
