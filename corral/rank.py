"""How the ranks of a run meet when they cannot reach each other: `from corral import rank`.

Small named values, which live as long as the attempt does, and what is made of them: barriers and broadcasts.
The worker of each rank carries them to the server over a socket that it opens for its child, so a child needs
neither a token nor a network. Standard library only. The socket is at `CORRAL_RANK_SOCKET`; each connection
takes a line of JSON and answers with one.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from corral.errors import CorralError

# How long a call goes on while the server is away, unless it is told another time.
PATIENCE_S = 600.0
# The worker answers in time; only a worker that is gone does not.
_SLACK_S = 30.0
# Somebody who was to close a meeting may have died: the others look again so often.
_LOOK_AGAIN_S = 10.0
# A rank that gives up takes its key back, but does not wait long for that.
_GIVE_UP_S = 1.0
_LONGEST_S = 7 * 86400.0
_LONGEST_PATH = 100
_OWN = "corral/"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RankError(CorralError):
    """What was asked of the other ranks could not be done."""

    code = "rank_error"


class NotInARun(RankError):
    """This process is not a rank of a run."""

    code = "not_in_a_run"
    hint = "Start it with `corral run --replicas N -- python FILE`; alone it has nobody to meet."


class RankTimeout(RankError, TimeoutError):
    """It took too long. `missing` are the ranks that had not come, where that is known."""

    code = "rank_timeout"

    def __init__(self, message: str, *, hint: str = "", missing: Iterable[int] = ()) -> None:
        super().__init__(message, hint=hint)
        self.missing = tuple(missing)


class _Version(NamedTuple):
    value: bytes
    etag: str


def rank() -> int:
    """The number of this process among the ranks of its run, from 0."""
    return int(_variable("CORRAL_RANK"))


def world_size() -> int:
    """How many ranks the run has; of an elastic run the most that it may have."""
    return int(_variable("CORRAL_WORLD_SIZE"))


def get(key: str, wait_s: float | None = None) -> bytes | None:
    """The value; None if there is none, also after `wait_s` seconds of waiting for it."""
    found = _read(_users(key), wait_s or 0.0, timeout_s=max(PATIENCE_S, wait_s or 0.0))
    return None if found is None else found.value


def wait(key: str, timeout_s: float = PATIENCE_S) -> bytes:
    """The value as soon as there is one; RankTimeout if there is none by then."""
    found = _read(_users(key), timeout_s, timeout_s=timeout_s)
    if found is None:
        raise RankTimeout(f"nobody has put {key!r} within {timeout_s:g} s")
    return found.value


def put(key: str, value: bytes) -> None:
    """Write it, whatever is there."""
    _put(_users(key), value)


def create(key: str, value: bytes) -> bool:
    """Write it if there is none; False if somebody was first."""
    return _put(_users(key), value, create=True)


def compare_and_set(key: str, old: bytes | None, new: bytes) -> bool:
    """Replace exactly `old`, where None is no value; False if it was another one."""
    if old is None:
        return create(key, new)
    found = _read(_users(key), 0.0)
    return found is not None and found.value == old and _put(key, new, if_match=found.etag)


def delete(key: str) -> None:
    """Delete it, if it is there."""
    _ask("delete", key=_users(key))


def keys(prefix: str = "") -> list[str]:
    """The keys that begin so, in order."""
    return [key for key in _keys(prefix) if not key.startswith(_OWN)]


def barrier(name: str, timeout_s: float = PATIENCE_S, *, count: int | None = None) -> tuple[int, ...]:
    """Wait until `count` ranks have come here (all ranks of the run if it is None); which ranks they are.

    The same name can be used again and again. RankTimeout names the ranks that had not come. All who met are
    told the same ranks: a rank that came when `count` others had met already waits for the next time.
    """
    return _Meeting("barrier", name, count).join(b"", timeout_s).ranks


def broadcast(
    name: str,
    value: bytes | None = None,
    root: int = 0,
    *,
    timeout_s: float = PATIENCE_S,
    count: int | None = None,
) -> bytes:
    """The value that rank `root` gives. A barrier too: nobody goes on before all (or `count`) have come."""
    if rank() == root and value is None:
        raise TypeError(f"rank {root} is the root of broadcast {name!r} and must give a value")
    given = value if value is not None and rank() == root else b""
    return _Meeting("broadcast", name, count, root).join(given, timeout_s).value


class _Met(NamedTuple):
    """The end of one turn of a meeting. It is one value, which all obey."""

    turn: int
    ranks: tuple[int, ...]
    value: bytes

    def as_bytes(self) -> bytes:
        return json.dumps({"turn": self.turn, "ranks": self.ranks}).encode() + b"\n" + self.value

    @classmethod
    def parse(cls, body: bytes) -> _Met:
        head, _, value = body.partition(b"\n")
        said = json.loads(head)
        return cls(said["turn"], tuple(said["ranks"]), value)


class _Meeting:
    """Each rank leaves a key; whoever finds enough of them ends the turn, for all at once."""

    def __init__(self, kind: str, name: str, count: int | None, root: int | None = None) -> None:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"not a name: {name!r}; use up to 128 letters, digits, `.`, `_`, `-`")
        if count is not None and count < 1:
            raise ValueError(f"count is {count}; at least 1 rank must come")
        self._what = f"{kind} {name!r}"
        self._base = f"{_OWN}{kind}/{name}"
        self._root = root
        self._is_of_all = count is None
        self._count = world_size() if count is None else count

    def join(self, value: bytes, timeout_s: float) -> _Met:
        until = time.monotonic() + timeout_s
        while True:
            last = self._last(timeout_s=_left(until))
            turn = 0 if last is None else _Met.parse(last.value).turn
            mine = f"{self._base}/{turn}/{rank()}"
            _put(mine, value, timeout_s=_left(until))
            try:
                met = self._ended(turn, last, until, timeout_s)
            except RankError:
                with suppress(RankError):
                    _ask("delete", timeout_s=_GIVE_UP_S, key=mine)
                raise
            _ask("delete", key=mine)
            # If it was ended without this rank, its next turn is this one's.
            if met.turn == turn + 1 and rank() in met.ranks:
                return met

    def _ended(self, turn: int, last: _Version | None, until: float, timeout_s: float) -> _Met:
        known = None if last is None else last.etag
        here: set[int] = set()
        while True:
            here = {int(key.rpartition("/")[2]) for key in _keys(f"{self._base}/{turn}/", _left(until))}
            if len(here) >= self._count and (self._root is None or self._root in here):
                self._end(turn, here, known, _left(until))
            left_s = _left(until)
            found = self._last(min(left_s, _LOOK_AGAIN_S), known, timeout_s=left_s)
            if found is not None and found.etag != known:
                return _Met.parse(found.value)
            if left_s <= 0:
                raise self._too_late(here, timeout_s)

    def _end(self, turn: int, here: Collection[int], known: str | None, timeout_s: float) -> None:
        value = b""
        if self._root is not None:
            given = _read(f"{self._base}/{turn}/{self._root}", 0.0, timeout_s=timeout_s)
            if given is None:
                # Somebody else ended the turn meanwhile, or the root has given up.
                return
            value = given.value
        # If somebody else was first, what that one wrote counts.
        met = _Met(turn + 1, tuple(sorted(here)), value).as_bytes()
        _put(f"{self._base}/met", met, create=known is None, if_match=known, timeout_s=timeout_s)

    def _last(
        self, wait_s: float = 0.0, known: str | None = None, timeout_s: float = PATIENCE_S
    ) -> _Version | None:
        return _read(f"{self._base}/met", wait_s, known, timeout_s=timeout_s)

    def _too_late(self, here: Collection[int], timeout_s: float) -> RankTimeout:
        missing = [one for one in range(world_size()) if one not in here]
        wanted = "all" if self._is_of_all else str(self._count)
        names = ", ".join(map(str, missing[:50])) + (", ..." if len(missing) > 50 else "")
        return RankTimeout(
            f"{self._what} had {len(here)} of {wanted} ranks after {timeout_s:g} s; not there: rank {names}",
            hint="See with `corral show RUN` what they do; an elastic run gives `count`.",
            missing=missing,
        )


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())


def _users(key: str) -> str:
    if key.startswith(_OWN):
        raise ValueError(f"keys that begin with {_OWN!r} are Corral's own: {key[:80]!r}")
    return key


def _keys(prefix: str, timeout_s: float = PATIENCE_S) -> list[str]:
    found: list[str] = []
    while True:
        answer = _ask("keys", timeout_s=timeout_s, prefix=prefix, after=found[-1] if found else "")
        found += answer["keys"]
        if answer["next"] is None:
            return found


def _read(
    key: str, wait_s: float, known: str | None = None, *, timeout_s: float = PATIENCE_S
) -> _Version | None:
    wait_s = min(wait_s, _LONGEST_S)
    answer = _ask("get", timeout_s=timeout_s, key=key, wait_s=wait_s, changed_from=known or "")
    return None if "missing" in answer else _Version(base64.b64decode(answer["value"]), answer["etag"])


def _put(
    key: str,
    value: bytes,
    *,
    create: bool = False,
    if_match: str | None = None,
    timeout_s: float = PATIENCE_S,
) -> bool:
    """Whether it was written; without a condition it always is."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a value is bytes, not {type(value).__name__}; `json.dumps(x).encode()` makes some")
    text = base64.b64encode(value).decode("ascii")
    answer = _ask("put", timeout_s=timeout_s, key=key, value=text, create=create, if_match=if_match or "")
    return "refused" not in answer


