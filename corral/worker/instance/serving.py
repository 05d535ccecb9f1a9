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
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

import corral
from corral.client.blobs import BlobSink, beside
from corral.domain.calls import INLINE_BYTES
from corral.domain.errors import CorralError, LeaseLost, NotFound, TooLarge
from corral.domain.redaction import SecretValues
from corral.runner.channel import INLINE_MAX, Channel
from corral.wire.blobs import StoredBlob
from corral.wire.calls import (
    MOST_CALLS,
    AssignedCall,
    ChunksBody,
    LeaseCallsAnswer,
    LeaseCallsRequest,
    NestedRequest,
    OutcomeBody,
)
from corral.wire.leases import LeaseView
from corral.wire.payloads import PayloadBody
from corral.worker.control import Control
from corral.worker.prepare.volumes import Mounts
from corral.worker.report.recorder import Recorder
from corral.worker.server_link import PASSING, GivenUp, Link, Pauses

logger = logging.getLogger(__name__)

POLL_S = 20.0
# How soon an instance that is busy hears that a call of its was cancelled.
LOOK_S = 0.5
# Calls that are short are given to an instance ahead of their turn: so much work, and so many at most.
AHEAD_S = 0.05
MOST_AHEAD = 64
# Of a shorter one the outcome travels with the next request for calls.
SHORT_S = 0.005
# What has waited here for so long is given back for another instance to take.
STALE_S = 0.25
# How long outcomes are gathered while there is more to do.
GATHER_S = 0.01
# How often an instance is weighed that may not have more than so much memory.
MEMORY_S = 1.0
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
    """A call that was given to us; `began` when it was handed to the instance."""

    call: AssignedCall
    header: dict[str, Any]
    body: bytes
    came: float
    began: float | None = None
    ends_at: float | None = None
    chunks: int = 0
    told_to_end: float | None = None


