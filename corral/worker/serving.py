"""The worker's side of an instance: fetches calls for it, tells what it says, ends what runs too long."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import secrets as random
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import corral
from corral.domain.call import INLINE_BYTES
from corral.domain.errors import CorralError, LeaseLost, NotFound, TooLarge
from corral.domain.redaction import Secrets
from corral.runner.channel import INLINE_MAX, Channel
from corral.wire.calls import (
    ChunksBody,
    GivenCall,
    LeaseCallsAnswer,
    LeaseCallsRequest,
    NestedRequest,
    OutcomeBody,
    PayloadBody,
)
from corral.wire.leases import Lease
from corral.worker.control import Control
from corral.worker.link import PASSING, Link, Pauses
from corral.worker.recorder import Recorder

logger = logging.getLogger(__name__)

POLL_S = 20.0
# How soon an instance that is busy hears that a call of its was cancelled.
LOOK_S = 0.5
# What a call gets to clear up, between being told that its time is over and the end of its process.
CLEAR_UP_S = 1.0
# Loaded by its place: the Python of the instance may have nothing of Corral, or another version.
_BOOT = (
    "import importlib.util as u, sys; d = sys.argv.pop(1); "
    "s = u.spec_from_file_location('corral', d + '/__init__.py', submodule_search_locations=[d]); "
    "m = u.module_from_spec(s); sys.modules['corral'] = m; s.loader.exec_module(m); "
    "from corral.runner.main import main; sys.exit(main())"
)


@dataclass
class _Held:
    call: GivenCall
    began: float
    ends_at: float | None
    chunks: int = 0
    told_to_end: float | None = None


@dataclass
class Serving:
    """`command` and `environment` start the instance; then `run` in a thread beside its supervision."""

    link: Link
    lease: Lease
    folder: Path
    control: Control
    recorder: Recorder
    kill: Callable[[], None] = field(default=lambda: None)
    broken: Mapping[str, Any] | None = None
    secrets: Secrets = field(default_factory=lambda: Secrets({}))
    timed_out: bool = False
    mark: str = field(default_factory=lambda: random.token_hex(8))

    def __post_init__(self) -> None:
        service = self.lease.spec.service
        assert service is not None, "only an instance is served"
        self._service = service
        self._capacity = max(
            [service.concurrency, *(int(one.get("batch_size") or 0) for one in service.functions.values())]
        )
        self._lock = threading.Condition()
        self._held: dict[str, _Held] = {}
        self._outcomes: list[OutcomeBody] = []
        self._chunks: list[ChunksBody] = []
        self._ready = False
        self._ended = False
        self._stopping = False
        self._polling = False
        self._channel: Channel | None = None

    def command(self, python: Path | None) -> tuple[str, ...]:
        return (str(python or sys.executable), "-P", "-c", _BOOT, os.path.dirname(corral.__file__))

    def environment(self) -> dict[str, str]:
        service = self._service
        config = {
            "folder": str(self.folder),
            "mark": self.mark,
            "functions": service.functions,
            "concurrency": service.concurrency,
            "entry": service.entry,
            "params": service.params,
        }
        return {"CORRAL_INSTANCE": json.dumps(config)}

    def start(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._listener = _listener(self.folder)
        for work in (self._hear, self._poll, self._tell, self._watch):
            threading.Thread(target=work, name=f"corral-serving{work.__name__}", daemon=True).start()

    def end(self) -> None:
        """The instance is gone: what it had and did not answer is the server's to give to another."""
        with self._lock:
            self._ended = True
            self._lock.notify_all()
        self._listener.close()
        if self._channel is not None:
            self._channel.close()
        self._send_rest()

    def _hear(self) -> None:
        """What the instance says."""
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._channel = Channel(sock)
        while (message := self._channel.receive()) is not None:
            header, body = message
            try:
                self._heard(header, self._body(header, body))
            except Exception:
                logger.exception("a message of the instance of %s was not understood", self.lease.id)
        with self._lock:
            self._ended = True
            self._lock.notify_all()

    def _body(self, header: dict[str, Any], body: bytes) -> bytes | Path:
        return Path(header["path"]) if header.get("path") else body

    def _heard(self, header: dict[str, Any], body: bytes | Path) -> None:
        self.recorder.active()
        match header["t"]:
            case "ready":
                with self._lock:
                    self._ready = True
                    self._lock.notify_all()
            case "broken":
                self.broken = self._redacted(header["error"])
            case "result":
                try:
                    payload = self._stored(header["format"], body)
                except (CorralError, OSError) as error:
                    self._settle(header, error=_not_kept(error))
                else:
                    self._settle(header, result=payload)
            case "error":
                self._settle(header, error=self._redacted(header["error"]))
            case "cancelled":
                self._settle_cancelled(header)
            case "chunk":
                try:
                    payload = self._stored(header["format"], body)
                except (CorralError, OSError) as error:
                    self._settle(header, error=_not_kept(error))
                    self._say({"t": "cancel", "id": header["id"]})
                else:
                    self._take_chunk(header, payload)
            case "ask":
                threading.Thread(target=self._answer, args=(header,), daemon=True).start()

    def _redacted(self, error: dict[str, Any]) -> dict[str, Any]:
        """No secret leaves the host in what an exception says, or keeps."""
        kept = {
            key: self.secrets.redact_text(value) if isinstance(value, str) else value
            for key, value in error.items()
            if key not in ("args", "state")
        }
        for key in ("args", "state"):
            data = base64.b64decode(error.get(key) or "")
            kept[key] = error.get(key) if self.secrets.redact(data) == data else None
        return kept

    def _stored(self, form: str, body: bytes | Path) -> PayloadBody:
        """As it travels: small ones inline, large ones uploaded first."""
        data = body.read_bytes() if isinstance(body, Path) else body
        if isinstance(body, Path):
            body.unlink()
        if len(data) <= INLINE_BYTES:
            return inline(form, data)
        digest = hashlib.sha256(data).hexdigest()
        sink = self.link.corral.leases.sink(self.lease.id, self.lease.epoch)
        self._patiently(lambda: sink.keep(digest, data))
        return PayloadBody(format=form, blob=digest, size=len(data))

    def _settle(self, header: dict[str, Any], **how: Any) -> None:
        with self._lock:
            held = self._held.pop(header["id"], None)
            if held is None:
                return
            self._outcomes.append(
                OutcomeBody(
                    call_id=header["id"],
                    attempt=header["attempt"],
                    ran_s=header.get("ran_s", 0.0),
                    chunks=held.chunks,
                    **how,
                )
            )
            self._lock.notify_all()

    def _settle_cancelled(self, header: dict[str, Any]) -> None:
        held = self._held.get(header["id"])
        if held is not None and held.told_to_end is not None and held.ends_at is not None:
            self._settle(header, error=self._timeout(held))
        else:
            self._settle(header, cancelled=True)

    def _timeout(self, held: _Held) -> dict[str, Any]:
        message = f"{held.call.function}() ran longer than its timeout of {held.call.timeout_s:g} s"
        return {
            "type": "CallTimeout",
            "message": message,
            "bases": ["CallTimeout", "TimeoutError", "builtins.TimeoutError"],
        }

    def _take_chunk(self, header: dict[str, Any], payload: PayloadBody) -> None:
        with self._lock:
            held = self._held.get(header["id"])
            if held is None:
                return
            held.chunks = header["n"]
            last = self._chunks[-1] if self._chunks else None
            if last is not None and last.call_id == header["id"] and len(last.chunks) < 200:
                self._chunks[-1] = last.model_copy(update={"chunks": [*last.chunks, payload]})
            else:
                self._chunks.append(
                    ChunksBody(
                        call_id=header["id"], attempt=header["attempt"], first=header["n"], chunks=[payload]
                    )
                )
            self._lock.notify_all()

    def _poll(self) -> None:
        """Asks for calls while there is room for them."""
        pauses = Pauses()
        while True:
            with self._lock:
                while not self._ended and not self._may_ask():
                    self._lock.wait()
                if self._ended or self._stopping:
                    return
                self._polling = True
                request = self._request(want=self._capacity - len(self._held), wait_s=POLL_S)
            try:
                answer = self.link.corral.calls.exchange(self.lease.id, self.lease.epoch, request)
                pauses.reset()
                self.link.answered()
            except (LeaseLost, NotFound) as error:
                self.control.lose(error.message)
                return
            except PASSING:
                self._give_back(request)
                self.link.look_again()
                time.sleep(pauses.next_s())
                continue
            except CorralError as error:
                logger.error("the server refuses the calls of %s: %s", self.lease.id, error.message)
                self._give_back(request)
                time.sleep(pauses.next_s())
                continue
            finally:
                with self._lock:
                    self._polling = False
            self._take(answer)

    def _may_ask(self) -> bool:
        if self._stopping:
            return True
        return self._ready and len(self._held) < self._capacity and self.control.wish() is None

    def _request(self, *, want: int, wait_s: float) -> LeaseCallsRequest:
        outcomes, self._outcomes = self._outcomes, []
        chunks, self._chunks = self._chunks, []
        return LeaseCallsRequest(
            outcomes=outcomes, chunks=chunks, holding=list(self._held), want=want, wait_s=wait_s
        )

    def _give_back(self, request: LeaseCallsRequest) -> None:
        """What could not be told is told with the next word: nothing is lost while we live."""
        with self._lock:
            self._outcomes = [*request.outcomes, *self._outcomes]
            self._chunks = [*request.chunks, *self._chunks]

    def _take(self, answer: LeaseCallsAnswer) -> None:
        for call_id in answer.cancelled:
            self._cancel(call_id)
        for call in answer.calls:
            try:
                self._hand(call)
            except (CorralError, OSError, ValueError) as error:
                self._cannot_begin(call, error)
        if answer.stop and not answer.calls:
            self._stop()

    def _hand(self, call: GivenCall) -> None:
        now = time.monotonic()
        held = _Held(call, now, None if call.timeout_s is None else now + call.timeout_s)
        with self._lock:
            if (known := self._held.get(call.id)) is not None:
                if known.call.attempt != call.attempt:
                    # The try before is still being ended here; another instance may have this one.
                    self._outcomes.append(OutcomeBody(call_id=call.id, attempt=call.attempt, gave_back=True))
                return
            self._held[call.id] = held
        header = {
            "t": "call",
            "id": call.id,
            "attempt": call.attempt,
            "function": call.function,
            "format": call.args.format,
        }
        body = b""
        if call.args.blob is not None:
            header["path"] = str(self._downloaded(call.args.blob))
        else:
            body = call.args.payload().body or b""
        if len(body) > INLINE_MAX:
            path = self.folder / random.token_hex(8)
            path.write_bytes(body)
            header["path"], body = str(path), b""
        self._say(header, body)

    def _cannot_begin(self, call: GivenCall, error: Exception) -> None:
        why = f"its arguments could not be brought to the instance: {error}"
        self._settle(
            {"id": call.id, "attempt": call.attempt},
            error={"type": "CannotStart", "message": why, "bases": ["CannotStart"]},
        )

    def _downloaded(self, digest: str) -> Path:
        path = self.folder / random.token_hex(8)
        source = self.link.corral.leases.source(self.lease.id, self.lease.epoch)
        self._patiently(lambda: source.save(digest, path))
        return path

    def _patiently(self, work: Callable[[], None]) -> None:
        pauses = Pauses()
        while not self._ended and not self.control.lost:
            try:
                return work()
            except PASSING:
                self.link.look_again()
                time.sleep(pauses.next_s())
        return None

    def _say(self, header: dict[str, Any], body: bytes = b"") -> None:
        try:
            if self._channel is not None:
                self._channel.send(header, body)
        except OSError:
            logger.info("the instance of %s is gone", self.lease.id)

    def _cancel(self, call_id: str) -> None:
        with self._lock:
            held = self._held.get(call_id)
            if held is None or held.told_to_end is not None:
                return
            held.told_to_end = time.monotonic()
            held.ends_at = None
        self._say({"t": "cancel", "id": call_id})

    def _stop(self) -> None:
        """No more calls; the instance ends when those that it has are done."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            self._lock.notify_all()
        threading.Thread(target=self._stop_when_done, name="corral-serving-stop", daemon=True).start()

    def _stop_when_done(self) -> None:
        with self._lock:
            while self._held and not self._ended:
                self._lock.wait(LOOK_S)
        self._say({"t": "stop"})

    def _tell(self) -> None:
        """Outcomes that come while a request is under way, and now and then a look for calls to be ended."""
        while True:
            with self._lock:
                while not self._ended and not self._has_news():
                    if not self._lock.wait(LOOK_S) and self._held and not self._polling:
                        break
                if self._ended:
                    return
                if not self._polling and self._may_ask() and not self._stopping:
                    # The next poll takes it along.
                    self._lock.wait(0.05)
                    continue
                request = self._request(want=0, wait_s=0)
            self._told(request)

    def _has_news(self) -> bool:
        return bool(self._outcomes or self._chunks)

    def _told(self, request: LeaseCallsRequest) -> None:
        try:
            answer = self.link.corral.calls.exchange(self.lease.id, self.lease.epoch, request)
            self.link.answered()
        except (LeaseLost, NotFound) as error:
            self.control.lose(error.message)
            return
        except (*PASSING, CorralError):
            self._give_back(request)
            self.link.look_again()
            time.sleep(LOOK_S)
            return
        for call_id in answer.cancelled:
            self._cancel(call_id)

    def _send_rest(self) -> None:
        with self._lock:
            request = self._request(want=0, wait_s=0).model_copy(update={"holding": []})
        if request.outcomes or request.chunks:
            self._told(request)

    def _watch(self) -> None:
        """Times that are over, and a wish to stop."""
        while not self._ended:
            time.sleep(0.05)
            if self.control.wish() is not None:
                self._stop()
            now = time.monotonic()
            with self._lock:
                late = [one for one in self._held.values() if one.ends_at is not None and now >= one.ends_at]
                stuck = [one for one in self._held.values() if self._is_stuck(one, now)]
            for one in late:
                if one.told_to_end is None:
                    one.told_to_end = now
                    self._say({"t": "cancel", "id": one.call.id})
            if stuck:
                self._end_process(stuck)
                return

    def _is_stuck(self, held: _Held, now: float) -> bool:
        return held.told_to_end is not None and now - held.told_to_end >= CLEAR_UP_S

    def _end_process(self, stuck: list[_Held]) -> None:
        """Nothing else ends code that does not listen. The other calls are given back at no cost."""
        with self._lock:
            for one in stuck:
                self._held.pop(one.call.id, None)
                self._outcomes.append(self._ended_by_force(one))
            for other in self._held.values():
                self._outcomes.append(
                    OutcomeBody(call_id=other.call.id, attempt=other.call.attempt, gave_back=True)
                )
            self._held.clear()
            self.timed_out = True
        self.recorder.say("a call did not end when it was told to; its process is killed")
        self.kill()
        self._send_rest()

    def _ended_by_force(self, held: _Held) -> OutcomeBody:
        ran_s = time.monotonic() - held.began
        if held.ends_at is None:
            return OutcomeBody(call_id=held.call.id, attempt=held.call.attempt, ran_s=ran_s, cancelled=True)
        return OutcomeBody(
            call_id=held.call.id, attempt=held.call.attempt, ran_s=ran_s, error=self._timeout(held)
        )

    def _answer(self, header: dict[str, Any]) -> None:
        """A call from within a call."""
        number = header.pop("n")
        header.pop("t")
        try:
            request = NestedRequest.model_validate(header)
            answer = self.link.corral.calls.nested(self.lease.id, self.lease.epoch, request)
        except CorralError as error:
            self._say({"t": "answer", "n": number, "problem": f"{error.message} {error.hint}".strip()})
            return
        except ValueError as error:
            self._say({"t": "answer", "n": number, "problem": str(error)})
            return
        said = answer.model_dump(mode="json")
        try:
            for table in _payloads(said):
                if table.get("body") is None and table.get("blob"):
                    table["body"] = base64.b64encode(self._read(table["blob"])).decode("ascii")
        except CorralError as error:
            self._say({"t": "answer", "n": number, "problem": error.message})
            return
        self._say({"t": "answer", "n": number, **said})

    def _read(self, digest: str) -> bytes:
        source = self.link.corral.leases.source(self.lease.id, self.lease.epoch)
        return source.whole(digest)


def _payloads(said: dict[str, Any]) -> list[dict[str, Any]]:
    """Every result and chunk of an answer."""
    views = [*said["calls"], *([said["call"]] if said["call"] else [])]
    return [view["result"] for view in views if view.get("result")] + [
        one["payload"] for one in said["chunks"]
    ]


def _not_kept(error: Exception) -> dict[str, Any]:
    """Why the server does not take what the function gave."""
    kind = "ResultTooLarge" if isinstance(error, TooLarge) else "ResultLost"
    return {"type": kind, "message": f"its result could not be stored: {error}", "bases": [kind]}


def inline(form: str, data: bytes) -> PayloadBody:
    return PayloadBody(format=form, body=base64.b64encode(data).decode("ascii"), size=len(data))


def _listener(folder: Path) -> socket.socket:
    """A path to a socket must be short, and folders may be deep: so it is named through an open folder."""
    made = socket.socket(socket.AF_UNIX)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        made.bind(
            f"/proc/self/fd/{opened}/calls.sock" if sys.platform == "linux" else str(folder / "calls.sock")
        )
    finally:
        os.close(opened)
    made.listen(1)
    return made


def told_of(broken: Mapping[str, Any]) -> str:
    """Why an instance could not begin, for people."""
    text = str(broken.get("traceback") or "")
    return f"{broken.get('type')}: {broken.get('message')}\n{text}".rstrip()
