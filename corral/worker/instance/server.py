"""The worker's side of an instance: starts its parts, and sorts what the instance says."""

from __future__ import annotations

import json
import logging
import os
import secrets as random
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

import corral
from corral.domain.errors import CorralError, TooLarge
from corral.domain.secrets.redact import SecretValues
from corral.worker.instance.calls import InstanceCalls
from corral.worker.instance.channel import InstanceChannel
from corral.worker.instance.error_records import reported
from corral.worker.instance.exchange import CallFeed, OutcomeMailer
from corral.worker.instance.lent_slot import LentSlot
from corral.worker.instance.live_calls import LiveCalls
from corral.worker.instance.nested_calls import NestedCalls
from corral.worker.instance.payloads import InstancePayloads
from corral.worker.instance.watchdog import Watchdog
from corral.worker.lease import LeaseSession
from corral.worker.prepare.volumes import VolumeMounts
from corral.worker.report.recorder import Recorder

logger = logging.getLogger(__name__)

# Loaded by its place: the Python of the instance may have nothing of Corral, or another version.
_BOOT = (
    "import importlib.util as u, sys; d = sys.argv.pop(1); "
    "s = u.spec_from_file_location('corral', d + '/__init__.py', submodule_search_locations=[d]); "
    "m = u.module_from_spec(s); sys.modules['corral'] = m; s.loader.exec_module(m); "
    "from corral.instance.main import main; sys.exit(main())"
)


class InstanceServer:
    """`command` and `environment` start the instance; `start` before it does, `end` when it is gone."""

    def __init__(
        self,
        session: LeaseSession,
        folder: Path,
        *,
        recorder: Recorder,
        memory: Callable[[], int],
        slot: LentSlot,
    ) -> None:
        service, control = session.lease.spec.service, session.control
        assert service is not None, "only an instance is served"
        self._service = service
        self._lease_id = session.lease.id
        self._folder = folder
        self._recorder = recorder
        self._channel = InstanceChannel(self._lease_id)
        batches = (int(table.get("batch_size") or 0) for table in service.functions.values())
        self._calls = LiveCalls(InstanceCalls(max([service.concurrency, *batches])), self._channel)
        self._payloads = InstancePayloads(
            session, folder, given_up=lambda: self._calls.state.is_gone or control.lost
        )
        self._nested = NestedCalls(session, self._payloads, slot)
        self._feed = CallFeed(session, self._calls, self._payloads)
        self._mailer = OutcomeMailer(session, self._calls)
        self._watchdog = Watchdog(self._calls, control, recorder, slot, memory, service.max_memory)
        # Told apart from other output by this, which the instance writes where a call's output begins.
        self.mark = random.token_hex(8)
        self.kill: Callable[[], None] = lambda: None
        self.secrets = SecretValues({})
        self.mounts: VolumeMounts | None = None
        # Why the instance could not begin, as it says.
        self.broken: Mapping[str, Any] | None = None
        # Whether it was killed because a call did not end.
        self.killed_for_call = False

    def command(self, python: Path | None) -> tuple[str, ...]:
        return (str(python or sys.executable), "-P", "-c", _BOOT, os.path.dirname(corral.__file__))

    def environment(self) -> dict[str, str]:
        config = {
            "folder": str(self._folder),
            "mark": self.mark,
            "functions": self._service.functions,
            "concurrency": self._service.concurrency,
            "entry": self._service.entry,
            "params": self._service.params,
            # Its Python may have none of its own.
            "cloudpickle": os.path.dirname(cloudpickle.__file__),
        }
        volumes = {} if self.mounts is None else self.mounts.environment()
        return {"CORRAL_INSTANCE": json.dumps(config), **volumes}

    def start(self) -> None:
        self._channel.open(self._payloads.open())
        parts = {
            "channel": self._listen,
            "feed": self._feed.run,
            "mailer": self._mailer.run,
            "watchdog": self._watch,
        }
        for name, work in parts.items():
            threading.Thread(
                target=self._guarded, args=(work,), name=f"corral-instance-{name}", daemon=True
            ).start()

    def end(self) -> None:
        self._calls.gone()
        self._channel.close()
        self._mailer.send_rest()

    def why_broken(self) -> str | None:
        """For people; None if the instance began."""
        if self.broken is None:
            return None
        told = f"{self.broken.get('type')}: {self.broken.get('message')}"
        return f"{told}\n{self.broken.get('traceback') or ''}".rstrip()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Without one of its threads an instance would stand still for ever; another is better."""
        try:
            work()
        except Exception:
            logger.exception("serving the calls of %s failed; its instance is ended", self._lease_id)
            self.kill()

    def _watch(self) -> None:
        if self._watchdog.run():
            self.killed_for_call = True
            self.kill()
            self._mailer.send_rest()

    def _listen(self) -> None:
        for header, body in self._channel.messages():
            self._recorder.active()
            try:
                self._take(header, self._payloads.own(header["path"]) if header.get("path") else body)
            except Exception:
                logger.exception("a message of the instance of %s was not understood", self._lease_id)
        self._calls.gone()

    def _take(self, header: dict[str, Any], body: bytes | Path) -> None:
        match header["t"]:
            case "ready":
                self._calls.ready()
            case "broken":
                self.broken = reported(header["error"], self.secrets)
            case "result" | "chunk":
                self._store(header, body)
            case "file":
                self._payloads.grow(self._payloads.own(header["path"]), header["size"])
            case "dropped":
                self._payloads.drop(self._payloads.own(header["path"]))
            case "error":
                self._settle(header, error=reported(header["error"], self.secrets))
            case "cancelled":
                self._calls.settle_ended(header["id"], ran_s=header.get("ran_s", 0.0))
            case "ask":
                threading.Thread(target=self._answer, args=(header,), daemon=True).start()

    def _store(self, header: dict[str, Any], body: bytes | Path) -> None:
        is_chunk = header["t"] == "chunk"
        try:
            payload = self._payloads.store(header["format"], body)
        except (CorralError, OSError) as error:
            self._settle(header, error=_not_stored(error))
            if is_chunk:
                self._calls.tell_to_end(header["id"])
            return
        if is_chunk:
            self._calls.add_chunk(header["id"], header["n"], payload)
        else:
            self._settle(header, result=payload)

    def _settle(self, header: dict[str, Any], **how: Any) -> None:
        self._calls.settle(header["id"], ran_s=header.get("ran_s", 0.0), **how)

    def _answer(self, header: dict[str, Any]) -> None:
        question = {key: value for key, value in header.items() if key not in ("t", "n")}
        answer = self._nested.answer(question, self.mounts, self.secrets)
        self._channel.send({"t": "answer", "n": header["n"], **answer})


def _not_stored(error: Exception) -> dict[str, Any]:
    """Why the server does not take what the function returned."""
    kind = "ResultTooLarge" if isinstance(error, TooLarge) else "ResultLost"
    return {"type": kind, "message": f"its result could not be stored: {error}", "bases": [kind]}
