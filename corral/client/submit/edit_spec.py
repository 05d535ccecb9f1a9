"""A run's spec once more, with some of it changed."""

from __future__ import annotations

from collections.abc import Sequence

from corral.client.submit.run_file import checked
from corral.wire.spec.run_file import RunSpec


def edited(spec: RunSpec, changes: Sequence[str]) -> RunSpec | None:
    """The spec with `changes` (as `params.lr=3e-4`) made to it; None if it is the same as before.

    InvalidInput names what does not fit.
    """
    changed = checked(RunSpec, spec.model_dump(exclude_unset=True), what="the changed run", overrides=changes)
    return None if changed.model_dump() == spec.model_dump() else changed