def worker_link() -> socket.socket:
    """A connection to the worker of this rank, to be closed by whoever asks for it."""
    return _connected(_variable("CORRAL_RANK_SOCKET"))


def _ask(do: str, *, timeout_s: float = PATIENCE_S, **question: Any) -> dict[str, Any]:
    path = _variable("CORRAL_RANK_SOCKET")
    timeout_s = min(timeout_s, _LONGEST_S)
    line = json.dumps({"do": do, "timeout_s": timeout_s, **question}).encode() + b"\n"
    try:
        with _connected(path) as link:
            link.settimeout(max(timeout_s, question.get("wait_s", 0.0)) + _SLACK_S)
            link.sendall(line)
            answer = link.makefile("rb").readline()
    except OSError as error:
        raise RankError(f"the worker of this run does not answer at {path}: {error}") from error
    if not answer.endswith(b"\n"):
        raise RankError(
            f"the worker of this run did not answer at {path}",
            hint="A value may have 64 KiB; larger ones belong into files.",
        )
    said: dict[str, Any] = json.loads(answer)
    if "error" in said:
        raise _refusal(said, timeout_s)
    return said


def _refusal(said: dict[str, Any], timeout_s: float) -> RankError:
    message, hint = said.get("message", said["error"]), said.get("hint", "")
    if said["error"] in ("server_unreachable", "store_unavailable", "disk_full"):
        return RankTimeout(f"the server did not answer within {timeout_s:g} s: {message}", hint=hint)
    return RankError(message, hint=hint)


def _connected(path: str) -> socket.socket:
    if sys.platform == "win32":
        raise RankError("this host has Windows, where Python has no Unix sockets: ranks cannot meet there")
    link = socket.socket(socket.AF_UNIX)
    try:
        if len(os.fsencode(path)) <= _LONGEST_PATH or sys.platform != "linux":
            link.connect(path)
            return link
        # A path to a socket must be short, and folders may be deep: so it is named from within.
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            link.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        finally:
            os.close(folder)
    except OSError:
        link.close()
        raise
    return link


def _variable(name: str) -> str:
    found = os.environ.get(name)
    if found is not None:
        return found
    if "CORRAL_RUN_ID" in os.environ:
        why = "this host has no socket for it" if sys.platform != "win32" else "it has Windows"
        raise RankError(
            f"{name} is not set: ranks cannot meet here ({why})",
            hint="The worker may be of an older version; functions have calls instead.",
        )
    raise NotInARun(f"this process is not a rank of a run: {name} is not set")
