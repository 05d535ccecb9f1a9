"""What the end of a child means."""

from __future__ import annotations

import errno

import pytest

from corral.domain.redact import SecretValues
from corral.domain.runs.reasons import Reason
from corral.wire.leases import FailRequest, StoppedRequest
from corral.worker.child.process import Exit
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


def test_no_outcome_leaves_the_host_with_a_secret_in_it() -> None:
    secrets = SecretValues({"KEY": "canary-NOT-A-REAL-SECRET"})
    told = "the worker failed: cannot read /tmp/canary-NOT-A-REAL-SECRET\nand more"

    for outcome in (failed(Reason.UNKNOWN, told), stopped(StopOrder(Reason.RELEASED, told, 0), None, 0)):
        body = without_secrets(outcome, secrets).body
        assert isinstance(body, FailRequest | StoppedRequest)
        assert body.detail == "the worker failed: cannot read /tmp/[secret KEY]\nand more"
