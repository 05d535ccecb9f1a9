"""What a web function answered, made fit to be passed on: its status, its headers, and its body bit by bit.

An answer is written by the instance, as JSON whose `body` is base64. Whoever runs a function decides what it
says: nothing in it may change where this answer ends and the next one on the same connection begins.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from corral.domain.errors import CorralError

# So much of a large answer may stand before its body.
HEAD_BYTES = 256 << 10
TAIL_BYTES = 64
_BODY_KEY = re.compile(rb'"body"\s*:\s*"')
_TAIL = re.compile(rb'(={0,2})("\s*\}\s*)\Z')
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]{0,8192}")
_MOST_HEADERS = 64
# Of one connection, not of the answer (RFC 9110, 7.6.1), and those that say where it ends.
_HOP = frozenset(
    {
        *("connection", "content-length", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_WITHOUT_BODY = frozenset({204, 205, 304})


class BadGateway(CorralError):
    """The function failed."""

    code = "bad_gateway"


class WebHead(NamedTuple):
    status: int
    headers: dict[str, str]

    @property
    def has_body(self) -> bool:
        return self.status not in _WITHOUT_BODY


class BodyPlace(NamedTuple):
    """Where in the stored answer its body lies, as base64, and how many bytes it is."""

    start: int
    end: int
    size: int


def read_whole(text: bytes) -> tuple[WebHead, bytes]:
    """BadGateway if it is no answer."""
    answer = _table(text)
    try:
        return _head(answer), base64.b64decode(answer.get("body", ""), validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise _malformed("its body is not base64") from None


def find_body(first: bytes, last: bytes, size: int) -> tuple[WebHead, BodyPlace]:
    """The answer's head and the place of its body, from the first and last bytes of `size`.

    The body must be the last key, as the instance writes it.
    """
    tail = _TAIL.search(last[-TAIL_BYTES:])
    if tail is None:
        raise _malformed("its body is not its last key")
    for key in _BODY_KEY.finditer(first):
        without_body = first[: key.end()] + b'"}'
        end = size - len(tail[2])
        length = end - key.end()
        # A header may have the same name: then its brackets do not match.
        if _is_whole(without_body) and length >= 0 and length % 4 == 0:
            place = BodyPlace(key.end(), end, length // 4 * 3 - len(tail[1]))
            return _head(_table(without_body)), place
    raise _malformed("its body does not follow its head")


def decoded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes behind base64 that comes in pieces."""
    rest = b""
    for piece in pieces:
        joined = rest + piece
        whole = len(joined) - len(joined) % 4
        rest = joined[whole:]
        try:
            yield base64.b64decode(memoryview(joined)[:whole], validate=True)
        except binascii.Error:
            raise _malformed("its body is not base64") from None


def _table(text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        raise _malformed("it is not JSON") from None
    if not isinstance(answer, dict):
        raise _malformed("it is not an object")
    return answer


def _is_whole(text: bytes) -> bool:
    try:
        _table(text)
    except BadGateway:
        return False
    return True


def _head(answer: Mapping[str, Any]) -> WebHead:
    status, headers = answer.get("status"), answer.get("headers", {})
    if type(status) is not int or not 200 <= status < 600:
        raise BadGateway(
            f"the function answered with status {str(status)[:20]}", hint="A status is 200 to 599."
        )
    if not isinstance(headers, dict) or len(headers) > _MOST_HEADERS:
        raise _malformed("its headers are not a table of few")
    texts = {str(name): str(value) for name, value in headers.items()}
    for name, value in texts.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise _malformed(f"its header {name[:80]!r} is not valid")
    return WebHead(status, {name: value for name, value in texts.items() if name.lower() not in _hop(texts)})


def _hop(headers: Mapping[str, str]) -> frozenset[str]:
    named = [value.split(",") for name, value in headers.items() if name.lower() == "connection"]
    return _HOP | {word.strip().lower() for words in named for word in words}


def _malformed(why: str) -> BadGateway:
    return BadGateway(f"the function's answer cannot be passed on: {why}", hint="See the instance's log.")
