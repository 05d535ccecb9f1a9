"""What the end of a child means. A cause that is not known is called unknown."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from corral.domain.runs.reasons import Reason
from corral.domain.runs.retries import MemoryKind
from corral.domain.secrets.redact import SecretValues
from corral.wire.leases import FailRequest, FinishRequest, MemoryReport, StoppedRequest
from corral.worker.child.command import KILLED, Exit
from corral.worker.lease import StopOrder
from corral.worker.prepare.workspace import JobOutcome

# Raised by what the program itself does; anybody may send the others.
_OWN_FAULT = {"SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGBUS", "SIGTRAP", "SIGSYS", "SIGXCPU", "SIGXFSZ"}

_DETAIL_CHARS = 20_000
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127

# What the exit codes of corral.engine mean; the rest are errors of the run's own.
ENGINE_CODES: Mapping[int, Reason] = {
    2: Reason.BAD_DATA,
    4: Reason.OUT_OF_MEMORY,
    5: Reason.DIVERGED,
    6: Reason.STORE_AWAY,
}
_NO_CODES: Mapping[int, Reason] = {}
# How the last words of a program begin that could not have as much memory as it wanted: those of a GPU, and
# those of the host.
_NO_GPU_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory",
    "torch.cuda.OutOfMemoryError: CUDA out of memory",
    "RuntimeError: CUDA out of memory",
    "RuntimeError: CUDA error: out of memory",
)
_NO_MEMORY = ("MemoryError", "numpy._core._exceptions._ArrayMemoryError:")


@dataclass(frozen=True)
class ChildEnd:
    """A child's end as the worker saw it. `obeyed` is the order for which it was signalled, if any."""

    exit: Exit
    ran_s: float
    obeyed: StopOrder | None = None
    # Whether it was given GPUs, and whether its next attempt can be cut into smaller pieces.
    has_gpus: bool = False
    shrinks: bool = False
    local_problem: str | None = None
    last_errors: str = ""
    metrics: tuple[tuple[str, float], ...] = ()


def verdict(ended: ChildEnd, codes: Mapping[int, Reason] = _NO_CODES) -> JobOutcome:
    """`codes` are the exit codes by which the program tells its reason."""
    found = ended.exit
    if ended.obeyed is not None:
        return stopped(ended.obeyed, found, ended.ran_s)
    if ended.local_problem is not None:
        # If it is still so without the run's own files, the host is at fault; that is asked later.
        return failed(Reason.CODE_ERROR, ended.local_problem, found, ended.ran_s)
    if found.error is not None:
        # A command that was never executed is wrong; why one was killed from outside is not known.
        reason = Reason.UNKNOWN if found.signal == KILLED else Reason.CODE_ERROR
        return failed(reason, found.error, replace(found, code=_shell_code(found)), ended.ran_s)
    if found.code == 0:
        return JobOutcome(FinishRequest(metrics=dict(ended.metrics), ran_s=ended.ran_s))
    outcome = failed(_reason(ended, codes), _detail(found, ended.last_errors), found, ended.ran_s)
    return _with_shortage(outcome, ended)


def _shell_code(found: Exit) -> int | None:
    """What a shell gives for a command that was never executed: 127 not found, 126 not executable."""
    if found.signal is not None:
        return None
    return _NOT_FOUND if found.errno == errno.ENOENT else _NOT_EXECUTABLE


def stopped(order: StopOrder, found: Exit | None, ran_s: float) -> JobOutcome:
    return JobOutcome(StoppedRequest(reason=order.reason, detail=order.detail, **_ended(found, ran_s)))


def failed(reason: Reason, detail: str, found: Exit | None = None, ran_s: float = 0) -> JobOutcome:
    # Not cut before `without_secrets`, which would not find part of a secret.
    text = detail.encode("utf-8", "replace").decode()
    body = FailRequest(reason=reason, detail="", **_ended(found, ran_s))
    return JobOutcome(body.model_copy(update={"detail": text}))


def _ended(found: Exit | None, ran_s: float) -> dict[str, Any]:
    return {"exit_code": found and found.code, "signal": found and found.signal, "ran_s": ran_s}


def without_secrets(outcome: JobOutcome, secrets: SecretValues) -> JobOutcome:
    """The same without the run's secrets, which must not leave the host in an error text."""
    body = outcome.body
    if isinstance(body, FinishRequest):
        return outcome
    return JobOutcome(body.model_copy(update={"detail": secrets.redact_text(body.detail)[:_DETAIL_CHARS]}))


def _with_shortage(outcome: JobOutcome, ended: ChildEnd) -> JobOutcome:
    """Which memory ran out. Whom the kernel killed had no chance to do with less; the engine has tried."""
    body = outcome.body
    if not isinstance(body, FailRequest) or body.reason is not Reason.OUT_OF_MEMORY:
        return outcome
    killed = ended.exit.oom is True
    kind = MemoryKind.HOST if killed or not ended.has_gpus else MemoryKind.GPU
    if _last_words(ended.last_errors, _NO_MEMORY):
        kind = MemoryKind.HOST
    told = MemoryReport(kind=kind, shrinks=ended.shrinks and killed)
    return JobOutcome(body.model_copy(update={"memory": told}))


def _last_words(text: str, beginnings: tuple[str, ...]) -> bool:
    """Whether one of the last lines of its errors begins like this."""
    return any(line.startswith(beginnings) for line in text.splitlines())


def _reason(ended: ChildEnd, codes: Mapping[int, Reason]) -> Reason:
    found = ended.exit
    if found.oom is True:
        return Reason.OUT_OF_MEMORY
    if found.code is not None and found.code in codes:
        return codes[found.code]
    wanted = (*_NO_MEMORY, *(_NO_GPU_MEMORY if ended.has_gpus else ()))
    if found.signal is None and _last_words(ended.last_errors, wanted):
        return Reason.OUT_OF_MEMORY
    if found.signal is None or _name(found.signal) in _OWN_FAULT:
        return Reason.CODE_ERROR
    return Reason.UNKNOWN


def _detail(found: Exit, last_errors: str) -> str:
    if found.oom is True:
        what = "memory ran out: the kernel killed a process of the run"
    elif found.signal is not None:
        what = f"the command was killed by {_name(found.signal)}"
    else:
        what = f"the command ended with exit code {found.code}"
    return f"{what}\n{last_errors}".rstrip()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
