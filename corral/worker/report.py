"""Delivers how a lease ended: until it is accepted, or nobody wants it any more."""

from __future__ import annotations

import logging

from corral.client.api import Corral
from corral.domain.errors import AlreadyFinal, BlobMissing, CorralError, LeaseLost, NotFound
from corral.domain.reasons import Reason
from corral.wire.leases import FailRequest, FinishRequest, Lease, OutcomeAnswer, StoppedRequest
from corral.worker.control import Control
from corral.worker.link import Link, keep_trying
from corral.worker.verdict import failed
from corral.worker.workspace import Outcome

logger = logging.getLogger(__name__)


def deliver(link: Link, lease: Lease, outcome: Outcome, control: Control) -> None:
    """Return when the server has it or refuses it for good. BlobMissing: the output must be sent again."""
    try:
        answer = keep_trying(link, lambda corral: _send(corral, lease, outcome), given_up=control.given_up)
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
            deliver(link, lease, failed(Reason.UNKNOWN, f"the outcome was refused: {error.message}"), control)


def _send(corral: Corral, lease: Lease, outcome: Outcome) -> OutcomeAnswer:
    match outcome.body:
        case FinishRequest() as body:
            return corral.leases.finish(lease.id, lease.epoch, body)
        case FailRequest() as body:
            return corral.leases.fail(lease.id, lease.epoch, body)
        case StoppedRequest() as body:
            return corral.leases.stopped(lease.id, lease.epoch, body)
