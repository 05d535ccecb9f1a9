"""Bodies without a token, for public web functions: few at once, and on disk once they are large."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from starlette.requests import Request

from corral.domain.errors import RateLimited

# So much of a body is kept in memory while it comes.
MEMORY_BYTES = 256 << 10
# An endpoint takes those of so many addresses at once.
ADDRESSES = 8

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class PublicBodies:
    """Counts those that are under way, by address and endpoint."""

    def __init__(self, most_per_address: int) -> None:
        self._most = most_per_address
        self._coming: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def coming(self, origin: str, endpoint: str) -> Iterator[None]:
        """RateLimited if it is one too many."""
        counted = {(origin, endpoint): self._most, ("", endpoint): self._most * ADDRESSES}
        if any(self._coming[key] >= most for key, most in counted.items()):
            raise RateLimited(
                f"too many bodies without a token are on their way to {endpoint}",
                hint="Try again when they have come; CORRAL_PUBLIC_BODIES sets how many an address may send.",
            )
        self._coming.update(counted.keys())
        try:
            yield
        finally:
            self._coming.subtract(counted.keys())
            for key in counted:
                if not self._coming[key]:
                    del self._coming[key]


async def spooled(request: Request, in_thread: InThread) -> IO[bytes]:
    """The whole body, at its beginning; the caller closes it."""
    body = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 - handed on
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size <= MEMORY_BYTES:
                body.write(part)
            else:
                await in_thread(lambda part=part: body.write(part))  # type: ignore[misc]
        body.seek(0)
    except BaseException:
        body.close()
        raise
    return body
