"""What is cut to a length is searched for secrets first: part of one would not be found."""

from __future__ import annotations

import json

from corral.core.calls.reported_errors import kept_error
from corral.domain.runs.reasons import Reason
from corral.domain.secrets.redact import SecretValues
from corral.functions.errors import describe
from corral.wire.leases import FailRequest
from corral.worker.child.verdict import failed, without_secrets
from corral.worker.instance.error_records import reported

VALUE = "canary-NOT-A-REAL-SECRET-0042"
OTHER = "another-FAKE-secret-value-0043"
NAMED = SecretValues({"TOKEN": VALUE})
PROJECT = SecretValues({"TOKEN": VALUE, "OTHER": OTHER})


def _pieces(value: str) -> list[str]:
    return [value[:5], value[-5:]]


def _holds_part(text: str) -> bool:
    return any(piece in text for value in (VALUE, OTHER) for piece in _pieces(value))


def test_no_part_of_a_secret_stays_where_an_error_is_cut() -> None:
    """ATK-17: neither of one that the run names, nor of one that the server alone knows; wherever it lies in
    the message, and where it lies in the traceback, which is cut at its beginning."""
    for at in range(9960, 10_001, 4):
        for value in (VALUE, OTHER):
            try:
                raise ValueError("m" * at + value + "n" * (20_000 - len(value)))
            except ValueError as error:
                record = describe(error)
            kept = json.loads(kept_error(reported(record, NAMED), PROJECT))

            assert len(kept["message"]) <= 10_000
            assert len(kept["traceback"]) <= 20_000
            assert kept["message"].startswith("mmmm")
            assert not _holds_part(kept["message"])
            assert not _holds_part(kept["traceback"]), at


def test_no_part_of_a_secret_stays_where_the_detail_of_a_failure_is_cut() -> None:
    """ATK-17: a long reason is searched before it is cut."""
    for at in range(19_960, 20_001, 4):
        outcome = without_secrets(failed(Reason.ENVIRONMENT, "m" * at + VALUE), NAMED)
        assert isinstance(outcome.body, FailRequest)
        assert not _holds_part(outcome.body.detail)
        FailRequest.model_validate(outcome.body.model_dump())