@dataclass
class Serving:
    """`command` and `environment` start the instance; then `run` in a thread beside its supervision."""

    link: Link
    lease: LeaseView
    folder: Path
    control: Control
    recorder: Recorder
    memory: Callable[[], int]
    kill: Callable[[], None] = field(default=lambda: None)
    broken: Mapping[str, Any] | None = None
    secrets: SecretValues = field(default_factory=lambda: SecretValues({}))
    timed_out: bool = False
    mounts: Mounts | None = None
    mark: str = field(default_factory=lambda: random.token_hex(8))

    def __post_init__(self) -> None:
        service = self.lease.spec.service
        assert service is not None, "only an instance is served"
        self._service = service
        self._capacity = max(
            [service.concurrency, *(int(one.get("batch_size") or 0) for one in service.functions.values())]
        )
        self._lock = threading.RLock()
        # Told when there may be something to ask for, or to tell.
        self._asking = threading.Condition(self._lock)
        self._telling = threading.Condition(self._lock)
        self._held: dict[str, _Held] = {}
        # Files that the instance is writing, on their way to the server already.
        self._handing: dict[Path, Future[StoredBlob | None]] = {}
        # Those of them that are not handed to the instance yet.
        self._ahead: deque[_Held] = deque()
        self._outcomes: list[OutcomeBody] = []
        # Calls of whose end a request is telling the server at this moment.
        self._under_way: set[str] = set()
        self._chunks: list[ChunksBody] = []
        # Since when there is something to tell.
        self._news_at: float | None = None
        # How long a call takes here, of late; and whether the last request was given all that it asked for.
        self._pace_s: float | None = None
        self._deep = False
        self._waits_for_room = False
        self._ready = False
        self._ended = False
        self._stopping = False
        self._polling = False
        # A request for calls that was sent, and what waits for its answer.
        self._begun: tuple[LeaseCallsRequest, Callable[[], LeaseCallsAnswer]] | None = None
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
            # Its Python may have none of its own.
            "cloudpickle": os.path.dirname(cloudpickle.__file__),
        }
        return {"CORRAL_INSTANCE": json.dumps(config)}

    def start(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._listener = _listener(self.folder)
        for work in (self._hear, self._poll, self._tell, self._watch):
            name = f"corral-serving{work.__name__}"
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True).start()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Without one of its threads an instance would stand still for ever; another is better."""
        try:
            work()
        except Exception:
            logger.exception("serving the calls of %s failed; its instance is ended", self.lease.id)
            self.kill()

    def end(self) -> None:
        """The instance is gone: what it had and did not answer is the server's to give to another."""
        self._over()
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
        self._over()

    def _over(self) -> None:
        with self._lock:
            self._ended = True
            self._wake()

    def _wake(self) -> None:
        self._asking.notify_all()
        self._telling.notify_all()

    def _body(self, header: dict[str, Any], body: bytes) -> bytes | Path:
        return Path(header["path"]) if header.get("path") else body

    def _heard(self, header: dict[str, Any], body: bytes | Path) -> None:
        self.recorder.active()
        match header["t"]:
            case "ready":
                with self._lock:
                    self._ready = True
                    self._wake()
            case "broken":
                self.broken = self._redacted(header["error"])
            case "result" | "chunk":
                self._given(header, body)
            case "file" | "dropped":
                self._growing(Path(header["path"]), header.get("size"))
            case "error":
                self._settle(header, error=self._redacted(header["error"]))
            case "cancelled":
                self._settle_cancelled(header)
            case "ask":
                threading.Thread(target=self._answer, args=(header,), daemon=True).start()

    def _given(self, header: dict[str, Any], body: bytes | Path) -> None:
        is_chunk = header["t"] == "chunk"
        try:
            payload = self._stored(header["format"], body)
        except (CorralError, OSError) as error:
            self._settle(header, error=_not_kept(error))
            if is_chunk:
                self._say({"t": "cancel", "id": header["id"]})
            return
        if is_chunk:
            self._take_chunk(header, payload)
        else:
            self._settle(header, result=payload)

    def _growing(self, path: Path, size: int | None) -> None:
        """The instance begins to write a file, and says later what it is; without a size it gave up."""
        if size is not None:
            self._handing[path] = beside(lambda: self._sink().hand_over(path, size=size))
        else:
            self._handing.pop(path, None)
            path.unlink(missing_ok=True)

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
        if isinstance(body, bytes) and len(body) <= INLINE_BYTES:
            return inline(form, body)
        try:
            return self._uploaded(form, body)
        finally:
            if isinstance(body, Path):
                body.unlink(missing_ok=True)

    def _uploaded(self, form: str, body: bytes | Path) -> PayloadBody:
        sink = self._sink()
        handing = self._handing.pop(body, None) if isinstance(body, Path) else None
        if handing is not None:
            stored = handing.result()
        else:
            stored = sink.hand_over(body if isinstance(body, Path) else [body])
        if stored is not None:
            return PayloadBody(format=form, blob=stored.sha256, size=stored.size)
        data = body.read_bytes() if isinstance(body, Path) else body
        digest = hashlib.sha256(data).hexdigest()
        self._patiently(lambda: sink.keep(digest, data))
        return PayloadBody(format=form, blob=digest, size=len(data))

    def _sink(self) -> BlobSink:
        return self.link.corral.leases.sink(self.lease.id, self.lease.epoch)

    def _settle(self, header: dict[str, Any], **how: Any) -> None:
        with self._lock:
            held = self._held.pop(header["id"], None)
            if held is None:
                return
            ran_s = header.get("ran_s", 0.0)
            self._pace_s = ran_s if self._pace_s is None else 0.8 * self._pace_s + 0.2 * ran_s
            self._outcomes.append(
                OutcomeBody(
                    call_id=header["id"], attempt=header["attempt"], ran_s=ran_s, chunks=held.chunks, **how
                )
            )
            ready = self._next_up()
            first, self._news_at = self._news_at is None, self._news_at or time.monotonic()
        self._feed(ready)
        if not self._begin_to_ask():
            with self._lock:
                self._wake_one(first=first)

    def _has_news(self) -> None:
        """Under the lock: there is something to tell. Whoever tells it is woken once."""
        first, self._news_at = self._news_at is None, self._news_at or time.monotonic()
        self._wake_one(first=first)

    def _wake_one(self, *, first: bool) -> None:
        if not self._polling and (self._waits_for_room or self._wanted()):
            # The next request for calls takes it along.
            self._asking.notify_all()
        elif first:
            self._telling.notify_all()

    def _begin_to_ask(self) -> bool:
        """In the place of the thread that asks, which waits for the answer: to wake it would take as long."""
        with self._lock:
            if self._polling or self._over_with or not (want := self._wanted()):
                return False
            self._polling, self._waits_for_room = True, False
            request = self._request(want=want, wait_s=POLL_S)
        ask: Callable[[], LeaseCallsAnswer] = partial(
            self.link.corral.calls.exchange, self.lease.id, self.lease.epoch, request
        )
        try:
            ask = self.link.corral.calls.begin_exchange(self.lease.id, self.lease.epoch, request)
        finally:
            with self._lock:
                self._begun = request, ask
                self._asking.notify_all()
        return True

    def _next_up(self) -> list[_Held]:
        """Under the lock: those whose turn it is, since the instance has room."""
        found = []
        while self._ahead and len(self._held) - len(self._ahead) < self._capacity:
            held = self._ahead.popleft()
            held.began = time.monotonic()
            held.ends_at = None if held.call.timeout_s is None else held.began + held.call.timeout_s
            found.append(held)
        return found

    def _feed(self, ready: list[_Held]) -> None:
        """Not under the lock: an instance that does not listen must not keep us from ending it."""
        for held in ready:
            self._say(held.header, held.body)
            held.body = b""

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
            self._has_news()

    def _poll(self) -> None:
        """Asks for calls while there is room for them."""
        pauses = Pauses()
        while True:
            if (next_one := self._next_request()) is None:
                return
            request, ask = next_one
            try:
                answer = ask()
                self._arrived(request)
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
            self._deep = len(answer.calls) == request.want
            self._take(answer)

    def _next_request(self) -> tuple[LeaseCallsRequest, Callable[[], LeaseCallsAnswer]] | None:
        """And what asks it, or waits for its answer if it was sent already; None when all is over."""
        with self._lock:
            while self._begun is None and (
                self._polling or not (self._over_with or (want := self._wanted()))
            ):
                # With room left it is only a matter of time: a call that takes longer than others did
                # is not waited for.
                self._waits_for_room = self._room() <= 0
                self._asking.wait(None if self._waits_for_room or self._polling else SHORT_S)
            if self._begun is not None:
                begun, self._begun = self._begun, None
                return begun
            if self._over_with:
                return None
            self._polling, self._waits_for_room = True, False
            request = self._request(want=want, wait_s=POLL_S)
        return request, partial(self.link.corral.calls.exchange, self.lease.id, self.lease.epoch, request)

    @property
    def _over_with(self) -> bool:
        return self._ended or self._stopping

    def _wanted(self) -> int:
        """How many calls to ask for now; 0 is not to ask."""
        room = self._room()
        if not self._ready or self.control.wish() is not None or room <= 0:
            return 0
        if not self._held or not self._is_short() or self._is_late(2 * SHORT_S):
            return room
        return room if self._deep and len(self._held) <= room else 0

    def _room(self) -> int:
        return self._capacity + self._reach() - len(self._held)

    def _reach(self) -> int:
        """How many calls may wait here for their turn: none where that could be long."""
        if self._pace_s is None or self._is_late(2 * SHORT_S):
            return 0
        return min(MOST_AHEAD, int(AHEAD_S / max(self._pace_s, 1e-6)))

    def _is_short(self) -> bool:
        return self._pace_s is not None and self._pace_s < SHORT_S

    def _is_late(self, seconds: float) -> bool:
        """Whether the call that was begun first has run for longer. They are kept in that order."""
        first = next(iter(self._held.values()), None)
        return first is not None and first.began is not None and time.monotonic() - first.began > seconds

    def _request(self, *, want: int, wait_s: float) -> LeaseCallsRequest:
        outcomes, self._outcomes = self._outcomes[:MOST_CALLS], self._outcomes[MOST_CALLS:]
        chunks, self._chunks = self._chunks[:MOST_CALLS], self._chunks[MOST_CALLS:]
        self._news_at = time.monotonic() if self._outcomes or self._chunks else None
        # What another request is just telling of is not lost, though this one may overtake it.
        holding = [*self._held, *self._under_way]
        self._under_way.update(one.call_id for one in outcomes)
        return LeaseCallsRequest(outcomes=outcomes, chunks=chunks, holding=holding, want=want, wait_s=wait_s)

    def _arrived(self, request: LeaseCallsRequest) -> None:
        with self._lock:
            self._under_way.difference_update(one.call_id for one in request.outcomes)

    def _give_back(self, request: LeaseCallsRequest) -> None:
        """What could not be told is told with the next word: nothing is lost while we live."""
        self._arrived(request)
        with self._lock:
            self._outcomes = [*request.outcomes, *self._outcomes]
            self._chunks = [*request.chunks, *self._chunks]
            if self._outcomes or self._chunks:
                self._news_at = time.monotonic()

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

    def _hand(self, call: AssignedCall) -> None:
        """To the instance as soon as it has room."""
        with self._lock:
            if (known := self._held.get(call.id)) is not None:
                if known.call.attempt != call.attempt:
                    # The try before is still being ended here; another instance may have this one.
                    self._return(call)
                return
            header = {
                "t": "call",
                "id": call.id,
                "attempt": call.attempt,
                "function": call.function,
                "format": call.args.format,
            }
            held = self._held[call.id] = _Held(call, header, b"", time.monotonic())
        if call.args.blob is not None:
            header["path"] = str(self._downloaded(call.args.blob))
        else:
            held.body = call.args.payload().body or b""
        if len(held.body) > INLINE_MAX:
            path = self.folder / random.token_hex(8)
            path.write_bytes(held.body)
            header["path"], held.body = str(path), b""
        with self._lock:
            if call.id not in self._held:
                return
            self._ahead.append(held)
            ready = self._next_up()
        self._feed(ready)

    def _return(self, call: AssignedCall) -> None:
        """Under the lock: unbegun, and at no cost."""
        self._outcomes.append(OutcomeBody(call_id=call.id, attempt=call.attempt, gave_back=True))
        self._has_news()

    def _return_ahead(self) -> None:
        with self._lock:
            for held in self._ahead:
                self._held.pop(held.call.id, None)
                self._return(held.call)
            self._ahead.clear()

    def _cannot_begin(self, call: AssignedCall, error: Exception) -> None:
        why = f"its arguments could not be brought to the instance: {error}"
        self._settle(
            {"id": call.id, "attempt": call.attempt},
            error={"type": "CannotStart", "message": why, "bases": ["CannotStart"]},
        )

    def _downloaded(self, digest: str) -> Path:
        path = self.folder / random.token_hex(8)
        source = self.link.corral.leases.source(self.lease.id, self.lease.epoch)
        if not source.link(digest, path):
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
            unbegun = held in self._ahead
            if unbegun:
                self._ahead.remove(held)
            held.told_to_end = time.monotonic()
            held.ends_at = None
        if unbegun:
            self._settle({"id": call_id, "attempt": held.call.attempt}, cancelled=True)
            return
        self._say({"t": "cancel", "id": call_id})

    def _stop(self) -> None:
        """No more calls; the instance ends when those that it has are done."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            self._return_ahead()
            self._wake()
        threading.Thread(target=self._stop_when_done, name="corral-serving-stop", daemon=True).start()

    def _stop_when_done(self) -> None:
        while self._held and not self._ended:
            time.sleep(0.02)
        self._say({"t": "stop"})

    def _tell(self) -> None:
        """Outcomes that no request for calls takes along, and now and then a look for calls to be ended."""
        looked_at = time.monotonic()
        while True:
            with self._lock:
                while not self._ended and not self._is_time_to_tell(looked_at):
                    self._telling.wait(self._tell_in_s())
                if self._ended:
                    return
                request = self._request(want=0, wait_s=0)
            self._told(request)
            looked_at = time.monotonic()

    def _is_time_to_tell(self, looked_at: float) -> bool:
        now = time.monotonic()
        if self._news_at is None:
            return bool(self._held) and not self._polling and now - looked_at >= LOOK_S
        return now >= self._news_at + self._tell_after_s()

    def _tell_in_s(self) -> float:
        if self._news_at is None:
            return LOOK_S
        return max(0.001, self._news_at + self._tell_after_s() - time.monotonic())

    def _tell_after_s(self) -> float:
        if not self._polling and not self._stopping and self._wanted():
            # The next request for calls takes it along.
            return 0.05
        return GATHER_S if self._ahead else 0.0

    def _told(self, request: LeaseCallsRequest) -> None:
        try:
            answer = self.link.corral.calls.exchange(self.lease.id, self.lease.epoch, request)
            self._arrived(request)
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
        looked_at = time.monotonic()
        while not self._ended:
            time.sleep(0.05)
            if self.control.wish() is not None:
                self._stop()
            now = time.monotonic()
            if now - looked_at >= MEMORY_S:
                looked_at = now
                self._weigh()
            if self._ahead and now - self._ahead[0].came >= STALE_S:
                self._return_ahead()
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

    def _weigh(self) -> None:
        """One that has grown too large takes no more calls, and closes when those that it has are done."""
        most = self._service.max_memory
        if most is None or self._stopping or not self._ready or (now := self.memory()) <= most:
            return
        self.recorder.say(
            f"the instance has {now >> 20} MiB, more than its max_memory of {most >> 20} MiB: "
            "it takes no more calls, and another takes its place"
        )
        self._stop()

    def _is_stuck(self, held: _Held, now: float) -> bool:
        return held.told_to_end is not None and now - held.told_to_end >= CLEAR_UP_S

    def _end_process(self, stuck: list[_Held]) -> None:
        """Nothing else ends code that does not listen. The other calls are given back at no cost."""
        with self._lock:
            for one in stuck:
                self._held.pop(one.call.id, None)
                self._outcomes.append(self._ended_by_force(one))
            for other in self._held.values():
                self._return(other.call)
            self._held.clear()
            self._ahead.clear()
            self.timed_out = True
        self.recorder.say("a call did not end when it was told to; its process is killed")
        self.kill()
        self._send_rest()

    def _ended_by_force(self, held: _Held) -> OutcomeBody:
        ran_s = time.monotonic() - (held.began or time.monotonic())
        if held.ends_at is None:
            return OutcomeBody(call_id=held.call.id, attempt=held.call.attempt, ran_s=ran_s, cancelled=True)
        return OutcomeBody(
            call_id=held.call.id, attempt=held.call.attempt, ran_s=ran_s, error=self._timeout(held)
        )

    def _answer(self, header: dict[str, Any]) -> None:
        """A call from within a call."""
        number = header.pop("n")
        header.pop("t")
        if header.get("what") == "volume":
            self._say({"t": "answer", "n": number, **self._volume(header)})
            return
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

    def _volume(self, header: dict[str, Any]) -> dict[str, Any]:
        assert self.mounts is not None, "it is made with the instance"
        try:
            self.mounts.secrets = self.secrets
            return self.mounts.do(header["volume"], header["do"], discard=bool(header.get("discard")))
        except CorralError as error:
            problem = self.secrets.redact_text(f"{error.message} {error.hint}".strip())
            return {"problem": problem, "code": error.code}
        except (OSError, GivenUp) as error:
            return {"problem": f"the volume cannot be written or read: {error}"}

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
