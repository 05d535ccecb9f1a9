"""How a request's body is read: no more than it may be, and only for a token that is good at its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive, Scope

from corral.domain.errors import TooLarge


def limited(scope: Scope, receive: Receive, limit: int) -> Receive:
    """Refuse a body that is announced as too large; stop reading one that turns out to be."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), None)
    message = f"the body is larger than {limit} bytes"
    if length is not None and (not length.isdigit() or int(length) > limit):
        raise TooLarge(message)
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        part = await receive()
        seen += len(part.get("body", b""))
        if seen > limit:
            raise TooLarge(message)
        return part

    return counted


def checked_at_end(receive: Receive, check: Callable[[], Awaitable[None]]) -> Receive:
    """Nothing is done with a body before `check`: it may have taken long to come."""
    is_whole = False

    async def watched() -> Message:
        nonlocal is_whole
        part = await receive()
        if not is_whole and part["type"] == "http.request" and not part.get("more_body"):
            is_whole = True
            await check()
        return part

    return watched


def is_blob(scope: Scope) -> bool:
    """Blobs are streamed to disk and have a limit of their own."""
    parts = scope["path"].split("/")
    named = len(parts) == 6 and parts[2] in ("projects", "leases") and parts[4] == "blobs"
    return scope["method"] == "PUT" and named
