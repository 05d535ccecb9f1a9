"""How much a request's JSON may hold, told before it is validated.

Validation runs on the event loop and notes each fault with its place: what has millions of parts would hold
up every other call. Its models stop at the first bad member of a list or table (`wire/base.py`); this bounds
what they cannot.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator

from starlette.types import Message, Receive, Scope

from corral.domain.errors import InvalidInput, TooLarge

# What is smaller cannot hold enough to matter.
SMALL_BYTES = 64 << 10
# The largest table that a model allows has half as many.
MOST_KEYS = 20_000
MOST_VALUES = 2_000_000
MOST_DEPTH = 64
# What is kept or passed on as it is. All else is JSON, whatever it calls itself: what the framework takes for
# JSON is the framework's affair, and has changed before.
_RAW = re.compile(
    r"PUT /v1/(?:projects|leases)/[^/]+/blobs/[^/]+"
    r"|POST /v1/(?:projects|leases)/[^/]+/blobs/pack"
    r"|PUT /v1/leases/[^/]+/(?:objects|kept)/.+"
    r"|[A-Z]+ /v1/web/.*",
    re.DOTALL,
)
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# Few at a time: between two of them other threads have their turn.
_TEXTS = re.compile(rb'(?:[^"]*+"(?:[^"\\]++|\\.)*+"){1,10000}+', re.DOTALL)
_FLAT_OBJECT = re.compile(rb"\{:*+\}")
_NOT_SHAPE = bytes(set(range(256)) - set(b"{:}"))


async def checked(
    scope: Scope, receive: Receive, in_thread: Callable[[Callable[[], None]], Awaitable[None]]
) -> Receive:
    """The same body, once it is known to hold no more than it may; TooLarge or InvalidInput otherwise."""
    if not _may_be_large_json(scope):
        return receive
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return _first(message, receive)
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    body = b"".join(parts)
    if len(body) > SMALL_BYTES:
        await in_thread(lambda: check_json(body))
    return _first({"type": "http.request", "body": body, "more_body": False}, receive)


def check_json(body: bytes) -> None:
    """TooLarge if it has too many values, or an object in it too many keys; InvalidInput if it is too deep.

    Whether it is JSON is not told here.
    """
    values, shape = 0, bytearray()
    for piece in _without_texts(body):
        # A comma stands between two values.
        values += piece.count(b",")
        if values > MOST_VALUES:
            raise TooLarge(
                f"the body has more than {MOST_VALUES} values", hint="Send it in several requests."
            )
        shape += piece.translate(None, _NOT_SHAPE)
    _check_objects(bytes(shape))


def _without_texts(body: bytes) -> Iterator[bytes]:
    at = 0
    while (found := _TEXTS.match(body, at)) is not None:
        yield _TEXT.sub(b"", found[0])
        at = found.end()
    yield body[at:]


def _check_objects(shape: bytes) -> None:
    """From the innermost outwards: of an object only its braces and a colon for each key are left."""
    too_many, too_deep = b":" * (MOST_KEYS + 1), b"{" * (MOST_DEPTH + 1)
    for _ in range(MOST_DEPTH):
        if too_deep in shape.translate(None, b":"):
            break
        if too_many in shape:
            raise TooLarge(
                f"an object in the body has more than {MOST_KEYS} keys", hint="Check what wrote the request."
            )
        shape, found = _FLAT_OBJECT.subn(b"", shape)
        if not found:
            return
    raise InvalidInput(f"the body is nested deeper than {MOST_DEPTH}", hint="Check what wrote the request.")


def is_raw(method: str, path: str) -> bool:
    """Whether the body of such a request is bytes, and not JSON."""
    return _RAW.fullmatch(f"{method} {path}") is not None


def _may_be_large_json(scope: Scope) -> bool:
    length, has_body = b"", False
    for name, value in scope["headers"]:
        if name == b"content-length":
            length, has_body = value, True
        elif name == b"transfer-encoding":
            has_body = True
    if not has_body or (length.isdigit() and int(length) <= SMALL_BYTES):
        return False
    return not is_raw(scope["method"], scope["path"])


def _first(message: Message, receive: Receive) -> Receive:
    waiting = [message]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed
