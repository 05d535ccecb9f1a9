"""Delivers how a lease ended: until it is accepted, or nobody wants it any more."""

from __future__ import annotations

import logging

from corral.domain.errors import AlreadyFinal, BlobMissing, CorralError, LeaseLost, NotFound
from corral.domain.reasons import Reason
from corral.wire.leases import FailRequest, LeaseView, OutcomeReport
from corral.worker.child.verdict import failed
from corral.worker.control import Control
from corral.worker.prepare.preparation import Host
from corral.worker.prepare.workspace import Outcome
from corral.worker.server_link import keep_trying

logger = logging.getLogger(__name__)


def deliver(host: Host, lease: LeaseView, outcome: Outcome, control: Control) -> None:
    """Return when the server has it or refuses it for good. BlobMissing: the output must be sent again."""
    report = OutcomeReport.model_validate(
        {"lease_id": lease.id, "epoch": lease.epoch, outcome.kind: outcome.body}
    )
    try:
        answer = keep_trying(
            host.link, lambda corral: host.outbox.send(corral, report), given_up=control.given_up
        )
        logger.info("%s of %s: %s, the run is %s", lease.id, lease.run_id, outcome.kind, answer.run_state)
    except (LeaseLost, NotFound) as error:
        control.lose(error.message)
    except AlreadyFinal as error:
        logger.info("%s had ended before: %s", lease.id, error)
    except BlobMissing:
        raise
    except CorralError as error:
        logger.error("the outcome of %s was refused: %s", lease.id, error)
        if not isinstance(outcome.body, FailRequest):
            deliver(host, lease, failed(Reason.UNKNOWN, f"the outcome was refused: {error.message}"), control)
