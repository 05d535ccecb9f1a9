"""What a web function answered is passed on only as far as it is an answer."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from corral.server.web_answers import BadGateway, decoded, find_body, read_whole


def written(body: bytes = b"boat", **more: Any) -> bytes:
    told = {"status": 200, "headers": {"content-type": "text/plain"}, **more}
    return json.dumps({**told, "body": base64.b64encode(body).decode()}).encode()


def test_headers_that_frame_an_answer_are_not_passed_on() -> None:
    """SEC-05: nor those of one connection, nor those that `Connection` names."""
    given = {
        "Content-Length": "5",
        "Transfer-Encoding": "chunked",
        "connection": "X-Own, close",
        "x-own": "1",
        "Keep-Alive": "timeout=5",
        "Upgrade": "h2c",
        "TE": "trailers",
        "Trailer": "X",
        "X-Kept": "yes",
    }

    head, body = read_whole(written(headers=given))

    assert (head.status, head.headers, body) == (200, {"X-Kept": "yes"}, b"boat")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        written(status=100),
        written(status=199),
        written(status=600),
        written(status="200"),
        written(status=True),
        written(status=None),
        written(headers=[]),
        written(headers={"X\r\nSet-Cookie": "a"}),
        written(headers={"X": "a\r\nSet-Cookie: b"}),
        written(headers={"X": "\u20ac"}),
        written(headers={"": "a"}),
        written(headers={f"X-{n}": "a" for n in range(1000)}),
        b'{"status": 200, "headers": {}, "body": "!!"}',
        b'{"status": 200, "headers": {}, "body": 7}',
    ],
)
def test_what_is_no_answer_is_a_fault_of_the_function(text: bytes) -> None:
    """SEC-05."""
    with pytest.raises(BadGateway):
        read_whole(text)
    with pytest.raises(BadGateway):
        list(streamed(text))


def streamed(text: bytes, step: int = 7) -> list[bytes]:
    _, place = find_body(text[:4096], text[-64:], len(text))
    coded = text[place.start : place.end]
    return list(decoded(coded[at : at + step] for at in range(0, len(coded), step)))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100, 10_001])
@pytest.mark.parametrize("headers", [{}, {"body": "x"}], ids=["plain", "same name"])
def test_a_large_answer_is_found_without_reading_it_whole(size: int, headers: dict[str, str]) -> None:
    """SEC-12: the bytes are those that were answered, and their number is known before."""
    body = bytes(number % 251 for number in range(size))
    text = written(body, headers=headers)

    head, place = find_body(text[:4096], text[-64:], len(text))

    assert place.size == size
    assert b"".join(streamed(text)) == body
    assert head == read_whole(text)[0]


def test_keys_behind_the_body_are_refused() -> None:
    """SEC-12: they would be taken for a part of it."""
    body = base64.b64encode(b"boat" * 5000).decode()
    text = json.dumps({"status": 200, "headers": {}, "body": body, "more": "a" * 8}).encode()

    with pytest.raises(BadGateway):
        streamed(text)


class CountedBytes(bytes):
    """Tells how many bytes were copied out of it."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.copied += len(found) if isinstance(found, bytes) else 1
        return found


def test_an_answers_head_is_read_once_however_often_it_says_body() -> None:
    """ATK-28: all before each of them was read again, 43 s for an answer whose head was full of them."""
    text = (
        json.dumps({"status": 200, "z": [{"body": ""}] * 2000}).encode()[:-1] + b' , "body" : "Ym9hdA==" } '
    )
    first = CountedBytes(text)

    _, place = find_body(first, text[-64:], len(text))

    assert text[place.start : place.end] == b"Ym9hdA=="
    assert place.size == 4
    assert first.copied <= len(text)

    without = CountedBytes(text[: text.index(b" , ")])
    with pytest.raises(BadGateway, match="does not follow its head"):
        find_body(without, text[-64:], len(text))
    assert without.copied <= len(text)
