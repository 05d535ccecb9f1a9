"""Answers what code in an instance asks the worker for: calls of other functions, and its volumes."""

from __future__ import annotations

import base64
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from corral.domain.errors import CorralError
from corral.domain.redaction import SecretValues
from corral.wire.calls import NestedRequest
from corral.worker.instance.lent_slot import LentSlot
from corral.worker.instance.payloads import InstancePayloads
from corral.worker.lease import LeaseSession
from corral.worker.prepare.volumes import VolumeMounts
from corral.worker.server_link import WaitAbandoned

Answer = dict[str, Any]


@dataclass(frozen=True)
class NestedCalls:
    """Each question is answered in a thread of its own: it may wait for a call to end."""

    session: LeaseSession
    payloads: InstancePayloads
    slot: LentSlot

    def answer(self, question: dict[str, Any], mounts: VolumeMounts | None, secrets: SecretValues) -> Answer:
        if question.get("what") == "volume":
            assert mounts is not None, "it is made with the instance"
            return _volume(question, mounts, secrets)
        try:
            request = NestedRequest.model_validate(question)
            lease = self.session.lease
            with self.slot.waiting() if request.wait_s else nullcontext():
                answer = self.session.link.corral.calls.nested(lease.id, lease.epoch, request)
        except CorralError as error:
            return {"problem": _text(error)}
        except ValueError as error:
            return {"problem": str(error)}
        said = answer.model_dump(mode="json")
        try:
            for payload in _payloads(said):
                if payload.get("body") is None and payload.get("blob"):
                    body = self.payloads.read(payload["blob"])
                    payload["body"] = base64.b64encode(body).decode("ascii")
        except CorralError as error:
            return {"problem": error.message}
        return said


def _volume(question: dict[str, Any], mounts: VolumeMounts, secrets: SecretValues) -> Answer:
    try:
        mounts.secrets = secrets
        return mounts.do(question["volume"], question["do"], discard=bool(question.get("discard")))
    except CorralError as error:
        return {"problem": secrets.redact_text(_text(error)), "code": error.code}
    except (OSError, WaitAbandoned) as error:
        return {"problem": f"the volume cannot be written or read: {error}"}


def _text(error: CorralError) -> str:
    return f"{error.message} {error.hint}".strip()


def _payloads(said: dict[str, Any]) -> list[dict[str, Any]]:
    """Every result and chunk of an answer."""
    views = [*said["calls"], *([said["call"]] if said["call"] else [])]
    return [view["result"] for view in views if view.get("result")] + [
        one["payload"] for one in said["chunks"]
    ]
