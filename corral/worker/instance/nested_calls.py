"""Answers what code in an instance asks the worker for: calls of other functions, and its volumes."""

from __future__ import annotations

import base64
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from corral.client.http.outage import PATIENCE_S, is_away
from corral.domain.errors import CorralError
from corral.domain.secrets.redact import SecretValues
from corral.wire.calls import NestedAnswer, NestedRequest
from corral.worker.instance.lent_slot import LentSlot
from corral.worker.instance.payloads import InstancePayloads
from corral.worker.lease import LeaseSession
from corral.worker.prepare.volumes import VolumeMounts
from corral.worker.server_link import Pauses, WaitAbandoned

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
            answer = self._asked(NestedRequest.model_validate(question))
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

    def _asked(self, request: NestedRequest) -> NestedAnswer:
        """While the server is away, it is waited for: the calls that were made go on without it."""
        lease, link, pauses = self.session.lease, self.session.link, Pauses()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self.slot.waiting() if request.wait_s else nullcontext():
                    return link.corral.calls.nested(lease.id, lease.epoch, request)
            except CorralError as error:
                if not is_away(error) or self.payloads.given_up or time.monotonic() > deadline:
                    raise
                link.look_again()
                time.sleep(pauses.next_s())


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
