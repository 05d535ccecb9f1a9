"""Which models may be trained here, where the operator closed the list."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.runs.submit import NewRun, prefix_of
from corral.domain.errors import FieldError, InvalidInput


def refuse_models(runs: Sequence[NewRun], allowed: Sequence[str]) -> None:
    """InvalidInput names every run whose model is not on the list; an empty list is open."""
    if not allowed:
        return
    problems = [
        FieldError(f"{prefix_of(index, runs)}model", f"is {_called(new)}, which is not on this server's list")
        for index, new in enumerate(runs)
        if new.models is not None and not any(_allows(entry, new.models) for entry in allowed)
    ]
    if problems:
        lines = "; ".join(f"`{found.path}` {found.message}" for found in problems[:20])
        raise InvalidInput(
            f"the operator closed the list of models: {lines}",
            hint=f"Nothing was queued. On the list: {', '.join(allowed)}.",
            fields=problems,
        )


def _called(new: NewRun) -> str:
    return new.models[0] if new.models else "a folder that is sent along"


def _allows(entry: str, names: Sequence[str]) -> bool:
    """By its whole name, or by how it begins where the entry ends in a star. The hub ignores case."""
    entry = entry.lower()
    if entry.endswith("*"):
        return any(name.lower().startswith(entry[:-1]) for name in names)
    return any(name.lower() == entry for name in names)
