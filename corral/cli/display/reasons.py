"""Why something ended, in words for people; `--json` has the reason alone."""

from __future__ import annotations

from collections.abc import Mapping

from corral.domain.runs.reasons import Reason
from corral.wire.runs import RunView

# Empty where the reason says it all.
WORDS: Mapping[Reason, str] = {
    Reason.FINISHED: "",
    Reason.HOST_LOST: "the host stopped answering",
    Reason.PREEMPTED: "its machine was taken away",
    Reason.YIELDED: "it made room when asked",
    Reason.PLACEMENT_LOST: "the host that was chosen for it did not take it",
    Reason.NO_CAPACITY: "no host had room in time",
    Reason.STALLED: "no output, metric or progress for too long",
    Reason.RELEASED: "the worker restarted or was stopped; given back free of charge",
    Reason.OUT_OF_MEMORY: "",
    Reason.CODE_ERROR: "the program failed",
    Reason.BAD_DATA: "the code or an input is missing, damaged or of no use",
    Reason.BAD_OUTPUT: "what it left as its output was refused",
    Reason.ENVIRONMENT: "the host could not get it ready",
    Reason.UNKNOWN: "nobody knows why it ended",
    Reason.WALL_LIMIT: "its time was used up",
    Reason.MONEY_LIMIT: "its money was used up",
    Reason.CANCELLED: "",
    Reason.PARENT_FAILED: "a run that it needs has failed",
    Reason.POISON: "different hosts were lost while they ran it",
}

_NOT_STARTED: Mapping[int, str] = {
    126: "Make the program executable (`chmod +x`), or start it with its interpreter: `sh FILE`.",
    127: "Check its name: it must be on the host's PATH, or be shipped with `code` and begin with `./`.",
}


def told(reason: str | None) -> str | None:
    """`released (the worker restarted ...)`; a newer server's reason stays as it is."""
    if reason is None:
        return None
    words = WORDS.get(Reason(reason)) if reason in set(Reason) else None
    return f"{reason} ({words})" if words else reason


def hint(run: RunView) -> str | None:
    """The server's, except for a program that never started: there is no output to read."""
    if run.reason == Reason.CODE_ERROR and (run.detail or "").startswith("cannot execute"):
        return _NOT_STARTED.get(run.exit_code or 0, run.hint)
    return run.hint
