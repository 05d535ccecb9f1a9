"""What a run reads: code, inputs and secrets, and which of them do not exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from corral.domain.artifacts import ArtifactKind
from corral.domain.errors import FieldError, InvalidInput
from corral.domain.ids import ArtifactId
from corral.store.transaction import Tx

# Of what is missing, so much is told in the message.
_SHOWN = 20


class RunNeeds(NamedTuple):
    code: ArtifactId | None = None
    inputs: Mapping[str, ArtifactId] = MappingProxyType({})
    secrets: tuple[str, ...] = ()
    # The digests that the caller expects, by `code` and `inputs.NAME`.
    digests: Mapping[str, str] = MappingProxyType({})
    # For inputs that are a part of their artifact: its path there.
    parts: Mapping[str, str] = MappingProxyType({})

    @property
    def artifacts(self) -> list[ArtifactId]:
        return [*([self.code] if self.code else []), *self.inputs.values()]

    def missing(self, tx: Tx, project: str, prefix: str = "") -> list[FieldError]:
        """What does not exist: the run would fail only after it took a machine."""
        named = {f"inputs.{name}": artifact for name, artifact in self.inputs.items()}
        if self.code is not None:
            named["code"] = self.code
        found = [(path, self._problem(tx, project, path, named[path])) for path in named]
        found += [
            ("secrets", f"names {name}, which project {project} does not have")
            for name in self.secrets
            if tx.secrets.get(project, name) is None
        ]
        return [FieldError(prefix + path, message) for path, message in found if message is not None]

    def _problem(self, tx: Tx, project: str, path: str, artifact_id: ArtifactId) -> str | None:
        artifact = tx.artifacts.get(artifact_id)
        if artifact is None or artifact.project != project:
            return f"names {artifact_id}, which project {project} does not have"
        if path == "code" and artifact.kind is not ArtifactKind.CODE:
            return f"names {artifact_id}, which is not code but {artifact.kind}"
        if self.digests.get(path, artifact.digest) != artifact.digest:
            return f"names {artifact_id}, which holds something else than it says"
        part = self.parts.get(path.removeprefix("inputs."))
        if part is not None and path != "code" and not tx.artifacts.has(artifact_id, part):
            return f"names {part!r} of {artifact_id}, which has no such file or folder"
        return None


def not_there(fields: Sequence[FieldError]) -> InvalidInput:
    lines = "; ".join(f"`{f.path}` {f.message}" for f in fields[:_SHOWN])
    if len(fields) > _SHOWN:
        lines += f"; and {len(fields) - _SHOWN} more"
    return InvalidInput(
        f"the run names things that do not exist: {lines}",
        hint="Upload inputs with the run file, and set secrets with `corral secrets set NAME`.",
        fields=fields,
    )
