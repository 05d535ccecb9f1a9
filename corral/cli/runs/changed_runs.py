"""Runs that are submitted again with changes: new runs, each checked before any of them is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corral.cli.display import render
from corral.cli.runs.submit import run_preparer
from corral.client.corral import Corral
from corral.client.runs import RunsDone
from corral.client.submit.changed_params import in_artifact, in_folder, with_checked_params
from corral.client.submit.run_file import edited
from corral.wire.runs import ActionResult, ManyAnswer, RunDetail, RunSelection
from corral.wire.spec.run_file import RunSpec


@dataclass
class ChangedRuns:
    """What `--set`, `--priority` and `--code` make of runs. What people should know is said once."""

    corral: Corral
    changes: Sequence[str]
    code: Path | None
    _said: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.changes) or self.code is not None

    def checked(self, before: RunDetail) -> RunSpec:
        """The spec with the changes but for the code; InvalidInput names what does not fit."""
        after = edited(before.spec, self.changes) if self.changes else None
        if after is None:
            return before.spec
        code = in_artifact(self.corral, before.spec) if self.code is None else in_folder(self.code)
        after, notes = with_checked_params(before.spec, after, code)
        for note in notes:
            if note not in self._said:
                self._said.add(note)
                render.note(f"note: {note}")
        return after

    def made(self, before: RunDetail) -> RunSpec | None:
        """The whole new spec, its code uploaded; None where it is the same as before."""
        after = self.checked(before)
        if self.code is not None:
            with run_preparer(self.corral, Path.cwd()) as preparer:
                artifact_id, digest = preparer.ship_code(after.project, self.code)
            after = after.model_copy(update={"code": artifact_id, "code_digest": digest})
        return None if after == before.spec else after


@dataclass(frozen=True)
class ChangedSelection:
    """All runs that a filter finds, submitted again with changes, in a group if they were in one."""

    changed: ChangedRuns
    which: RunSelection

    def act(self, *, dry_run: bool, told: RunsDone) -> ManyAnswer:
        corral = self.changed.corral
        found = corral.runs.requeue_all(self.which, dry_run=True, told=told)
        before = [corral.runs.get(one.id) for one in found.done]
        specs = [self.changed.checked(one) for one in before]
        if dry_run or not specs:
            return found
        specs = [self.changed.made(one) or one.spec for one in before]
        groups = {one.group for one in before}
        group = groups.pop() if len(groups) == 1 else None
        ids = corral.runs.submit(specs, group=group).ids
        done = [
            ActionResult(id=one.id, name=one.name, state=one.state, new=[new])
            for one, new in zip(before, ids, strict=True)
        ]
        return ManyAnswer(done=done, skipped=found.skipped)
