"""What the end of a child means."""

from __future__ import annotations

import errno

import pytest

from corral.domain.runs.reasons import Reason
from corral.domain.runs.retries import MemoryKind
from corral.domain.secrets.redact import SecretValues
from corral.wire.leases import FailRequest, MemoryReport, StoppedRequest
from corral.worker.child.command import Exit
from corral.worker.child.verdict import (
    ENGINE_CODES,
    ChildEnd,
    failed,
    stopped,
    verdict,
    without_secrets,
)
from corral.worker.lease import StopOrder


def failure(found: Exit) -> FailRequest:
    body = verdict(ChildEnd(found, ran_s=0)).body
    assert isinstance(body, FailRequest)
    return body


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOENT, 127), (errno.EACCES, 126), (errno.ENOEXEC, 126), (None, 126)]
)
def test_a_command_that_cannot_be_executed_ends_as_in_a_shell(number: int | None, code: int) -> None:
    body = failure(Exit(error="cannot execute 'x': why", errno=number))

    assert (body.reason, body.exit_code, body.signal) == (Reason.CODE_ERROR, code, None)
    assert body.detail == "cannot execute 'x': why"


def test_a_child_whose_supervisor_was_lost_has_no_exit_code() -> None:
    body = failure(Exit(error="its supervisor was lost", signal=9))

    assert (body.reason, body.exit_code, body.signal) == (Reason.UNKNOWN, None, 9)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(2, Reason.BAD_DATA), (3, Reason.CODE_ERROR), (4, Reason.OUT_OF_MEMORY), (1, Reason.CODE_ERROR)],
)
def test_the_engine_tells_its_reason_by_its_exit_code(code: int, reason: Reason) -> None:
    body = verdict(ChildEnd(Exit(code=code), ran_s=0), ENGINE_CODES).body

    assert isinstance(body, FailRequest)
    assert (body.reason, body.exit_code) == (reason, code)
    assert failure(Exit(code=code)).reason is Reason.CODE_ERROR


CUDA = (
    "Traceback (most recent call last):\n  ...\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 23 GiB"
    "\n[rank0]:[W] the process group was not destroyed"
)
GPU, RAM = MemoryKind.GPU, MemoryKind.HOST


@pytest.mark.parametrize(
    ("ended", "engine", "kind", "shrinks"),
    [
        pytest.param(ChildEnd(Exit(signal=9, oom=True), 1), False, RAM, False, id="the kernel killed it"),
        pytest.param(
            ChildEnd(Exit(code=1, oom=True), 1, has_gpus=True), False, RAM, False, id="or its child"
        ),
        pytest.param(ChildEnd(Exit(signal=9, oom=True), 1, shrinks=True), True, RAM, True, id="training"),
        pytest.param(ChildEnd(Exit(code=4), 1, has_gpus=True), True, GPU, False, id="the engine on a GPU"),
        pytest.param(ChildEnd(Exit(code=4), 1, shrinks=True), True, RAM, False, id="the engine on a CPU"),
        pytest.param(
            ChildEnd(Exit(code=1), 1, has_gpus=True, last_errors=CUDA), False, GPU, False, id="torch says it"
        ),
        pytest.param(
            ChildEnd(Exit(code=1), 1, has_gpus=True, last_errors="  File ...\nMemoryError"),
            False,
            RAM,
            False,
            id="Python says it",
        ),
    ],
)
def test_which_memory_ran_out_is_told(ended: ChildEnd, engine: bool, kind: MemoryKind, shrinks: bool) -> None:
    """MT-D18: a larger card is of no use to a run that ran out of its host's memory."""
    body = verdict(ended, ENGINE_CODES if engine else {}).body

    assert isinstance(body, FailRequest)
    assert body.reason is Reason.OUT_OF_MEMORY
    assert body.memory == MemoryReport(kind=kind, shrinks=shrinks)


@pytest.mark.parametrize("errors", [CUDA, "it said: MemoryError", "ValueError: CUDA out of memory"])
def test_words_about_memory_alone_are_no_evidence(errors: str) -> None:
    """Of a run without GPUs, or in the middle of a line."""
    body = verdict(ChildEnd(Exit(code=1), ran_s=1, last_errors=errors)).body

    assert isinstance(body, FailRequest)
    assert (body.reason, body.memory) == (Reason.CODE_ERROR, None)
    assert "memory" not in body.model_dump()


def test_no_outcome_leaves_the_host_with_a_secret_in_it() -> None:
    secrets = SecretValues({"KEY": "canary-NOT-A-REAL-SECRET"})
    told = "the worker failed: cannot read /tmp/canary-NOT-A-REAL-SECRET\nand more"

    for outcome in (failed(Reason.UNKNOWN, told), stopped(StopOrder(Reason.RELEASED, told, 0), None, 0)):
        body = without_secrets(outcome, secrets).body
        assert isinstance(body, FailRequest | StoppedRequest)
        assert body.detail == "the worker failed: cannot read /tmp/[secret KEY]\nand more"
