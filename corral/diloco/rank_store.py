"""Rounds in the control plane's store, over the socket that the worker opens for its child.

Standard library only; neither a token nor a network is needed here. Each call is a connection of its own: a
line of JSON, then what is to be stored in pieces, each after its length as four bytes, and a piece without
bytes at their end. The answer is a line too; the bytes of an object follow it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from corral.diloco.round_store import (
    Buffer,
    StoredObject,
    StoreError,
    StoreRefused,
    checked_key,
    checked_prefix,
)
from corral.rank import RankError, worker_link

# A server that is away comes back; a child whose worker is gone is ended with it.
PATIENCE_S = 7 * 86400.0
# The worker speaks in time, except while the server is away.
_SLACK_S = 60.0
_PIECE_BYTES = 1 << 20
# An object that others write over while it is read.
_TRIES = 20


class RankStore:
    """A RoundStore of the run that this process is a rank of. Its objects stay until the run has ended."""

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        # Outside a run this says so at once.
        self.now()

    def put(self, key: str, data: Buffer | Iterable[Buffer]) -> str:
        pieces = [data] if isinstance(data, Buffer) else data
        return str(self._write(key, pieces)["etag"])

    def create(self, key: str, data: Buffer) -> bool:
        return "refused" not in self._write(key, [data], create=True)

    def replace(self, key: str, data: Buffer, etag: str) -> bool:
        return "refused" not in self._write(key, [data], if_match=etag)

    def get(self, key: str) -> tuple[bytes, str] | None:
        for _ in range(_TRIES):
            with self._asked("get", key=checked_key(key)) as (said, link):
                if "missing" in said:
                    return None
                data = bytearray(said["size"])
                if _fill(link, memoryview(data)):
                    return bytes(data), str(said["etag"])
        raise _changing(key)

    def read_into(self, key: str, buffer: bytearray | memoryview, start: int = 0) -> int | None:
        view = memoryview(buffer).cast("B")
        for _ in range(_TRIES):
            with self._asked("get", key=checked_key(key), start=start, length=len(view)) as (said, link):
                if "missing" in said:
                    return None
                size = int(said["size"])
                if _fill(link, view[:size]):
                    return size
        raise _changing(key)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        below = f"{checked_prefix(prefix)}/" if prefix else ""
        after = ""
        while True:
            said = self._ask("list", prefix=below, after=after)
            for one in said["objects"]:
                yield StoredObject(one["key"], one["size"], one["modified"])
            after = said["next"]
            if after is None:
                return

    def delete(self, key: str) -> None:
        self._ask("delete", key=checked_key(key))

    def now(self) -> float:
        return float(self._ask("now")["now"])

    def _write(self, key: str, pieces: Iterable[Buffer], **condition: object) -> dict[str, Any]:
        with self._linked() as link:
            _say(link, "put", self._patience_s, key=checked_key(key), **condition)
            for piece in pieces:
                rest = memoryview(piece).cast("B")
                for at in range(0, len(rest), _PIECE_BYTES):
                    part = rest[at : at + _PIECE_BYTES]
                    link.sendall(len(part).to_bytes(4, "big"))
                    link.sendall(part)
            link.sendall(bytes(4))
            return _heard(link)

    def _ask(self, do: str, **question: object) -> dict[str, Any]:
        with self._asked(do, **question) as (said, _):
            return said

    @contextmanager
    def _asked(self, do: str, **question: object) -> Iterator[tuple[dict[str, Any], socket.socket]]:
        with self._linked() as link:
            _say(link, do, self._patience_s, **question)
            yield _heard(link), link

    @contextmanager
    def _linked(self) -> Iterator[socket.socket]:
        try:
            with worker_link() as link:
                link.settimeout(self._patience_s + _SLACK_S)
                yield link
        except RankError as error:
            hint = f"{error.hint} Or give a folder or a bucket as the store.".strip()
            raise StoreRefused(f"the store of the control plane: {error.message}", hint=hint) from error
        except OSError as error:
            raise StoreError(f"the worker of this run does not answer: {error}") from error


def _say(link: socket.socket, do: str, timeout_s: float, **question: object) -> None:
    line = json.dumps({"do": f"kept {do}", "timeout_s": timeout_s, **question})
    link.sendall(line.encode() + b"\n")


def _heard(link: socket.socket) -> dict[str, Any]:
    """The line of the answer, and not a byte more."""
    line = bytearray()
    while not line.endswith(b"\n"):
        # Of what comes after it nothing may be taken.
        seen = link.recv(1 << 16, socket.MSG_PEEK)
        if not seen:
            raise StoreError("the worker of this run hung up", hint="Its log says why.")
        end = seen.find(b"\n") + 1
        line += link.recv(end or len(seen))
    said: dict[str, Any] = json.loads(line)
    if "error" in said:
        raise StoreError(said.get("message", said["error"]), hint=said.get("hint", ""))
    return said


def _fill(link: socket.socket, view: memoryview) -> bool:
    """False if the object became another one in the middle."""
    while view:
        count = link.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def _changing(key: str) -> StoreError:
    return StoreError(
        f"{key} was not read whole in {_TRIES} tries",
        hint="It is written over again and again, or the worker cannot read it; its log says why.",
    )
