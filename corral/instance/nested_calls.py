"""Calls from within a call: the worker makes them, with the rights of this instance's own run."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from corral.errors import FunctionError
from corral.functions.backend import CallStatus, EndpointTarget, OutgoingCall, Payload
from corral.functions.errors import problem_of
from corral.functions.member import Member, endpoint_name
from corral.functions.serialize import as_text, from_text, whole
from corral.instance.channel import Channel
from corral.instance.output import current

_ANSWER_S = 5.0


class InstanceBackend:
    _numbers: ClassVar[Iterator[int]] = itertools.count(1)
    _waiting: ClassVar[dict[int, tuple[threading.Event, list[Any]]]] = {}

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @classmethod
    def answered(cls, header: dict[str, Any]) -> None:
        waiting = cls._waiting.pop(header["n"], None)
        if waiting is not None:
            waiting[1].append(header)
            waiting[0].set()

    def find(self, member: Member) -> EndpointTarget:
        """Members of the same app stand beside this one."""
        answer = self._ask("find", endpoint=member.endpoint)
        return EndpointTarget(answer["project"], answer["endpoint"], answer["version"])

    def look_up(self, project: str | None, name: str) -> tuple[EndpointTarget, dict[str, Any], str]:
        """In the project of this instance, and in no other."""
        head, _, method = name.rpartition(".")
        try:
            answer, method = self._ask("find", endpoint=endpoint_name(name)), ""
        except FunctionError:
            if not head:
                raise
            answer = self._ask("find", endpoint=endpoint_name(head))
        if project not in (None, answer["project"]):
            raise FunctionError(f"this runs in project {answer['project']} and may call nothing of {project}")
        return EndpointTarget(answer["project"], answer["endpoint"]), answer["functions"], method

    def forget(self, target: EndpointTarget) -> None:
        """Nothing is remembered here."""

    def make(self, target: EndpointTarget, asks: Sequence[OutgoingCall], wait_s: float) -> list[CallStatus]:
        calls = [
            {
                "function": one.function,
                "args": {"format": one.format, "body": as_text(whole(one.args))},
                "params": None
                if one.params is None
                else {"format": one.params[0], "body": as_text(one.params[1])},
                "key": one.key,
                "priority": one.priority,
                "options": one.options,
            }
            for one in asks
        ]
        answer = self._ask(
            "make",
            project=target.project,
            endpoint=target.endpoint,
            version=target.version,
            calls=calls,
            wait_s=wait_s,
            parent=current.get() or None,
        )
        return [_status(one) for one in answer["calls"]]

    def collect(self, call_ids: Sequence[str], wait_s: float) -> list[CallStatus]:
        return [_status(one) for one in self._ask("collect", ids=list(call_ids), wait_s=wait_s)["calls"]]

    def get(self, call_id: str, wait_s: float, within_s: float | None = None) -> CallStatus:
        return _status(self._ask("get", within_s, id=call_id, wait_s=wait_s)["call"])

    def chunks(
        self, call_id: str, after: int, wait_s: float
    ) -> tuple[dict[int, Payload], bool, dict[str, Any] | None]:
        answer = self._ask("chunks", id=call_id, after=after, wait_s=wait_s)
        given = {one["n"]: _payload(one["payload"]) for one in answer["chunks"]}
        return given, answer["ended"], answer["error"]

    def cancel(self, call_id: str) -> None:
        self._ask("cancel", id=call_id)

    def logs(self, call_id: str) -> Iterator[str]:
        raise FunctionError("logs are read from outside: `corral calls logs`")

    def volume(self, name: str, project: str | None, what: str, given: dict[str, Any]) -> dict[str, Any]:
        """The worker keeps the folders, and speaks with the server."""
        if what not in ("path", "commit", "reload"):
            raise FunctionError(
                f"inside a function, a volume is its folder: use vol.path instead of {what}()"
            )
        return self._ask("volume", volume=name, do=what, **given)

    def _ask(self, what: str, within_s: float | None = None, /, **given: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answered, box = threading.Event(), []  # type: ignore[var-annotated]
        self._waiting[number] = (answered, box)
        self._channel.send({"t": "ask", "n": number, "what": what, **given})
        # The worker waits for a server that is away; it has a little longer than the server's own answer.
        if not answered.wait(None if within_s is None else within_s + _ANSWER_S):
            self._waiting.pop(number, None)
            raise FunctionError(f"the server did not answer within {within_s:g} s")
        answer: dict[str, Any] = box[0]
        if problem := answer.get("problem"):
            raise problem_of(answer.get("code"), problem)
        return answer


def _status(table: dict[str, Any]) -> CallStatus:
    result = table.get("result")
    return CallStatus(
        table["id"],
        table["state"],
        None if result is None else _payload(result),
        table.get("error"),
        table.get("waiting"),
    )


def _payload(table: dict[str, Any]) -> Payload:
    return table["format"], from_text(table["body"])
