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
_OPEN, _COLON, _COMMA = (re.compile(rf"[ \t\r\n]*{sign}[ \t\r\n]*") for sign in (r"\{", ":", ","))
_QUOTE = re.compile('"')
_DECODER = json.JSONDecoder()
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
    start, end = _body_start(first), size - len(tail[2])
    length = end - start
    if length < 0 or length % 4:
        raise _malformed("its body is not base64")
    place = BodyPlace(start, end, length // 4 * 3 - len(tail[1]))
    return _head(_table(first[:start] + b'"}')), place


def _body_start(first: bytes) -> int:
    """Where the text of the answer's own key `body` begins. What stands before it is read once."""
    # One character for each byte: places are the same, and what is no ASCII stands in texts alone.
    text = first.decode("latin-1")
    try:
        at = _behind(_OPEN, text, 0)
        while True:
            key, at = _DECODER.raw_decode(text, at)
            at = _behind(_COLON, text, at)
            if key == "body":
                return _behind(_QUOTE, text, at)
            _, at = _DECODER.raw_decode(text, at)
            at = _behind(_COMMA, text, at)
    except (ValueError, RecursionError):
        raise _malformed("its body does not follow its head") from None


def _behind(sign: re.Pattern[str], text: str, at: int) -> int:
    found = sign.match(text, at)
    if found is None:
        raise ValueError(f"no {sign.pattern} at {at}")
    return found.end()


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
