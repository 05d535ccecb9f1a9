"""The socket by which a child reaches the other ranks of its run: see `corral/rank.py`, which speaks to it.

Each connection carries one question and its answer, a line of JSON each. The worker asks the server in the
name of the child's lease, so that the child needs no token, and goes on asking while the server is away.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from corral.client.corral import Corral
from corral.domain.errors import CorralError, InvalidInput, NoObject, PreconditionFailed, ProjectFull
from corral.domain.secrets.redact import SecretValues
from corral.files.private import FILE_MODE
from corral.files.untrusted import HeldFolder
from corral.worker.child.kept_exchange import KEPT, KeptExchange
from corral.worker.child.rank_question import RankQuestion
from corral.worker.lease import LeaseSession
from corral.worker.server_link import WaitAbandoned

logger = logging.getLogger(__name__)
T = TypeVar("T")
Message = dict[str, Any]

SOCKET_VARIABLE = "CORRAL_RANK_SOCKET"
IS_SUPPORTED = sys.platform != "win32"
# A child that asks more at once is told so.
MOST_AT_ONCE = 32
# Room for the largest value as base64, and for its key.
MOST_LINE_BYTES = 128 << 10
# How long a child may take to send its question or to take its answer.
LINE_S = 10.0
# One answer of the server is waited for so long; then the child is looked at again.
POLL_S = 10.0


class RankSocket:
    """Open from before the child starts until it is gone. A hostile child harms nobody but itself."""

    def __init__(self, session: LeaseSession, path: Path, secrets: SecretValues) -> None:
        self._session = session
        self._path = path
        self._secrets = secrets
        self._folder: HeldFolder | None = None
        self._listener: socket.socket | None = None
        self._ended = threading.Event()
        self._free = threading.Semaphore(MOST_AT_ONCE)

    def __enter__(self) -> RankSocket:
        try:
            self._open()
        except OSError as error:
            # The program may never ask for it, and says clearly what is missing if it does.
            logger.warning("%s has no socket to the other ranks: %s", self._session.lease.id, error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._listener is not None:
            # Wakes the thread that accepts; a close alone does not.
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _open(self) -> None:
        if sys.platform == "win32":
            return
        # A path to a socket must be short, and folders may be deep.
        self._folder = HeldFolder(self._path.parent)
        path = self._folder.path / self._path.name
        listener = socket.socket(socket.AF_UNIX)
        try:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            os.chmod(path, FILE_MODE)
            listener.listen(MOST_AT_ONCE)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name="corral-rank", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._ended.is_set():
            try:
                child, _ = listener.accept()
            except OSError as error:
                if not self._ended.wait(0.1):
                    logger.debug("the child cannot connect: %s", error)
                continue
            if self._free.acquire(blocking=False):
                threading.Thread(
                    target=self._serve, args=(child,), name="corral-rank-call", daemon=True
                ).start()
            else:
                with child:
                    child.settimeout(LINE_S)
                    _send(child, _too_many())

    def _serve(self, child: socket.socket) -> None:
        try:
            with child:
                child.settimeout(LINE_S)
                if (line := _line(child)) is not None:
                    self._answered(child, line)
        except OSError as error:
            logger.debug("the child of %s hung up: %s", self._session.lease.id, error)
        finally:
            self._free.release()

    def _answered(self, child: socket.socket, line: bytes) -> None:
        """Content of an object that the run keeps is its own answer."""
        answer = self._answer(child, line, lambda: _is_gone(child))
        if answer is not None:
            child.settimeout(LINE_S)
            _send(child, answer)

    def _answer(self, child: socket.socket, line: bytes, gone: Callable[[], bool]) -> Message | None:
        try:
            question = RankQuestion(line)
            if question.do.startswith(KEPT):
                return self._kept(child, question, gone)
            return self._asked(question, gone)
        except NoObject:
            return {"missing": True}
        except PreconditionFailed:
            return {"refused": True}
        except CorralError as error:
            return {"error": error.code, "message": error.message, "hint": error.hint}
        except WaitAbandoned:
            return {"error": "lease_lost", "message": "the lease of this rank is lost: it will be stopped"}

    def _kept(self, child: socket.socket, question: RankQuestion, gone: Callable[[], bool]) -> Message | None:
        def attempt(call: Callable[[Corral], T]) -> T:
            return self._try(question, gone, call)

        folder = self._path.parent if self._folder is None else self._folder.path
        exchange = KeptExchange(child, question, self._lease, attempt, self._secrets, folder)
        return exchange.answer()

    def _asked(self, question: RankQuestion, gone: Callable[[], bool]) -> Message:
        match question.do:
            case "get":
                return self._read(question, gone)
            case "put":
                told = self._try(question, gone, lambda corral: question.put(corral, self._lease))
                return {"etag": told.etag}
            case "delete":
                key = question.text("key")
                self._try(question, gone, lambda corral: corral.leases.delete_object(*self._lease, key))
                return {}
            case "keys":
                prefix, after = question.text("prefix"), question.text("after")
                told = self._try(
                    question,
                    gone,
                    lambda corral: corral.leases.object_keys(*self._lease, prefix, after=after),
                )
                return {"keys": told.keys, "next": told.next}
        raise InvalidInput(f"not something to ask for: {question.do[:40]!r}")

    @property
    def _lease(self) -> tuple[str, int]:
        return self._session.lease.id, self._session.lease.epoch

    def _read(self, question: RankQuestion, gone: Callable[[], bool]) -> Message:
        """Until it is there, or has changed, or the time is over: by one long poll after another."""
        key, known = question.text("key"), question.text("changed_from") or None
        until = time.monotonic() + question.seconds("wait_s", 0.0)
        while True:
            wait_s = min(POLL_S, max(0.0, until - time.monotonic()))
            is_last = wait_s < POLL_S or gone()
            try:
                found = self._try(question, gone, _reading(self._lease, key, wait_s, known))
            except NoObject:
                if is_last or known is not None:
                    raise
                continue
            if is_last or found.etag != known:
                return {"value": base64.b64encode(found.body).decode("ascii"), "etag": found.etag}

    def _try(self, question: RankQuestion, gone: Callable[[], bool], call: Callable[[Corral], T]) -> T:
        """Again while the server is away, until the question's own time is over or nobody waits for it."""

        def waits(error: CorralError) -> None:
            if isinstance(error, ProjectFull):
                logger.warning("%s waits for room: %s", self._session.lease.id, error.message)
            if time.monotonic() >= question.until or self._ended.is_set() or gone():
                raise error

        return self._session.keep_trying(call, waits=waits)


def _reading(lease: tuple[str, int], key: str, wait_s: float, known: str | None) -> Callable[[Corral], Any]:
    return lambda corral: corral.leases.read_object(*lease, key, wait_s=wait_s, changed_from=known)


def _too_many() -> Message:
    told = f"this rank has {MOST_AT_ONCE} calls under way already"
    return {"error": "too_many", "message": told, "hint": "Wait in fewer threads at once."}


def _line(child: socket.socket) -> bytes | None:
    """None if the child hangs up, says too much or takes too long."""
    until = time.monotonic() + LINE_S
    read = bytearray()
    while not read.endswith(b"\n"):
        # What follows the line is not taken.
        seen = child.recv(1 << 16, socket.MSG_PEEK)
        more = child.recv(seen.find(b"\n") + 1 or len(seen))
        read += more
        if not more or len(read) > MOST_LINE_BYTES or time.monotonic() > until:
            return None
    return bytes(read)


def _send(child: socket.socket, message: Message) -> None:
    with suppress(OSError):
        child.sendall(json.dumps(message).encode() + b"\n")


def _is_gone(child: socket.socket) -> bool:
    """Whether the child hung up; it says nothing while it waits."""
    child.settimeout(0)
    try:
        return child.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
